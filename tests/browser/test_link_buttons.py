"""Changes to links in a real browser and by the keyboard: pausing, resuming, and ending a gap."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any

from conftest import Cuttable, clean_in_every_way, go_to, opened

from replicator.client import Client

if TYPE_CHECKING:
    from playwright.sync_api import Page

LINK = "/dashboard/link?cluster=A&key=A%3EB"
TOPIC = "persistent://public/default/made-anew"


def link(clusters: Cuttable) -> Any:
    return clusters.get("A", "/replication/v1/links/A%3EB")


def test_a_link_is_paused_and_goes_on_by_the_keyboard(page: Page, clusters: Cuttable) -> None:
    opened(page, clusters, LINK)
    go_to(page, "Pause this link")
    page.keyboard.press("Enter")
    page.locator(".told", has_text="paused").wait_for()
    page.locator("#figures .tone.warn", has_text="paused").wait_for()
    assert link(clusters)["paused"]
    clean_in_every_way(page, "link-paused")
    go_to(page, "Let this link go on")
    page.keyboard.press("Enter")
    page.locator(".told", has_text="goes on").wait_for()
    assert not link(clusters)["paused"]
    page.locator("#figures .tone.good").wait_for()


def publish(clusters: Cuttable, content: bytes) -> None:
    async def published() -> None:
        async with Client(clusters.client_url("A")) as client:
            await (await client.create_producer(TOPIC)).send(content)

    clusters.run(published())


def test_a_gap_is_ended_after_one_has_understood_what_it_costs(page: Page, clusters: Cuttable) -> None:
    publish(clusters, b"before")
    there = f"/replication/v1/high-water?origin=A&topic={TOPIC}"
    clusters.until(lambda: TOPIC in str(clusters.get("B", there)), "the copy")
    path = "/admin/v2/persistent/public/default/made-anew"
    gone = urllib.request.Request(clusters.url("A", f"{path}?force=true"), method="DELETE")
    urllib.request.urlopen(gone, timeout=30).close()
    publish(clusters, b"anew")
    clusters.until(lambda: link(clusters)["gap_count"], "the gap")
    opened(page, clusters, LINK)
    page.get_by_role("cell", name="made-anew", exact=True).wait_for()
    clean_in_every_way(page, "link-gap")
    go_to(page, "End it for public/default/made-anew…")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard/gap?**")
    clean_in_every_way(page, "gap")
    go_to(page, "Delete the copy and copy anew")
    page.keyboard.press("Enter")  # the browser does not send it before the box is ticked
    understood = page.get_by_role("region", name="Copy the topic anew").locator("input[name=understood]")
    assert understood.evaluate("box => box.validity.valueMissing")
    assert link(clusters)["gap_count"] == 1
    understood.focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator(".told", has_text="copied anew").wait_for()
    page.locator("#gaps", has_text="There are none").wait_for()
    assert link(clusters)["gap_count"] == 0
