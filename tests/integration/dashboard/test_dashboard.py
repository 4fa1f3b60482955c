"""The dashboard over HTTP: who gets in, what every answer bears, and that programs are answered as before."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from dashboard_support import FORM, PAGE, cookie_of, form_token, signed_in
from drill_run_support import kept_runs
from security_support import Secrets
from served_worker import ServedWorker, served_worker

from replicator.dashboard.access_control import HEADERS
from replicator.dashboard.routes import STATIC
from replicator.drills.run_store import StorePlace

CHANGES = {
    "/dashboard/link": ({"cluster": "us-east", "key": "us-east>x", "action": "pause"}, 404),
    "/dashboard/gap": (
        {"cluster": "us-east", "key": "us-east>x", "topic": "a", "policy": "copy-anew", "understood": "yes"},
        404,
    ),
    "/dashboard/failover/dry-run": ({"kind": "planned", "from": "us-east", "to": "us-east"}, 303),
    "/dashboard/failover/switch": ({"id": "none", "typed": "us-east"}, 404),
    "/dashboard/drills/start": ({"namespace": "a/b", "messages": "100", "rate": "100", "typed": "a/b"}, 409),
    "/dashboard/drills/end": ({"id": "none"}, 404),
    "/dashboard/policy": (
        {"namespace": "a/b", "policy": "messageTTL", "in.us-east": "yes", "value": "1", "action": "set"},
        409,
    ),
    "/dashboard/namespaces/new": ({"namespace": "public/default", "in.us-east": "yes"}, 409),
    "/dashboard/namespace/delete": ({"name": "a/b", "typed": "a/b", "in.us-east": "yes"}, 409),
    "/dashboard/permissions": (
        {"namespace": "a/b", "role": "app", "may.consume": "yes", "in.us-east": "yes", "action": "grant"},
        409,
    ),
}
"""Forms that change something, or ask for it in somebody's name; and what comes of them here for who may."""
PAGES = (
    "/",
    "/dashboard/failover",
    "/dashboard/spark",
    "/dashboard/drills",
    "/dashboard/drills/start",
    "/dashboard/policies",
    "/dashboard/policies?search=nothing-has-that",
    "/dashboard/namespace?name=public/default",
    "/dashboard/namespaces/new",
    "/dashboard/namespace/delete?name=public/default",
    "/dashboard/permissions?namespace=public/default",
    "/dashboard/permissions?topic=public/default/there",
    "/dashboard/topic-policies?topic=public/default/there",
    "/dashboard/policy?namespace=public/default&policy=retention",
    "/dashboard/policy?topic=public/default/there&policy=messageTTL",
    "/dashboard/audit",
    "/dashboard/audit?search=nothing-has-that",
    "/dashboard/links",
    "/dashboard/topics",
    "/dashboard/topics?search=nothing-has-that",
    "/dashboard/topic?topic=public/default/there",
    "/dashboard/subscription?topic=public/default/there&name=sub",
)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.made(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def closed(secrets: Secrets) -> Iterator[ServedWorker]:
    """Yield a worker that asks for credentials; requests of this fixture show none by themselves."""
    auth = secrets.auth(permissions={"public/default": {"app": ["produce", "consume"]}})
    auth["passwords"] = str(secrets.passwords(operator="right", app="right"))
    with served_worker(sections={"auth": auth}) as served:
        shown = {"Authorization": f"Bearer {secrets.token('operator')}"}
        assert served.ask("PUT", "persistent/public/default/there", headers=shown).status == 204
        path = "persistent/public/default/there/subscription/sub"
        assert served.ask("PUT", path, headers=shown).status == 204
        yield served


@pytest.fixture(scope="module")
def opened() -> Iterator[ServedWorker]:
    """Yield a worker that asks for no credentials."""
    with served_worker() as served:
        yield served


def test_programs_that_ask_for_the_root_are_answered_as_before(opened: ServedWorker, closed: ServedWorker) -> None:
    asked = opened.ask("GET", "/")
    assert (asked.status, asked.json["error"]) == (404, "NotFound")
    asked = closed.ask("GET", "/")
    assert (asked.status, asked.json["error"]) == (401, "NotIdentified")


@pytest.mark.parametrize("path", PAGES)
def test_every_page_bears_what_keeps_it_to_itself(opened: ServedWorker, path: str) -> None:
    answer = opened.ask("GET", path, headers=PAGE)
    assert answer.status == 200, answer.content
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert answer.headers["Cache-Control"] == "no-store"
    text = answer.content.decode()
    assert "<script>" not in text
    assert not re.search(r"\s(style|on\w+)=", text)
    assert set(re.findall(r'(?:src|href)="(\w+:|//)', text)) == set()


def test_who_has_not_signed_in_is_sent_there_and_comes_back_to_the_page(closed: ServedWorker) -> None:
    sent = closed.ask("GET", "/dashboard/topics?search=a b", headers=PAGE)
    assert sent.status == 303
    assert sent.headers["Location"] == "/dashboard/sign-in?next=%2Fdashboard%2Ftopics%3Fsearch%3Da%2520b"
    assert closed.ask("GET", "/", headers=PAGE).headers["Location"] == "/dashboard/sign-in"


def test_who_shows_a_token_or_a_password_of_a_superuser_is_in_until_signing_out(
    closed: ServedWorker, secrets: Secrets
) -> None:
    for fields in ({"token": secrets.token("operator")}, {"name": "operator", "password": "right"}):
        answer, before = signed_in(closed, **fields)
        assert (answer.status, answer.headers["Location"]) == (303, "/dashboard/topics")
        told = answer.headers["Set-Cookie"]
        assert "HttpOnly" in told
        assert "SameSite=Strict" in told
        assert secrets.token("operator") not in told
        cookie = cookie_of(answer)
        assert cookie != before  # whoever knew the old one knows nothing of the new one
        assert closed.ask("GET", "/", headers={**PAGE, **before}).status == 303
        page = closed.ask("GET", "/dashboard/topics", headers={**PAGE, **cookie})
        assert page.status == 200
        assert "public/default/there" in page.content.decode()
        # The cookie counts for the dashboard alone.
        assert closed.ask("GET", "/admin/v2/tenants", headers=cookie).status == 401
        assert closed.ask("GET", "/replication/v1/status", headers=cookie).status == 401
        body = urlencode({"form_token": form_token(page)})
        assert closed.ask("POST", "/dashboard/sign-out", body, {**FORM, **cookie}).status == 303
        assert closed.ask("GET", "/", headers={**PAGE, **cookie}).status == 303


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"token": "app"}, 403),
        ({"token": "garbage"}, 401),
        ({}, 401),
        ({"name": "operator", "password": "wrong"}, 401),
        ({"name": "app", "password": "right"}, 403),
    ],
)
def test_others_are_told_why_they_stay_outside(
    closed: ServedWorker, secrets: Secrets, fields: dict[str, str], status: int
) -> None:
    shown = {
        name: secrets.token("app") if value == "app" and name == "token" else value for name, value in fields.items()
    }
    answer, _ = signed_in(closed, **shown)
    assert answer.status == status
    assert 'role="alert"' in answer.content.decode()
    assert "Set-Cookie" not in answer.headers


