"""JSON messages and file descriptors over a Unix socket, between processes of one evaluation.

Each message is a 12-byte header (magic, body length, descriptor count), the descriptors in groups, then
the UTF-8 JSON body. Peers may be hostile: lengths and counts are bounded before anything is read.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct("!4sII")
_MAGIC = b"CF01"
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_DESCRIPTORS = 1024
# Linux passes at most 253 descriptors in one message (SCM_MAX_FD).
_GROUP = 128


class ChannelClosed(ConnectionError):
    """The peer has ended or closed its end."""


class ChannelViolation(ConnectionError):
    """The peer sent something that is not a message."""


class Channel:
    """One end of a connection. Not for several threads at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel and the raw socket of its other end, to be handed to another process."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(mine), other

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Take over an inherited descriptor."""
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        return cls(sock)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message; the descriptors are duplicated into the peer.

        Raises:
            ChannelClosed: the peer is gone.
        """
        body = json.dumps(message, separators=(",", ":")).encode("utf-8", "surrogatepass")
        self._sock.settimeout(None)
        try:
            self._sock.sendall(_HEADER.pack(_MAGIC, len(body), len(fds)))
            for start in range(0, len(fds), _GROUP):
                socket.send_fds(self._sock, [b"F"], list(fds[start : start + _GROUP]))
            self._sock.sendall(body)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed("the peer is gone") from error

    def receive(self, timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """Receive one message and its descriptors, which the caller must close.

        Raises:
            TimeoutError: the whole message was not there in time.
            ChannelClosed: the peer is gone.
            ChannelViolation: what came is not a message.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        magic, length, count = _HEADER.unpack(self._exactly(_HEADER.size, deadline))
        if magic != _MAGIC or length > MAX_BODY_BYTES or count > MAX_DESCRIPTORS:
            raise ChannelViolation("the peer sent a malformed header")
        fds: list[int] = []
        try:
            while len(fds) < count:
                fds += self._descriptors(min(_GROUP, count - len(fds)), deadline)
            body = self._exactly(length, deadline)
            message = json.loads(body)
            if not isinstance(message, dict):
                raise ChannelViolation("the peer sent something that is not an object")
        except (ValueError, UnicodeDecodeError, RecursionError) as error:
            close_all(fds)
            raise ChannelViolation("the peer sent something that is not JSON") from error
        except BaseException:
            close_all(fds)
            raise
        return message, fds

    def _arm(self, deadline: float | None) -> None:
        if deadline is None:
            self._sock.settimeout(None)
            return
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("no message in time")
        self._sock.settimeout(remaining)

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._arm(deadline)
            try:
                chunk = self._sock.recv(min(count - len(data), 1 << 20))
            except (ConnectionResetError, OSError) as error:
                if isinstance(error, TimeoutError):
                    raise
                raise ChannelClosed("the peer is gone") from error
            if not chunk:
                raise ChannelClosed("the peer is gone")
            data += chunk
        return bytes(data)

    def _descriptors(self, count: int, deadline: float | None) -> list[int]:
        self._arm(deadline)
        item = array.array("i")
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(1, socket.CMSG_SPACE(count * item.itemsize))
        except ConnectionResetError as error:
            raise ChannelClosed("the peer is gone") from error
        if not data:
            raise ChannelClosed("the peer is gone")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                item.frombytes(payload[: len(payload) - len(payload) % item.itemsize])
        got = list(item)
        if flags & socket.MSG_CTRUNC or len(got) != count:
            close_all(got)
            raise ChannelViolation("the peer sent fewer descriptors than it announced")
        for fd in got:
            os.set_inheritable(fd, False)
        return got

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close this end, waking a `receive` that waits on it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors, ignoring those that are closed already."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
