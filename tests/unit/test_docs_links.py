"""Every relative link in the documentation leads to a page that is there, and to a heading in it."""

from __future__ import annotations

import docs_links
from docs_links import REPOSITORY


def test_every_link_and_anchor_leads_somewhere() -> None:
    pages = docs_links.pages()
    found = [link for page in pages for link in docs_links.links(page.read_text())]
    wrong = [line for page in pages for line in docs_links.broken(page, page.read_text())]
    assert not wrong, "\n".join(wrong)
    assert len(found) > 200, "links are found at all"


def test_links_that_lead_nowhere_are_found_out() -> None:
    text = (
        "[there](links.md) [a heading](links.md#gaps) ![picture](gone.svg) [no page](gone.md#gaps)\n"
        "[no heading](links.md#gone) [elsewhere](https://example.org/gone.md) `[code](gone.md)`\n"
        "```\n[code](gone.md)\n```\n[last](../gone/)\n[outside](../../outside.md)\n"
    )
    assert docs_links.broken(REPOSITORY / "docs" / "page.md", text) == [
        "docs/page.md:1: gone.svg leads nowhere",
        "docs/page.md:1: gone.md#gaps leads nowhere",
        "docs/page.md:2: links.md#gone: no heading of that page has this anchor",
        "docs/page.md:6: ../gone/ leads nowhere",
        "docs/page.md:7: ../../outside.md leads nowhere",
    ]


def test_anchors_are_made_as_github_makes_them() -> None:
    assert docs_links.slug("Who carries: Spark, or `embedded`?") == "who-carries-spark-or-embedded"
    assert docs_links.slug("[A link](x.md) – and *more*") == "a-link--and-more"
    assert docs_links.slug("`sync.*_ms` in snake_case") == "sync_ms-in-snake_case"
