"""A namespace that is made, given permissions, and deleted in a real browser, in both clusters, by the keyboard."""

from __future__ import annotations

import json
import urllib.error
from typing import TYPE_CHECKING

import pytest
from conftest import Cuttable, clean_in_every_way, go_to, opened
from test_policy_forms import ask, press

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAME = "public/in-the-browser"
PATH = f"/admin/v2/namespaces/{NAME}"
ROLE = "a-role-with-a-rather-long-name-that-narrow-screens-have-to-break-somewhere"


def test_a_namespace_is_made_given_permissions_and_deleted(page: Page, clusters: Cuttable) -> None:
    opened(page, clusters, "/dashboard/policies")
    press(page, "Make a namespace…")
    page.wait_for_url("**/dashboard/namespaces/new")
    clean_in_every_way(page, "namespace-new")
    name = page.locator("#namespace")
    name.focus()
    name.fill("public")
    page.keyboard.press("Enter")
    page.locator("#error-1-namespace").wait_for()
    assert name.get_attribute("aria-invalid") == "true"
    assert name.input_value() == "public"
    clean_in_every_way(page, "namespace-new-refused")
    name.fill(NAME)
    press(page, "Make it")
    page.locator(".told", has_text="It is made in A, B.").wait_for()
    permissions(page, clusters)
    ask(clusters, "B", "PUT", f"/admin/v2/persistent/{NAME}/orders")
    opened(page, clusters, f"/dashboard/namespace?name={NAME}")
    press(page, "Delete this namespace…")
    page.wait_for_url("**/dashboard/namespace/delete?**")
    clean_in_every_way(page, "namespace-delete")
    page.locator("#typed").fill("public")
    press(page, "Delete it")
    page.locator("#error-1-typed", has_text=f"type {NAME}").wait_for()
    page.locator("#typed").fill(NAME)
    press(page, "Delete it")
    page.locator("[id='error-1-force']", has_text="B refuses").wait_for()  # it has a topic; A does not, and did it
    page.get_by_role("alert").filter(has_text="The namespace is deleted in A. It is not done in B.").wait_for()
    clean_in_every_way(page, "namespace-deleted-in-part")
    page.get_by_label("With all topics in it").focus()
    page.keyboard.press("Space")
    page.locator("#typed").fill(NAME)
    press(page, "Delete it")
    page.locator(".told", has_text="The namespace is deleted in B.").wait_for()
    clean_in_every_way(page, "namespace-deleted")
    for cluster in "AB":
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(clusters, cluster, "GET", PATH)


def permissions(page: Page, clusters: Cuttable) -> None:
    """Grant two actions in both clusters. Take one of them back in A, and then all of them in both clusters."""
    press(page, "Permissions…")
    page.wait_for_url("**/dashboard/permissions?**")
    clean_in_every_way(page, "permissions")
    page.locator("#role").fill(ROLE)
    press(page, "Grant it")
    page.locator("#error-1-actions").wait_for()
    assert page.locator("#role").input_value() == ROLE
    clean_in_every_way(page, "permissions-refused")
    for action in ("produce", "consume"):
        page.get_by_role("checkbox", name=action).focus()
        page.keyboard.press("Space")
    press(page, "Grant it")
    page.locator(".told", has_text="It is granted in A, B.").wait_for()
    clean_in_every_way(page, "permissions-granted")
    for cluster in "AB":
        assert json.loads(ask(clusters, cluster, "GET", f"{PATH}/permissions")) == {ROLE: ["consume", "produce"]}
    press(page, f"Change {ROLE}…")
    page.wait_for_url("**&role=**")
    page.get_by_role("checkbox", name="produce").focus()
    page.keyboard.press("Space")
    page.get_by_role("checkbox", name="B", exact=True).focus()
    page.keyboard.press("Space")
    press(page, "Grant it")
    page.locator(".told", has_text="It is granted in A.").wait_for()
    row = page.locator("#permissions tbody tr")
    assert row.locator("td strong").all_inner_texts() == ["consume", "consume, produce"]
    page.locator("#role").fill(ROLE)
    for box in page.get_by_role("group", name="In", exact=True).get_by_role("checkbox").all():
        if not box.is_checked():
            box.focus()
            page.keyboard.press("Space")
    go_to(page, "Take all back")
    page.keyboard.press("Enter")
    page.locator(".told", has_text="All is taken back in A, B.").wait_for()
    for cluster in "AB":
        assert json.loads(ask(clusters, cluster, "GET", f"{PATH}/permissions")) == {}
