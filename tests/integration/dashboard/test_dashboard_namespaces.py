"""Namespaces that are made and deleted in the dashboard, and permissions that are given there: what the API is asked,
what pages say of it, and who may."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from dashboard_support import FORM, PAGE, cookie_of, form_token, signed_in
from engine_support import eventually
from security_support import Secrets
from served_worker import Answer, ServedWorker, served_worker

NAMESPACE = "public/made"
PERMISSIONS = f"/dashboard/permissions?namespace={NAMESPACE}"


@pytest.fixture(scope="module")
def worker() -> Iterator[ServedWorker]:
    with served_worker() as served:
        yield served


@pytest.fixture
def made(worker: ServedWorker) -> Iterator[ServedWorker]:
    """Yield a worker that has the namespace."""
    assert worker.ask("PUT", f"namespaces/{NAMESPACE}").status == 204
    yield worker
    worker.ask("DELETE", f"namespaces/{NAMESPACE}?force=true")


def sent(worker: ServedWorker, page: str, **fields: str) -> Answer:
    """Send a form with the hidden fields of its page."""
    opened = worker.ask("GET", page, headers=PAGE)
    assert opened.status == 200, opened.content
    hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', opened.content.decode()))
    address = page.partition("?")[0]
    body = urlencode({**hidden, "in.us-east": "yes", **fields})
    return worker.ask("POST", address, body, {**FORM, **cookie_of(opened)})


def errors(answer: Answer) -> dict[str, str]:
    return dict(re.findall(r'id="error-1-([\w.]+)">([^<]*)<', unescape(answer.content.decode())))


def test_a_namespace_is_made_and_what_it_cannot_be_is_said_beside_its_name(worker: ServedWorker) -> None:
    answer = sent(worker, "/dashboard/namespaces/new", namespace=" public/made ")
    assert answer.status == 303
    assert b"It is made in us-east." in worker.ask("GET", answer.headers["Location"], headers=PAGE).content
    assert NAMESPACE in worker.ask("GET", "namespaces/public").json
    again = sent(worker, "/dashboard/namespaces/new", namespace=NAMESPACE)
    assert (again.status, list(errors(again))) == (409, ["namespace"])
    assert b'value="public/made"' in again.content
    for name in ("", "public", "a/b/c", "public/<b>"):
        refused = sent(worker, "/dashboard/namespaces/new", namespace=name)
        assert (refused.status, list(errors(refused))) == (400, ["namespace"]), name
        assert b"<b>" not in refused.content
    assert worker.ask("DELETE", f"namespaces/{NAMESPACE}").status == 204


def test_a_namespace_is_deleted_when_its_name_is_typed_and_with_topics_when_that_is_said(made: ServedWorker) -> None:
    page = f"/dashboard/namespace/delete?name={NAMESPACE}"
    assert made.ask("PUT", f"persistent/{NAMESPACE}/orders").status == 204
    assert "type public/made" in errors(sent(made, page, typed="public/mad"))["typed"]
    refused = sent(made, page, typed=NAMESPACE)
    assert (refused.status, list(errors(refused))) == (409, ["force"])
    assert NAMESPACE in made.ask("GET", "namespaces/public").json
    answer = sent(made, page, typed=NAMESPACE, force="yes")
    assert answer.status == 303
    assert b"is deleted in us-east." in made.ask("GET", answer.headers["Location"], headers=PAGE).content
    assert NAMESPACE not in made.ask("GET", "namespaces/public").json
    gone = made.ask("GET", page, headers=PAGE)
    assert b"us-east does not have it" in gone.content
    assert b"<form method" not in gone.content


def test_a_role_is_granted_actions_and_all_is_taken_back(made: ServedWorker) -> None:
    path = f"namespaces/{NAMESPACE}/permissions"
    answer = sent(made, PERMISSIONS, role="app/one", action="grant", **{"may.produce": "yes", "may.consume": "yes"})
    assert answer.status == 303, answer.content
    assert b"It is granted in us-east." in made.ask("GET", answer.headers["Location"], headers=PAGE).content
    assert made.ask("GET", path).json == {"app/one": ["consume", "produce"]}
    page = made.ask("GET", f"{PERMISSIONS}&role=app/one", headers=PAGE).content.decode()
    assert re.findall(r'name="may\.(\w+)" value="yes" checked', page) == ["produce", "consume"]
    assert sent(made, PERMISSIONS, role="app/one", action="revoke").status == 303
    assert made.ask("GET", path).json == {}


def test_a_topic_has_what_is_granted_beside_its_namespace(made: ServedWorker) -> None:
    assert made.ask("PUT", f"persistent/{NAMESPACE}/orders").status == 204
    assert made.ask("POST", f"namespaces/{NAMESPACE}/permissions/app", '["consume"]').status == 204
    page = f"/dashboard/permissions?topic={NAMESPACE}/orders"
    assert b"Nothing is granted here." in made.ask("GET", page, headers=PAGE).content
    assert sent(made, page, role="app", action="grant", **{"may.produce": "yes"}).status == 303
    assert made.ask("GET", f"persistent/{NAMESPACE}/orders/permissions").json == {"app": ["consume", "produce"]}
    shown = made.ask("GET", page, headers=PAGE).content.decode()
    assert re.search(r'data-label="Role">app</th>\s*<td data-label="us-east">produce</td>', shown)


def test_what_cannot_be_granted_is_said_beside_its_field_and_nothing_is_changed(made: ServedWorker) -> None:
    may = {"may.produce": "yes"}
    for fields, field in (
        ({"role": "", **may, "action": "grant"}, "role"),
        ({"role": "x" * 5_000, **may, "action": "grant"}, "role"),
        ({"role": "app", "action": "grant"}, "actions"),
    ):
        answer = sent(made, PERMISSIONS, **fields)
        assert (answer.status, list(errors(answer))) == (400, [field]), answer.content
    assert sent(made, PERMISSIONS, role="app", action="both").status == 400
    assert made.ask("GET", f"namespaces/{NAMESPACE}/permissions").json == {}


def test_what_somebody_else_granted_meanwhile_is_not_overwritten(made: ServedWorker) -> None:
    opened = made.ask("GET", PERMISSIONS, headers=PAGE)
    hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', opened.content.decode()))
    assert made.ask("POST", f"namespaces/{NAMESPACE}/permissions/app", '["consume"]').status == 204
    fields = {**hidden, "in.us-east": "yes", "role": "app", "may.produce": "yes", "action": "grant"}
    answer = made.ask("POST", "/dashboard/permissions", urlencode(fields), {**FORM, **cookie_of(opened)})
    assert (answer.status, b"were changed in us-east" in answer.content) == (409, True)
    assert made.ask("GET", f"namespaces/{NAMESPACE}/permissions").json == {"app": ["consume"]}


def test_it_is_asked_in_the_name_of_who_signed_in_and_noted(tmp_path: Path) -> None:
    secrets = Secrets.made(tmp_path)
    with served_worker(sections={"auth": secrets.auth()}, token=secrets.token("operator")) as closed:
        assert closed.ask("PUT", f"namespaces/{NAMESPACE}").status == 204
        cookie = cookie_of(signed_in(closed, token=secrets.token("operator"))[0])
        page = closed.ask("GET", PERMISSIONS, headers={**PAGE, **cookie})
        assert b"The workers ask nobody" not in page.content
        marks = dict(re.findall(r'name="(mark\.[^"]+)" value="(\w+)"', page.content.decode()))
        fields = {
            "form_token": form_token(page), **marks, "namespace": NAMESPACE, "role": "app", "may.consume": "yes",
            "in.us-east": "yes", "action": "grant",
        }  # fmt: skip
        answer = closed.ask("POST", "/dashboard/permissions", urlencode(fields), {**FORM, **cookie})
        assert answer.status == 303, answer.content
        assert closed.ask("GET", f"namespaces/{NAMESPACE}/permissions").json == {"app": ["consume"]}

        def noted() -> bool:
            entries = closed.ask("GET", "/replication/v1/audit").json["entries"]
            wanted = f"namespaces/{NAMESPACE}/permissions/app"
            return any(
                each["subject"] == wanted and each["actor"] == "operator" and "after" in each["detail"]
                for each in entries
            )

        asyncio.run(eventually(noted, "the audit log has it"))
