"""The menu of the site: what mkdocs.yml says of it, and the pages of docs/ that it does not name, under "More".

Pure: names go in and come out, so that a test can do the same without MkDocs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

MORE: Final = "More"


class NavigationBroken(Exception):
    """The menu names a page that does not exist."""


def named(nav: list[Any]) -> Iterator[str]:
    """Yield the pages of a menu, in its order."""
    for item in nav:
        if isinstance(item, str):
            yield item
            continue
        for below in item.values():
            yield from (below,) if isinstance(below, str) else named(below)


def completed(nav: list[Any], pages: Collection[str], awaited: Collection[str]) -> tuple[list[Any], list[str]]:
    """Return the menu without awaited pages that are missing yet, and with the pages that it does not name; and these.

    Raise :class:`NavigationBroken` if the menu names any other missing page."""
    missing = [page for page in named(nav) if page not in pages and page not in awaited]
    if missing:
        raise NavigationBroken(
            f"`nav` in .ci/site/mkdocs.yml names {', '.join(missing)}, which docs/ does not have: "
            "correct the name, or take the line out"
        )
    more = sorted(set(pages) - set(named(nav)))
    return [*_kept(nav, pages), *([{MORE: more}] if more else [])], more


def records(texts: Mapping[str, str]) -> str:
    """Return a list of records of decisions, whose texts are given by file name: number as a link, and title."""
    titles = {name: text.partition("\n")[0].removeprefix("# ").partition(". ") for name, text in sorted(texts.items())}
    return "\n" + "".join(f"* [{number}]({name}): {title}\n" for name, (number, _, title) in titles.items())


def _kept(nav: list[Any], pages: Collection[str]) -> list[Any]:
    kept: list[Any] = []
    for item in nav:
        if isinstance(item, str):
            kept += [item] if item in pages else []
            continue
        for title, below in item.items():
            if isinstance(below, str):
                kept += [item] if below in pages else []
            elif inside := _kept(below, pages):
                kept.append({title: inside})
    return kept
