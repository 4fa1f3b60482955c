"""Pages as of loading (audit log, drills, policies) in a real browser and by the keyboard."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

from conftest import Cuttable, clean_in_every_way, go_to, opened
from drill_run_support import keep, two_runs

from replicator.drills.run_store import StorePlace

if TYPE_CHECKING:
    from playwright.sync_api import Page


def set_ttl(clusters: Cuttable, seconds: int | None) -> None:
    """Set the policy in A alone; None takes it back."""
    url = clusters.url("A", "/admin/v2/namespaces/public/default/messageTTL")
    headers, method = {"Content-Type": "application/json"}, "DELETE" if seconds is None else "POST"
    content = None if seconds is None else str(seconds).encode()
    urllib.request.urlopen(urllib.request.Request(url, content, headers, method=method), timeout=30).close()


def test_a_change_is_found_in_the_audit_log_with_what_was_before_and_after(page: Page, clusters: Cuttable) -> None:
    set_ttl(clusters, 4711)
    set_ttl(clusters, None)
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


def test_where_policies_differ_between_clusters_is_seen_by_the_keyboard(page: Page, clusters: Cuttable) -> None:
    set_ttl(clusters, 4711)
    try:
        opened(page, clusters, "/dashboard/policies?search=default")
        row = page.locator("#namespaces tbody tr", has_text="public/default")
        row.locator(".tone.warn", has_text="differ").wait_for()
        clean_in_every_way(page, "policies")
        go_to(page, "public/default")
        page.keyboard.press("Enter")
        policy = page.locator("#policies tbody tr", has_text="Message TTL")
        policy.wait_for()
        assert policy.locator("td strong").all_inner_texts() == ["4\u202f711 seconds", "no limit"]
        clean_in_every_way(page, "namespace")
    finally:
        set_ttl(clusters, None)
