"""The command line refuses what it must, with the reason."""

import json
import os
import subprocess
import sys

import pytest


def cuteforge(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "cuteforge.server.cli", *arguments],
        capture_output=True, text=True, timeout=120, env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("address", ["0.0.0.0:8000", "192.168.1.5:80", "[::]:9000", "example.org:80"])
def test_http_on_another_address_than_loopback_is_refused(address):
    done = cuteforge("serve", "--http", address)
    assert done.returncode == 2
    assert "not a loopback address" in done.stderr


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999"])
def test_malformed_address_is_refused(address):
    done = cuteforge("serve", "--http", address)
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr


def test_http_without_isolation_is_refused_with_the_way_around(tmp_path):
    done = cuteforge("serve", "--http", "127.0.0.1:0", "--home", str(tmp_path), CUTEFORGE_BWRAP="/bin/false")
    assert done.returncode == 1
    assert "HTTP service is refused" in done.stderr
    assert "--allow-weaker-sandbox" in done.stderr


def test_wrong_setting_is_named():
    done = cuteforge("serve", CUTEFORGE_INLINE_SECONDS="soon")
    assert done.returncode == 1
    assert "inline_seconds" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_bubblewrap_setting_is_named(tmp_path):
    done = cuteforge("doctor", "--home", str(tmp_path), CUTEFORGE_BWRAP=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "not an executable file" in done.stderr


def test_doctor_reports_as_json(tmp_path):
    done = cuteforge("doctor", "--json", "--home", str(tmp_path))
    assert done.returncode == 0, done.stderr
    names = {item["name"] for item in json.loads(done.stdout)["findings"]}
    assert {"sandbox", "torch", "g++", "nvcc"} <= names


def test_doctor_reads_as_text(tmp_path):
    done = cuteforge("doctor", "--home", str(tmp_path))
    assert "The main job works here." in done.stdout
    assert not list(tmp_path.iterdir())


def test_taken_port_is_an_error(tmp_path):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = cuteforge("serve", "--http", f"127.0.0.1:{port}", "--home", str(tmp_path))
    assert done.returncode == 1
    assert "Choose another port" in done.stderr


def test_home_that_cannot_be_made_is_an_error_of_the_call_not_of_the_start(connect):
    with connect("/proc/cuteforge") as session:
        assert len(session.run("list_tools").tools) == 9
        result = session.call("history")
        assert result.is_error
        assert "--home" in result.content[0].text


def test_required_sandbox_refuses_the_call_where_there_is_none(connect, tmp_path):
    env = {"CUTEFORGE_SANDBOX": "require", "CUTEFORGE_BWRAP": "/bin/false"}
    with connect(tmp_path / "home", env=env) as session:
        result = session.call("device_info")
        assert result.is_error
        assert "cuteforge doctor" in result.content[0].text


def test_roots_add_to_the_working_directory(connect, home, stocked, tmp_path, examples):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, name in ((here, "a.cpp"), (there, "b.cpp")):
        folder.mkdir()
        (folder / name).write_text(examples.kernel + f"// {name}\n")
    with connect(home, "--root", str(there), cwd=here) as session:
        for path in ("a.cpp", str(there / "b.cpp")):
            assert session.ok("submit_candidate", task_id=stocked.task_id, path=path)["candidate_id"]


def test_foreign_host_header_is_refused(serve_http, home):
    import urllib.error
    import urllib.request

    with serve_http(home) as url:
        request = urllib.request.Request(
            url, data=b"{}", headers={"Host": "evil.example", "Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        assert caught.value.code == 421
