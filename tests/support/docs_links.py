"""Links of Markdown pages: lists them and finds broken ones, without the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

REPOSITORY = Path(__file__).parents[2]
_FENCED = re.compile(r"^(\s*)(```+|~~~+).*?^\1\2[^\S\n]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1", re.DOTALL)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]*)>?(?:\s+\"[^\"]*\")?\s*\)")
_DEFINITION = re.compile(r"^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)


def pages() -> list[Path]:
    """Return all pages whose links are checked."""
    top = [REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")]
    return [*top, *sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "helm" / "replicator" / "README.md"]


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[`*]", "", text)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page; a repeated heading gets a number at its end."""
    text = _FENCED.sub("", page.read_text())
    found: dict[str, int] = {}
    for heading in _HEADING.findall(text):
        found[name] = found.get(name := slug(heading), -1) + 1
    numbered = {f"{name}-{number}" for name, times in found.items() for number in range(1, times + 1)}
    return frozenset({*found, *numbered, *re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)})


def links(text: str) -> Iterator[tuple[int, str]]:
    """Yield each link of a page with its line."""
    blank = _FENCED.sub(lambda code: "\n" * code[0].count("\n"), text)
    blank = _CODE.sub(lambda code: "\n" * code[0].count("\n") + "`", blank)
    for pattern in (_LINK, _DEFINITION):
        for match in pattern.finditer(blank):
            yield blank.count("\n", 0, match.start(1)) + 1, match[1]


def broken(page: Path, text: str) -> list[str]:
    """Return a line of text for each broken link of a page."""
    wrong = []
    for line, link in links(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        place = (page.parent / unquote(path)).resolve() if path else page
        if not place.is_relative_to(REPOSITORY) or not place.exists():
            wrong.append(f"{page.relative_to(REPOSITORY)}:{line}: {link} leads nowhere")
        elif anchor and place.suffix == ".md" and unquote(anchor) not in anchors(place):
            wrong.append(f"{page.relative_to(REPOSITORY)}:{line}: {link}: no heading of that page has this anchor")
    return wrong
