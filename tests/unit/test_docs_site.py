"""The site of the documentation: its menu takes new pages kindly, and what a browser would trip over is found.

That the site itself can be built is what `.ci/docs` sees; here is neither MkDocs nor its theme.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from reference_support import script

REPOSITORY = Path(__file__).parents[2]
SITE = REPOSITORY / ".ci" / "site"


navigation = script(SITE / "navigation.py")
look_through = script(SITE / "look_through.py")
NAV: list[Any] = ["index.md", {"Use": ["a.md", {"Deep": ["b.md", "later.md"]}]}, {"Later": ["later-too.md"]}]


def test_pages_that_the_menu_does_not_name_stand_under_more() -> None:
    pages = {"index.md", "a.md", "b.md", "new.md", "dir/other.md"}
    nav, more = navigation.completed(NAV, pages, ["later.md", "later-too.md"])
    assert nav == ["index.md", {"Use": ["a.md", {"Deep": ["b.md"]}]}, {"More": ["dir/other.md", "new.md"]}]
    assert more == ["dir/other.md", "new.md"]


def test_a_page_that_was_awaited_has_its_place() -> None:
    pages = {"index.md", "a.md", "b.md", "later.md", "later-too.md"}
    assert navigation.completed(NAV, pages, ["later.md", "later-too.md"]) == (NAV, [])


def test_a_page_of_the_menu_that_is_gone_is_named() -> None:
    with pytest.raises(navigation.NavigationBroken, match=r"names b\.md, which docs/ does not have"):
        navigation.completed(NAV, {"index.md", "a.md"}, ["later.md", "later-too.md"])


def test_the_menu_of_the_site_names_pages_that_are_there() -> None:
    settings = yaml.safe_load((SITE / "mkdocs.yml").read_text())
    docs = REPOSITORY / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} | set(settings["extra"]["elsewhere"])
    navigation.completed(settings["nav"], pages, settings["extra"]["awaited"])
    named = list(navigation.named(settings["nav"]))
    assert len(named) == len(set(named)), "a page has one place"
    for place in settings["extra"]["elsewhere"].values():
        assert (REPOSITORY / place).is_file()


def test_the_records_of_decisions_are_listed_by_title() -> None:
    texts = {"0002-b.md": "# 2. Second, `b`\n\nStatus: accepted.\n", "0001-a.md": "# 1. First\n"}
    assert navigation.records(texts) == "\n* [1](0001-a.md): First\n* [2](0002-b.md): Second, `b`\n"


def test_what_is_wrong_with_a_site_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<script src="https://cdn.example/x.js"></script><link rel="canonical" href="https://here.example/">'
        '<link rel="stylesheet" href="gone.css"><img src="a.png"><a href="other.html#there">x</a>'
        '<a href="other.html#gone">x</a><a href="https://example.org/">x</a><p>a list\n- one\n- two</p>'
        "<p>fine - <code>\n- code</code></p><p>\n| a | b |</p>"
    )
    (tmp_path / "other.html").write_text('<h2 id="there">x</h2><a href="#there">x</a><a href=".">x</a>')
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "x.css").write_text("@import '//fonts.example/a.css'; a { b: url(data:x) }")
    assert look_through.looked_through(tmp_path) == [
        "index.html: https://cdn.example/x.js: would be fetched from elsewhere",
        "index.html: a.png: a picture without `alt`",
        "index.html: stands as text: - one",
        "index.html: stands as text: | a | b |",
        "index.html: gone.css leads nowhere",
        "index.html: other.html#gone: other.html has no such anchor",
        "x.css: //fonts.example/a.css: would be fetched",
    ]


def test_a_site_without_pages_is_wrong(tmp_path: Path) -> None:
    assert look_through.looked_through(tmp_path) == [f"{tmp_path}: no page"]
