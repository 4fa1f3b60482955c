"""Looks through a site that was built: `python look_through.py DIRECTORY`. Ends with 1 where something is wrong.

What MkDocs does not see:

* something that a reader's browser would fetch from elsewhere;
* a link to a page, a file or an anchor that is not there, also in what the theme makes;
* Markdown that was not understood, and stands as text: an item of a list, a row of a table;
* a picture without words for who does not see it.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_FETCHED: Final = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}
_NOT_FETCHED: Final = frozenset({"canonical", "prev", "next", "alternate"})
_AS_TEXT: Final = re.compile(r"(?:^|\n)\s*(?:[-*] \S|\d+\. \S|\|.*\|)[^\n]{0,60}")
_CSS_URL: Final = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")
_APART: Final = frozenset({"code", "pre", "strong", "nav"})
"""Tags whose text is not searched for Markdown that was not understood."""
_BLOCKS: Final = frozenset({"p", "li", "td"})


@dataclass(slots=True)
class Seen:
    """Anchors, links and faults of one page."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class PageReader(HTMLParser):
    """Parser that collects one page's :class:`Seen`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()
        self._block: list[str] | None = None
        self._apart = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.seen.anchors.add(given["id"])
        if tag == "a" and "name" in given:
            self.seen.anchors.add(given["name"])
        if tag == "a" and "href" in given:
            self.seen.links.append(given["href"])
        place = given.get(_FETCHED.get(tag, ""), "")
        if place and given.get("rel") not in _NOT_FETCHED:
            self._fetched(place)
        if tag == "img" and not given.get("alt"):
            self.seen.wrong.append(f"{place}: a picture without `alt`")
        if tag in _APART:
            self._apart += 1
        if tag in _BLOCKS:
            self._ended()
            self._block = []

    def _fetched(self, place: str) -> None:
        if place.startswith(("http:", "https:", "//")):
            self.seen.wrong.append(f"{place}: would be fetched from elsewhere")
        elif not place.startswith("data:"):
            self.seen.links.append(place)

    def handle_endtag(self, tag: str) -> None:
        if tag in _APART:
            self._apart -= 1
        if tag in _BLOCKS or tag in ("ul", "ol", "table"):
            self._ended()

    def handle_data(self, text: str) -> None:
        if self._block is not None:
            self._block.append("" if self._apart else text)

    def _ended(self) -> None:
        if self._block is not None and (found := _AS_TEXT.search("".join(self._block))):
            self.seen.wrong.append(f"stands as text: {found[0].strip()}")
        self._block = None


def looked_through(site: Path) -> list[str]:
    """Return the faults of a site, a line each."""
    site = site.resolve()
    pages: dict[Path, Seen] = {}
    for path in sorted(site.rglob("*.html")):
        reader = PageReader()
        reader.feed(path.read_text())
        reader.close()
        pages[path] = reader.seen
    wrong = [f"{path.relative_to(site)}: {what}" for path, seen in pages.items() for what in seen.wrong]
    for path, seen in pages.items():
        wrong += [f"{path.relative_to(site)}: {what}" for link in seen.links if (what := _of(link, path, site, pages))]
    for path in sorted(site.rglob("*.css")):
        wrong += [
            f"{path.relative_to(site)}: {found}: would be fetched" for found in _CSS_URL.findall(path.read_text())
        ]
    return wrong if pages else [f"{site}: no page"]


def _of(link: str, path: Path, site: Path, pages: dict[Path, Seen]) -> str | None:
    """Return the fault of a link; None if it has none, or if it leaves the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    # The page for a missing address has links from the site's top.
    start = site if parts.path.startswith("/") else path.parent
    there = Path(os.path.normpath(start / unquote(parts.path).lstrip("/"))) if parts.path else path
    if there.is_dir():
        there = there / "index.html"
    if not there.is_file():
        return f"{link} leads nowhere"
    known = pages.get(there)
    if parts.fragment and known is not None and unquote(parts.fragment) not in known.anchors:
        return f"{link}: {there.name} has no such anchor"
    return None


if __name__ == "__main__":
    found = looked_through(Path(sys.argv[1]))
    print("\n".join(found) if found else f"{sys.argv[1]}: every link leads somewhere, and nothing is fetched")
    sys.exit(1 if found else 0)
