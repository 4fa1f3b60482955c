"""A failover guided step by step in a real browser, by the keyboard, while clients publish and consume."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conftest import Cuttable, clean_in_every_way, go_to, opened
from failover_support import Traffic

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOPIC = "persistent://public/default/guided"
MOVE, BACK = "Begin with a dry run", "Begin a failback with a dry run"
ATTEMPTS_MAX = 5
"""A worker that does not answer within two seconds, on a busy machine, is asked again."""


@contextmanager
def traffic_of(clusters: Cuttable) -> Iterator[Traffic]:
    """Run clients of A that follow a switch, until the block ends; then wait until they consumed all they published."""
    traffic = Traffic()

    async def flow() -> None:
        async with clusters.following("A") as producing, clusters.following("A") as consuming:
            await asyncio.gather(traffic.produce(producing, topic=TOPIC), traffic.consume(consuming, topic=TOPIC))

    flowing = asyncio.run_coroutine_threadsafe(flow(), clusters.loop)
    try:
        yield traffic
    finally:
        traffic.stopping = True
        flowing.result(120)


def more(clusters: Cuttable, traffic: Traffic) -> None:
    wanted = len(traffic.acknowledged) + 100
    clusters.until(lambda: len(traffic.acknowledged) >= wanted, "a hundred more messages", 120)


def ended(page: Page, outcome: str) -> bool:
    """Wait for the end of the run on the page. Return whether it ended with ``outcome``.

    Return False if a worker did not answer in time; the caller then runs again. Any other end fails the test.
    """
    page.locator("#progress .tone:not(.warn)").wait_for(timeout=120_000)
    if outcome in page.locator("#progress p").inner_text():
        return True
    assert "in time" in page.locator("#result").inner_text(), page.locator("main").inner_text()
    return False


def tried(page: Page, clusters: Cuttable, cluster: str, button: str) -> None:
    """Begin a dry run by the keyboard, and see what it would do."""
    for _ in range(ATTEMPTS_MAX):
        opened(page, clusters, "/dashboard/failover", cluster)
        go_to(page, button)
        page.keyboard.press("Enter")
        page.wait_for_url("**/dashboard/failover/run?**")
        if ended(page, "dry run"):
            return
    raise AssertionError("no dry run was answered in time")


def switched(page: Page, clusters: Cuttable, cluster: str, button: str, name: str) -> None:
    """Type the name behind a dry run, and wait for the switch to end well."""
    for _ in range(ATTEMPTS_MAX):
        page.locator("#typed").focus()
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        page.locator("h1", has_text="Switch:").wait_for()
        if ended(page, "done"):
            assert page.locator("#not-received").inner_text() == "0 messages"
            assert page.locator("#may-be-repeated").inner_text() == "0 messages"
            return
        tried(page, clusters, cluster, button)
    raise AssertionError("no switch was answered in time")


def test_a_planned_failover_and_back_are_guided_and_lose_and_repeat_nothing(page: Page, clusters: Cuttable) -> None:
    with traffic_of(clusters) as traffic:
        more(clusters, traffic)
        opened(page, clusters, "/dashboard/failover")
        clean_in_every_way(page, "failover")
        tried(page, clusters, "B", MOVE)
        clean_in_every_way(page, "failover-dry-run")
        assert clusters.state("A")["epoch"] == 0

        # What is typed stays when the page becomes live again, and a wrong name switches nothing.
        page.locator("#typed").fill("A")
        page.evaluate("window.dispatchEvent(new Event('pagehide'))")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.locator("#live", has_text="Live").wait_for()
        assert page.locator("#typed").input_value() == "A"
        page.locator("#typed").press("Enter")
        page.get_by_role("alert").filter(has_text="type B").wait_for()
        assert clusters.state("A")["epoch"] == 0

        page.locator("#typed").fill("")
        switched(page, clusters, "B", MOVE, "B")
        clean_in_every_way(page, "failover-done")
        assert (clusters.state("A")["fenced"], clusters.state("B")["epoch"]) == (True, 1)
        more(clusters, traffic)
        page.goto(clusters.url("B"))
        page.locator("#cluster-A", has_text="fenced: B serves its clients").wait_for()

        tried(page, clusters, "A", BACK)  # also from where clients come back to
        switched(page, clusters, "A", BACK, "A")
        assert clusters.state("A")["producers"] == "open"
        more(clusters, traffic)
    assert "B" in traffic.clusters, "nothing was published at B"
    assert traffic.failed == []
    assert traffic.repeated == []
    assert sorted(set(traffic.received)) == traffic.confirmed
    opened(page, clusters, "/dashboard/failover", "A")
    runs = page.locator("#runs tbody tr").all_inner_texts()
    assert "Switch: failback to A" in runs[0]


def test_a_switch_that_cannot_be_made_says_why(page: Page, clusters: Cuttable) -> None:
    opened(page, clusters, "/dashboard/failover")
    go_to(page, BACK)
    page.keyboard.press("Enter")
    page.locator("#result", has_text="A serves its own clients already").wait_for(timeout=120_000)
    assert page.locator("#typed").count() == 0
    clean_in_every_way(page, "failover-impossible")