def test_a_form_of_nowhere_or_of_another_browser_does_nothing(closed: ServedWorker, secrets: Secrets) -> None:
    token = secrets.token("operator")
    one, another = (closed.ask("GET", "/dashboard/sign-in", headers=PAGE) for _ in range(2))
    for headers, sent in (
        ({}, ""),
        (cookie_of(one), ""),
        (cookie_of(one), form_token(another)),
        ({}, form_token(one)),
    ):
        body = urlencode({"form_token": sent, "token": token})
        answer = closed.ask("POST", "/dashboard/sign-in", body, {**FORM, **headers})
        assert answer.status == 403, answer.content
    as_json = json.dumps({"form_token": form_token(one), "token": token})
    answer = closed.ask("POST", "/dashboard/sign-in", as_json, cookie_of(one))
    assert (answer.status, answer.json["error"]) == (403, "FormRefused")


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_needs_a_superuser_and_the_form_of_their_browser(
    closed: ServedWorker, secrets: Secrets, path: str
) -> None:
    fields, status = CHANGES[path]
    cookie = cookie_of(signed_in(closed, token=secrets.token("operator"))[0])
    token = form_token(closed.ask("GET", "/dashboard/failover", headers={**PAGE, **cookie}))
    another = form_token(closed.ask("GET", "/dashboard/sign-in", headers=PAGE))
    for sent in ("", another, token[::-1]):
        answer = closed.ask("POST", path, urlencode({**fields, "form_token": sent}), {**FORM, **cookie})
        assert (answer.status, b"not one of this browser" in answer.content) == (403, True)
    as_json = json.dumps({**fields, "form_token": token})
    assert closed.ask("POST", path, as_json, cookie).json["error"] == "FormRefused"
    small = {"Authorization": f"Bearer {secrets.token('app')}"}
    whole = urlencode({**fields, "form_token": token})
    assert closed.ask("POST", path, whole, {**FORM, **cookie, **small}).status == 403
    assert closed.ask("POST", path, whole, {**FORM, "Cookie": "x=y"}).status == 401
    answer = closed.ask("POST", path, whole, {**FORM, **cookie})
    assert answer.status == status, answer.content


