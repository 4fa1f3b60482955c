"""A drill that is started in a real browser by the keyboard, watched, and put beside an earlier one; and one that is
ended before its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conftest import Cuttable, clean_in_every_way, go_to, opened

if TYPE_CHECKING:
    from playwright.sync_api import Page

START, END = "Start the drill", "End this drill"
DRILL_MS_MAX = 200_000
HTTP_NOT_FOUND = 404


def begun(page: Page, clusters: Cuttable, messages: int) -> None:
    opened(page, clusters, "/dashboard/drills/start")
    page.locator("#messages").fill(str(messages))
    page.locator("#rate").fill("300")
    page.locator("#typed").focus()
    page.keyboard.type("public/canary")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard/drills/run?**")


def test_a_drill_is_started_watched_and_put_beside_an_earlier_one(page: Page, clusters: Cuttable) -> None:
    opened(page, clusters, "/dashboard/drills")
    go_to(page, "Start a drill…")
    page.keyboard.press("Enter")
    page.locator("h1", has_text="Start a drill").wait_for()
    clean_in_every_way(page, "drill-start")
    page.locator("#messages").fill("99")
    page.locator("#typed").fill("public/canary")
    go_to(page, START)
    page.keyboard.press("Enter")
    page.locator("#error-messages", has_text="must be a number from 100 to").wait_for()
    assert page.locator("#messages").get_attribute("aria-invalid") == "true"
    clean_in_every_way(page, "drill-start-refused")
    for number in range(2):
        begun(page, clusters, 300)
        page.locator("#counts tbody tr", has_text="confirmed").wait_for(timeout=DRILL_MS_MAX)
        if number == 0:
            clean_in_every_way(page, "drill-going")
        page.locator("#state .tone", has_text="passed").wait_for(timeout=DRILL_MS_MAX)
        clean_in_every_way(page, "drill-ended")
    assert clusters.get("A", "/admin/v2/persistent/public/canary") == []
    go_to(page, "Its report")
    page.keyboard.press("Enter")
    page.locator("h1", has_text="Drill move").wait_for()
    opened(page, clusters, "/dashboard/drills")
    rows = page.locator("#drills tbody tr", has_text="move")
    assert rows.count() == 2
    go_to(page, "Compare")
    page.keyboard.press("Enter")
    page.locator("#compared").wait_for()


def test_a_drill_is_ended_before_its_time_and_leaves_nothing(page: Page, clusters: Cuttable) -> None:
    begun(page, clusters, 20_000)
    page.locator("#counts tbody tr", has_text="confirmed").wait_for(timeout=DRILL_MS_MAX)
    address = page.url
    opened(page, clusters, "/dashboard/drills/start")
    page.get_by_role("link", name="watch it").wait_for()  # one at a time
    page.goto(address)
    go_to(page, END)
    page.keyboard.press("Enter")
    page.locator("#state .tone", has_text="ended by operator").wait_for(timeout=DRILL_MS_MAX)
    assert clusters.get("A", "/admin/v2/persistent/public/canary") == []
    assert clusters.get("B", "/admin/v2/persistent/public/canary") == []
    clean_in_every_way(page, "drill-ended-before")
