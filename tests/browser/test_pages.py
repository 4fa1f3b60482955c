"""Each page in a real browser: read, worked by the keyboard, narrow and wide, dark and light, and live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from conftest import Cuttable, axe, clean_in_every_way, go_to, opened, picture

from replicator.client import Client, InitialPosition
from replicator.dashboard.overview import LinkRow
from replicator.dashboard.rendering import render
from replicator.dashboard.spark_rows import Backfill, QueryRow

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOPIC = "persistent://public/default/orders"
PAGES = {
    "map": "/",
    "links": "/dashboard/links",
    "link": "/dashboard/link?cluster=A&key=A%3EB",
    "topics": "/dashboard/topics",
    "topic": f"/dashboard/topic?topic={TOPIC}",
    "subscription": f"/dashboard/subscription?topic={TOPIC}&name=billing",
    "spark": "/dashboard/spark",
    "sign-in": "/dashboard/sign-in",
    "absent": "/dashboard/nothing",
}
SHOWN_SECONDS_MAX = 3.0
"""Time within which a page shows that a link was cut."""


@pytest.fixture(scope="session")
def filled(clusters: Cuttable) -> Cuttable:
    """Fill the clusters with messages, some acknowledged out of order, and with topics for several pages."""

    async def fill() -> None:
        async with Client(clusters.client_url("A")) as client:
            consumer = await client.subscribe(
                TOPIC,
                "billing",
                replicate_subscription_state_enabled=True,
                initial_position=InitialPosition.Earliest,
            )
            producer = await client.create_producer(TOPIC)
            for number in range(20):
                await producer.send(f"order {number}".encode())
            for number in range(20):
                message = await consumer.receive()
                if number < 5 or number % 2:
                    await consumer.acknowledge(message)
            await consumer.close()

    clusters.run(fill())
    for number in range(60):
        clusters.make_topic("A", f"many-{number:03}")

    def synced() -> bool:
        found = clusters.get("B", f"/replication/v1/subscriptions?topic={TOPIC}")["subscriptions"]
        return bool(found) and len(found[0]["individually_deleted"]) >= 7

    clusters.until(lambda: any(each["name"] == TOPIC for each in topics_of(clusters, "B")), "the topic's copy")
    clusters.until(synced, "the sync of what was acknowledged")
    return clusters


def topics_of(clusters: Cuttable, name: str) -> list[dict[str, object]]:
    return list(clusters.get(name, "/replication/v1/topics")["topics"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_clean_for_screen_readers_and_readable_at_360_pixels(
    page: Page, filled: Cuttable, name: str, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    opened(page, filled, PAGES[name])
    picture(page, f"{name}-{scheme}")
    assert axe(page) == []
    assert page.locator("h1").count() == 1
    page.set_viewport_size({"width": 360, "height": 740})
    picture(page, f"{name}-{scheme}-360")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert axe(page) == []


def test_a_link_that_is_cut_is_seen_on_the_map_within_three_seconds_and_mended_too(
    page: Page, filled: Cuttable
) -> None:
    opened(page, filled, "/")
    row = page.locator('[id="link-A>B"]')
    row.locator(".tone.good").wait_for()
    filled.cut(cut=True)
    try:
        began = time.monotonic()
        row.locator(".tone.bad").wait_for()
        seconds = time.monotonic() - began
        page.locator(".map line.link.bad").wait_for(state="attached")
        picture(page, "map-cut")
        assert seconds < SHOWN_SECONDS_MAX
        assert "B" in page.locator("#cluster-B").inner_text()
        page.locator("#cluster-B .tone.good").wait_for()
    finally:
        filled.cut(cut=False)
    row.locator(".tone.good").wait_for()


def test_topics_are_searched_and_paged_by_the_keyboard_alone(page: Page, filled: Cuttable) -> None:
    opened(page, filled, "/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    go_to(page, "Topics")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard/topics")
    go_to(page, "Next page")
    page.keyboard.press("Enter")
    page.wait_for_url("**after=**")
    page.get_by_text("many-059", exact=False).first.wait_for()
    page.locator("#search").focus()
    page.keyboard.type("bill")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=bill**")
    assert page.locator("#topics th[scope=rowgroup]").all_inner_texts() == ["public/default/orders"]
    go_to(page, "billing")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard/subscription?**")


def test_a_subscription_is_shown_side_by_side_with_what_a_failover_would_do(page: Page, filled: Cuttable) -> None:
    opened(page, filled, PAGES["subscription"])
    states = page.locator("#states")
    heads = states.locator("thead th").all_inner_texts()
    assert heads == ["Field", "A", "B"]
    row = states.locator("tr", has_text="acknowledged beyond it").locator("td")
    assert [len(cell.splitlines()) for cell in row.all_inner_texts()] == [7, 7]
    what_if = page.locator("#whatif-A-B")
    assert what_if.locator("td").all_inner_texts()[:2] == ["0", "0"]
    assert "equal" in what_if.inner_text()


def test_what_a_failover_would_lose_is_counted_while_the_link_is_cut(page: Page, filled: Cuttable) -> None:
    filled.cut(cut=True)
    try:

        async def publish() -> None:
            async with Client(filled.client_url("A")) as client:
                producer = await client.create_producer(TOPIC)
                for number in range(7):
                    await producer.send(f"stranded {number}".encode())

        filled.run(publish())
        opened(page, filled, PAGES["subscription"])
        missing = page.locator("#whatif-A-B td").first
        page.wait_for_function("element => element.innerText === '7'", arg=missing.element_handle())
        picture(page, "subscription-cut")
    finally:
        filled.cut(cut=False)
    page.wait_for_function("element => element.innerText === '0'", arg=missing.element_handle())


def test_what_changes_leaves_focus_and_scroll_where_they_are(page: Page, filled: Cuttable) -> None:
    opened(page, filled, "/dashboard/topics?search=orders")
    link = page.locator("#topics a", has_text="orders")
    link.focus()
    before = page.locator("#topics").bounding_box()

    async def publish() -> None:
        async with Client(filled.client_url("B")) as client:
            producer = await client.create_producer(TOPIC)
            for number in range(3):
                await producer.send(f"more {number}".encode())

    told = page.locator("#topics tr.topic-row", has_text="orders").locator("td").last
    shown = told.inner_text()
    filled.run(publish())
    page.wait_for_function("([cell, text]) => cell.innerText !== text", arg=[told.element_handle(), shown])
    assert page.evaluate("document.activeElement.textContent").strip() == "public/default/orders"
    assert page.locator("#topics").bounding_box() == before


def test_queries_of_spark_are_clean_for_screen_readers_and_readable_at_360_pixels(
    page: Page, clusters: Cuttable
) -> None:
    """These clusters have none: Spark takes minutes to start. What a page would show of one is put into it."""
    link = LinkRow("A", "B", "A>B", "good", "backfilling", "a detail", lag_ms=90, backlog_entries=3)
    rows = [QueryRow(link, "host 4711 query", 5_000, Backfill(1_000_000, 250_000, 75)), QueryRow(link, "", 0, None)]
    opened(page, clusters, PAGES["spark"])
    page.locator("#drivers tbody tr", has_text="is not needed").first.wait_for()
    shown = render("parts/spark_queries.html", rows=rows)
    page.evaluate("html => { document.getElementById('queries').innerHTML = html }", shown)
    assert page.locator("#queries progress").count() == 1
    clean_in_every_way(page, "spark-queries")


def test_a_page_says_when_it_is_not_live_any_more(page: Page, filled: Cuttable) -> None:
    opened(page, filled, "/")
    page.context.set_offline(True)
    page.evaluate("window.dispatchEvent(new Event('pagehide'))")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.locator("#live", has_text="Not connected").wait_for()
    page.context.set_offline(False)
    page.locator("#live", has_text="Live").wait_for()