def test_what_costs_something_is_not_done_before_it_is_said_to_be_understood(opened: ServedWorker) -> None:
    shown = opened.ask("GET", "/dashboard/sign-in", headers=PAGE)
    page = opened.ask("GET", "/dashboard/failover", headers={**PAGE, **cookie_of(shown)})
    fields, _ = CHANGES["/dashboard/gap"]
    body = urlencode({**fields, "understood": "", "form_token": form_token(page)})
    answer = opened.ask("POST", "/dashboard/gap", body, {**FORM, **cookie_of(shown)})
    assert (answer.status, b"tick that you understand" in answer.content) == (400, True)


@pytest.mark.parametrize(
    "onward", ["https://evil.example/", "//evil.example", "/\\evil", "/admin/v2", "/dashboard/events"]
)
def test_signing_in_leads_to_pages_of_the_dashboard_alone(closed: ServedWorker, secrets: Secrets, onward: str) -> None:
    answer, _ = signed_in(closed, token=secrets.token("operator"), next=onward)
    assert (answer.status, answer.headers["Location"]) == (303, "/")


def test_what_somebody_named_is_escaped(opened: ServedWorker) -> None:
    text = opened.ask("GET", "/dashboard/topics?search=<script>alert(1)</script>", headers=PAGE).content.decode()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_drills_that_a_database_keeps_are_listed_shown_and_put_side_by_side(opened: ServedWorker) -> None:
    older, newer = kept_runs(StorePlace("embedded", opened.data))
    assert [each["id"] for each in opened.ask("GET", "/replication/v1/drills").json["drills"]] == [newer.id, older.id]
    assert len(opened.ask("GET", "/replication/v1/drills?newest=1").json["drills"]) == 1
    assert opened.ask("GET", "/replication/v1/drills?newest=0").status == 400
    assert opened.ask("GET", f"/replication/v1/drills/{older.id}").json["report"] == older.report
    assert opened.ask("GET", "/replication/v1/drills/none").status == 404
    listed = opened.ask("GET", "/dashboard/drills", headers=PAGE).content.decode()
    assert listed.index(f'/dashboard/drill?id={newer.id}"') < listed.index(f'/dashboard/drill?id={older.id}"')
    page = opened.ask("GET", f"/dashboard/drill?id={older.id}", headers=PAGE).content.decode()
    assert "deliveries beyond the first" in page
    path = f"/dashboard/drills/compare?first={older.id}&second={newer.id}"
    assert "<strong>planned</strong>" in opened.ask("GET", path, headers=PAGE).content.decode()
    for path in ("/dashboard/drill?id=none", f"/dashboard/drills/compare?first={older.id}&second=none"):
        answer = opened.ask("GET", path, headers=PAGE)
        assert (answer.status, b"no cluster has a drill" in answer.content) == (404, True)


