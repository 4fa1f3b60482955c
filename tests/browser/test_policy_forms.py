"""Policies that are changed in a real browser, by the keyboard: of a namespace in two clusters, and of a topic."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Cuttable, clean_in_every_way, go_to, opened

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMESPACE = "/admin/v2/namespaces/public/governed"
SET, UNSET = "Set it", "Take it back"


def ask(clusters: Cuttable, cluster: str, method: str, path: str, body: str | None = None) -> Any:
    request = urllib.request.Request(
        clusters.url(cluster, path), None if body is None else body.encode(), method=method
    )
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.read().decode()


@pytest.fixture
def governed(clusters: Cuttable) -> Iterator[Cuttable]:
    """Both clusters have a namespace, and a topic in it."""
    for cluster in "AB":
        ask(clusters, cluster, "PUT", NAMESPACE)
        ask(clusters, cluster, "PUT", "/admin/v2/persistent/public/governed/orders")
    yield clusters
    for cluster in "AB":
        ask(clusters, cluster, "DELETE", f"{NAMESPACE}?force=true")


def press(page: Page, button: str) -> None:
    go_to(page, button)
    page.keyboard.press("Enter")


def test_a_policy_is_set_in_both_clusters_and_taken_back_by_the_keyboard(page: Page, governed: Cuttable) -> None:
    opened(page, governed, "/dashboard/namespace?name=public/governed")
    clean_in_every_way(page, "policies-of-namespace")
    press(page, "Change Compaction threshold…")
    page.wait_for_url("**/dashboard/policy?**")
    clean_in_every_way(page, "policy")
    value = page.locator("#value")
    value.focus()
    value.fill("soon")
    page.keyboard.press("Enter")  # in the field: that is the first button
    page.locator("[id='error-1-value']", has_text="must be a whole number").wait_for()
    assert value.get_attribute("aria-invalid") == "true"
    assert value.input_value() == "soon"
    clean_in_every_way(page, "policy-refused")
    value.fill("4711")
    press(page, SET)
    page.locator(".told", has_text="It is set in A, B.").wait_for()
    for cluster in "AB":
        assert ask(governed, cluster, "GET", f"{NAMESPACE}/compactionThreshold") == "4711"
    assert page.locator("#now tbody tr").all_inner_texts() == [f"{each}\t4\u202f711 bytes\tnamespace" for each in "AB"]
    clean_in_every_way(page, "policy-set")
    press(page, UNSET)
    page.locator(".told", has_text="It is taken back in A, B.").wait_for()
    for cluster in "AB":
        assert ask(governed, cluster, "GET", f"{NAMESPACE}/compactionThreshold") == ""


def test_where_one_cluster_refuses_the_page_says_where_it_was_done(page: Page, governed: Cuttable) -> None:
    quota = '{"limitTime": 60, "policy": "consumer_backlog_eviction"}'
    ask(governed, "B", "POST", f"{NAMESPACE}/backlogQuota?backlogQuotaType=message_age", quota)
    opened(page, governed, "/dashboard/policy?namespace=public/governed&policy=backlogQuota-size")
    boxes = page.get_by_role("group", name="In", exact=True).get_by_role("checkbox")
    assert [box.is_checked() for box in boxes.all()] == [True, False]  # B differs
    boxes.nth(1).focus()
    page.keyboard.press("Space")
    page.get_by_label("Bytes").fill("1000")
    press(page, SET)
    page.get_by_role("alert").filter(has_text="It is set in A. It is not done in B.").wait_for()
    page.locator("[id='error-1-value.policy']", has_text="B refuses").wait_for()
    assert '"limitSize": 1000' in ask(governed, "A", "GET", f"{NAMESPACE}/backlogQuotaMap")
    assert "1000" not in ask(governed, "B", "GET", f"{NAMESPACE}/backlogQuotaMap")
    clean_in_every_way(page, "policy-in-part")


def test_a_topic_gets_a_policy_of_its_own_in_one_cluster(page: Page, governed: Cuttable) -> None:
    opened(page, governed, "/dashboard/topic?topic=public/governed/orders")
    press(page, "Policies of this topic")
    page.wait_for_url("**/dashboard/topic-policies?**")
    clean_in_every_way(page, "policies-of-topic")
    press(page, "Change Deduplication…")
    page.get_by_label("Deduplication").focus()
    page.keyboard.press("y")
    page.get_by_role("checkbox", name="B").focus()
    page.keyboard.press("Space")
    press(page, SET)
    page.locator(".told", has_text="It is set in A.").wait_for()
    path = "/admin/v2/persistent/public/governed/orders/deduplication"
    assert [ask(governed, cluster, "GET", path) for cluster in "AB"] == ["true", ""]
    press(page, "All policies of public/governed/orders")
    row = page.locator("#policies tbody tr", has_text="Deduplication")
    row.wait_for()
    assert row.locator("td strong").all_inner_texts() == ["yes", "no"]


def test_a_cluster_that_is_away_is_not_changed_and_neither_is_the_other(page: Page, governed: Cuttable) -> None:
    opened(page, governed, "/dashboard/policy?namespace=public/governed&policy=compactionThreshold", "A")
    page.locator("#value").fill("60")
    governed.cut(cut=True)
    try:
        press(page, SET)
        page.get_by_role("alert").filter(has_text="Nothing was changed").wait_for()
        assert ask(governed, "A", "GET", f"{NAMESPACE}/compactionThreshold") == ""
    finally:
        governed.cut(cut=False)
