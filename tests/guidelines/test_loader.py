"""Guides are well-formed, short, and found by id."""

import pytest

from cuteforge.guidelines.loader import guide, guides, parse
from cuteforge.kernels.errors import NotFound


def test_all_guides_are_short_and_tagged():
    found = guides()
    assert {"debugging-procedure", "optimisation-menu", "layouts-and-tails"} <= set(found)
    for item in found.values():
        assert item.tags, item.id
        assert len(item.text.split()) < 400, item.id


def test_unknown_guide_names_the_guides_there_are():
    with pytest.raises(NotFound) as caught:
        guide("cooking")
    assert "layouts-and-tails" in caught.value.remedy


@pytest.mark.parametrize(
    "source", ["# no front matter\n", "---\nid: a\ntitle: b\n---\nx\n", "---\nid a\n---\nx\n", "---\nid: a\n"]
)
def test_malformed_guide_is_an_error(source):
    with pytest.raises(ValueError, match=r"a\.md"):
        parse(source, "a.md")


def test_colon_in_a_title_is_kept():
    assert parse("---\nid: a\ntitle: b: c\ntags: x\n---\nt\n", "a.md").title == "b: c"