def test_policies_of_namespaces_are_listed_in_pages(
    opened: ServedWorker,
) -> None:
    for number in range(3):
        assert opened.ask("PUT", f"namespaces/public/policies-{number}").status == 204
    assert opened.ask("POST", "namespaces/public/policies-1/messageTTL", "4711").status == 204
    path = "/replication/v1/namespaces?search=POLICIES-&limit=2"
    first = opened.ask("GET", path).json
    names = [each["name"] for each in first["namespaces"]]
    assert (first["matching"], names) == (3, ["public/policies-0", "public/policies-1"])
    assert first["namespaces"][1]["policies"] == {"topic_policies": {"message_ttl_seconds": 4711}}
    rest = opened.ask("GET", f"{path}&after={names[-1]}").json["namespaces"]
    assert [each["name"] for each in rest] == ["public/policies-2"]
    for wrong in ("limit=0", "limit=1001", f"search={'x' * 301}"):
        assert opened.ask("GET", f"/replication/v1/namespaces?{wrong}").status == 400
    listed = opened.ask("GET", "/dashboard/policies?search=policies-", headers=PAGE).content.decode()
    assert re.findall(r"\d set", listed) == ["0 set", "1 set", "0 set"]
    for name, status in (("public/none", 200), ("public", 400), ("public/..", 400), ("a/b/c", 400)):
        answer = opened.ask("GET", f"/dashboard/namespace?name={name}", headers=PAGE)
        assert (answer.status, b"Message TTL" in answer.content) == (status, False), name


def test_what_is_not_there_and_what_is_wrong_is_a_page_for_who_reads_pages(opened: ServedWorker) -> None:
    for path, status, reason in (
        ("/dashboard/nothing", 404, "no page"),
        ("/dashboard/link?cluster=nowhere&key=x", 400, "no cluster"),
        ("/dashboard/topic", 400, "parameter topic is missing"),
        ("/dashboard/topic?topic=a//b", 400, ""),
    ):
        answer = opened.ask("GET", path, headers=PAGE)
        assert (answer.status, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8"), path
        assert reason in answer.content.decode()
        assert "error" in opened.ask("GET", path).json


def test_static_files_are_those_of_the_package_with_their_licences(closed: ServedWorker) -> None:
    for file in STATIC.iterdir():
        answer = closed.ask("GET", f"/dashboard/static/{file.name}")
        assert (answer.status, answer.content) == (200, file.read_bytes())
    for library in STATIC.glob("*.min.*"):
        assert (STATIC / f"{library.name.partition('.')[0]}.LICENSE.txt").is_file()
    for path in ("..%2froutes.py", "routes.py", ".", "%2e%2e%2froutes.py", "x" * 300):
        assert closed.ask("GET", f"/dashboard/static/{path}").status == 404


def test_the_stream_gives_all_parts_first(opened: ServedWorker) -> None:
    connection = opened._connection()
    connection.request("GET", "/dashboard/events?view=map", headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "text/event-stream"
    line = response.readline().decode()
    connection.close()
    assert set(json.loads(line.removeprefix("data: "))) == {"map", "clusters", "links"}
    assert opened.ask("GET", "/dashboard/events?view=nothing").status == 400


def test_a_driver_of_spark_that_no_link_needs_is_said_to_be_none(opened: ServedWorker) -> None:
    page = opened.ask("GET", "/dashboard/spark", headers=PAGE).content.decode()
    assert 'data-view="spark"' in page
    assert "Spark carries no link" in page
    assert re.search(r"us-east</th>.*is not needed", page, re.DOTALL)


def test_topic_figures_come_in_pages(opened: ServedWorker) -> None:
    for number in range(5):
        assert opened.ask("PUT", f"persistent/public/default/paged-{number}").status == 204
    path = "/replication/v1/topic-figures?search=PAGED&limit=2"
    first = opened.ask("GET", path).json
    assert (first["matching"], [each["name"][-1] for each in first["topics"]]) == (5, ["0", "1"])
    name = first["topics"][-1]["name"]
    assert [each["name"][-1] for each in opened.ask("GET", f"{path}&after={name}").json["topics"]] == ["2", "3"]
    assert [each["name"][-1] for each in opened.ask("GET", f"{path}&before={name}").json["topics"]] == ["0"]
    named = opened.ask("GET", f"/replication/v1/topic-figures?topic={name}&topic=public/default/absent").json
    assert [each["name"] for each in named["topics"]] == [name]
    for wrong in ("limit=0", "limit=1001", "limit=x", f"search={'x' * 301}"):
        assert opened.ask("GET", f"/replication/v1/topic-figures?{wrong}").status == 400
    without = opened.ask("GET", "/replication/v1/status?topics=false").json
    assert "topics" not in without
    assert "topics" in opened.ask("GET", "/replication/v1/status").json
