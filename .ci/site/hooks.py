"""MkDocs hooks beside mkdocs.yml: the menu's other pages, pages that lie outside docs/, links to code.

* Pages that `nav` does not name stand under "More" (:mod:`navigation`).
* The page of decisions lists the records in its folder.
* `extra.elsewhere` brings pages of the repository that are not in docs/. Links to them lead there.
* Links to other files of the repository are shown as what they name, without a link: the site has no code.
* A link to a folder leads to its README.md, as it does where the repository is read.
* Lists and tables are taken as GitHub takes them (:func:`understood`).
* A picture that has a dark version (`NAME-dark.svg` beside `NAME.svg`, or of another kind) is shown as the palette is.
* Anchors are made as GitHub makes them, so that a link works in both places.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Final

import pymdownx.slugs
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import navigation

ROOT: Final = Path(__file__).parents[2]
_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) ")
_CODE: Final = re.compile(r"`[^`]*`")
_PICTURE: Final = re.compile(r"!\[([^\]]*)\]\(([^)\s#]+\.svg)\)")
_LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"]["slugify"] = pymdownx.slugs.slugify(case="lower")
    docs = Path(config.docs_dir)
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} | set(config.extra["elsewhere"])
    unlisted = config.not_in_nav
    shown = {page for page in pages if unlisted is None or not unlisted.match_file(page)}
    try:
        config.nav, more = navigation.completed(config.nav or [], shown, config.extra["awaited"])
    except navigation.NavigationBroken as broken:
        raise PluginError(str(broken)) from None
    for page in more:
        print(f"docs/{page} is under More; to put it elsewhere, name it in `nav` of .ci/site/mkdocs.yml")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, place in config.extra["elsewhere"].items():
        files.append(File.generated(config, page, content=(ROOT / place).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    elsewhere: dict[str, str] = config.extra["elsewhere"]
    name = page.file.src_uri
    if name == "adr/README.md":
        records = (ROOT / "docs" / "adr").glob("0*.md")
        markdown += navigation.records({record.name: record.read_text() for record in records})
    here = posixpath.dirname(elsewhere.get(name) or f"docs/{name}")
    pages_of = {place: page for page, place in elsewhere.items()}

    def led(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        place = posixpath.normpath(posixpath.join(here, target))
        if (ROOT / place).is_dir():
            place = posixpath.join(place, "README.md")
        if place == "README.md":
            place = "docs/index.md"
        if place in pages_of:
            page_there = pages_of[place]
        elif place.startswith("docs/"):
            page_there = place.removeprefix("docs/")
        elif (ROOT / place).exists():
            return text
        else:
            return link[0]  # MkDocs says that it leads nowhere
        return f"[{text}]({posixpath.relpath(page_there, posixpath.dirname(name) or '.')}{anchor})"

    def drawn(picture: re.Match[str]) -> str:
        words, place = picture[1], picture[2]
        stem, ending = posixpath.splitext(place)
        dark = f"{stem}-dark{ending}"
        if not (ROOT / posixpath.normpath(posixpath.join(here, dark))).is_file():
            return picture[0]
        return f"![{words}]({place}#only-light){{.drawn}} ![{words}]({dark}#only-dark){{.drawn}}"

    return "".join(
        part if is_code else _PICTURE.sub(drawn, _LINK.sub(led, understood(part))) for part, is_code in _parts(markdown)
    )


def understood(text: str) -> str:
    """Turn GitHub's Markdown into Python-Markdown's, in which a list needs an empty line before it, and a bar in the
    code of a table's cell no escape."""
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        if _ITEM.match(line) and before.strip() and not (_ITEM.match(before) or before[0].isspace()):
            lines.append("")
        lines.append(_CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line)
    return "\n".join(lines)


def _parts(markdown: str) -> list[tuple[str, bool]]:
    """Return the text in its order, cut where fenced code begins and ends."""
    parts = re.split(r"(^```.*?^```[^\S\n]*$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return [(part, index % 2 == 1) for index, part in enumerate(parts)]
