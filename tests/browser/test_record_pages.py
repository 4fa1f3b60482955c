"""Pages of what is kept in Postgres, in a real browser and by the keyboard."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

from conftest import Cuttable, clean_in_every_way, go_to, opened
from drill_run_support import keep, two_runs

from replicator.drills.run_store import StorePlace

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_a_change_is_found_in_the_audit_log_with_what_was_before_and_after(page: Page, clusters: Cuttable) -> None:
    url = clusters.url("A", "/admin/v2/namespaces/public/default/messageTTL")
    for seconds in (b"4711", b"0"):
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(url, seconds, headers, method="POST"), timeout=30).close()
    rows = page.locator("#audit tbody tr")

    def listed() -> bool:  # as soon as Postgres has both
        opened(page, clusters, "/dashboard/audit?search=messagettl")
        return rows.count() == 2

    clusters.until(listed, "the entries of the audit log")
    rows.first.locator("summary").focus()
    page.keyboard.press("Enter")
    rows.first.locator("pre", has_text="4711").wait_for()
    clean_in_every_way(page, "audit")
    page.locator("#search").fill("nothing-has-that")
    go_to(page, "Search")
    page.keyboard.press("Enter")
    page.locator("#audit", has_text="Nothing was found").wait_for()


def test_drills_are_listed_shown_and_put_side_by_side_by_the_keyboard(page: Page, clusters: Cuttable) -> None:
    older, newer = two_runs()
    clusters.run(keep(StorePlace(clusters._databases["A"], clusters.path), (older, newer)))
    opened(page, clusters, "/dashboard/drills")
    rows = page.locator("#drills tbody tr")
    assert rows.count() == 2
    assert "planned" in rows.first.inner_text()
    clean_in_every_way(page, "drills")
    go_to(page, "Compare")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/dashboard/drills/compare?first={older.id}&second={newer.id}")
    compared = page.locator("#compared tbody tr", has_text="repeated").first
    assert compared.locator("td strong").all_inner_texts() == ["3", "0"]
    clean_in_every_way(page, "drills-compared")
    go_to(page, older.id)
    page.keyboard.press("Enter")
    page.locator("#figures").wait_for()
    assert page.locator("h1").inner_text() == "Drill kill-primary"
    clean_in_every_way(page, "drill")
