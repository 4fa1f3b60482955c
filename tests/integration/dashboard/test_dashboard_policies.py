"""Policies that are changed in the dashboard: what is asked of the API, and what its page says of that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import quote, urlencode

import pytest
from dashboard_support import FORM, PAGE, cookie_of, form_token, signed_in
from security_support import Secrets
from served_worker import Answer, ServedWorker, served_worker

TOPIC = "persistent/public/default/governed"
QUOTAS = ("backlogQuota-size", "backlogQuota-age")


@pytest.fixture(scope="module")
def worker() -> Iterator[ServedWorker]:
    """Yield a worker whose topology file sets two policies."""
    policies = {"message_ttl": "1h", "backlog_quota": {"age": "2h"}}
    with served_worker(sections={"policies": policies}) as served:
        assert served.ask("PUT", "persistent/public/default/governed").status == 204
        yield served


@pytest.fixture(autouse=True)
def as_before(worker: ServedWorker) -> Iterator[None]:
    yield
    for policy in ("messageTTL", "retention", "replication", "autoTopicCreation", "deduplication", "backlogQuota"):
        assert worker.ask("DELETE", f"namespaces/public/default/{policy}").status == 204
    assert worker.ask("DELETE", f"{TOPIC}/policies").status == 204


class Form:
    """One page of a policy, as a browser has it."""

    def __init__(self, worker: ServedWorker, policy: str, **of: str) -> None:
        self.worker = worker
        self.of = of or {"namespace": "public/default"}
        self.policy = policy
        path = f"/dashboard/policy?{urlencode({**self.of, 'policy': policy}, quote_via=quote)}"
        answer = worker.ask("GET", path, headers=PAGE)
        assert answer.status == 200, answer.content
        self.text = unescape(answer.content.decode())
        self.cookie = cookie_of(answer)
        self.hidden = {
            "form_token": form_token(answer),
            **dict(re.findall(r'name="(mark\.[^"]+)" value="(\w+)"', self.text)),
        }

    def sent(self, action: str = "set", **values: str) -> Answer:
        fields = {**self.hidden, **self.of, "policy": self.policy, "action": action, "in.us-east": "yes"}
        for name, value in values.items():
            fields["value" if name == "value" else f"value.{name}"] = value
        return self.worker.ask("POST", "/dashboard/policy", urlencode(fields), {**FORM, **self.cookie})


def errors(answer: Answer) -> dict[str, str]:
    """By field what is said beside it; each field that is wrong points at what is said."""
    text = unescape(answer.content.decode())
    found = dict(re.findall(r'id="error-1-([\w.]+)">([^<]*)<', text))
    assert set(re.findall(r'aria-invalid="true" aria-describedby="error-1-([\w.]+) ', text)) == set(found)
    return found


def test_a_namespace_is_shown_with_what_lies_below_it(worker: ServedWorker) -> None:
    answer = worker.ask("GET", "/replication/v1/namespaces/public/default").json
    assert (answer["name"], answer["policies"]) == ("public/default", {})
    assert answer["below"]["message_ttl_seconds"] == 3600
    assert worker.ask("GET", "/replication/v1/namespaces/public/none").status == 404
    assert worker.ask("GET", "/replication/v1/namespaces/public/..").status in (400, 404, 412)


def test_what_the_topology_file_sets_is_said_before_it_is_stood_over(worker: ServedWorker) -> None:
    page = worker.ask("GET", "/dashboard/namespace?name=public/default", headers=PAGE).content.decode()
    assert re.search(
        r"Message TTL</th>\s*<td[^>]*><span>3\u202f600 seconds <span class=\"detail\">topology file<", page
    )
    form = Form(worker, "messageTTL")
    assert "The topology file sets this in us-east" in form.text
    assert 'name="value" value="3600"' in form.text
    assert "topology file sets this" not in Form(worker, "deduplication").text
    assert "sets the other as well" in Form(worker, "backlogQuota-size").text


def test_a_policy_of_a_namespace_is_set_and_taken_back(worker: ServedWorker) -> None:
    answer = Form(worker, "messageTTL").sent(value="60")
    assert answer.status == 303, answer.content
    assert worker.ask("GET", "namespaces/public/default/messageTTL").json == 60
    assert "It is set in us-east." in worker.ask("GET", answer.headers["Location"], headers=PAGE).content.decode()
    form = Form(worker, "messageTTL")
    assert "topology file sets this" not in form.text
    assert (
        "taken back in us-east"
        in worker.ask("GET", form.sent("unset").headers["Location"], headers=PAGE).content.decode()
    )
    assert worker.ask("GET", "namespaces/public/default/messageTTL").status == 204
    assert worker.ask("GET", "namespaces/public/default/messageTTL?applied=true").json == 3600


def test_a_topic_has_policies_of_its_own(worker: ServedWorker) -> None:
    assert Form(worker, "messageTTL", topic="public/default/governed").sent(value="7").status == 303
    assert worker.ask("GET", f"{TOPIC}/messageTTL").json == 7
    assert worker.ask("GET", "namespaces/public/default/messageTTL").status == 204
    page = worker.ask("GET", "/dashboard/topic-policies?topic=public/default/governed", headers=PAGE).content.decode()
    assert re.search(r"Message TTL</th>\s*<td[^>]*><span>7 seconds <span class=\"detail\">topic<", page)
    assert Form(worker, "messageTTL", topic="public/default/governed").sent("unset").status == 303
    assert worker.ask("GET", f"{TOPIC}/messageTTL").status == 204
    path = "/dashboard/policy?topic=public/default/governed&policy=replication"
    answer = worker.ask("GET", path, headers=PAGE)
    assert (answer.status, b"topics have no policy" in answer.content) == (400, True)


@pytest.mark.parametrize(
    ("policy", "values", "path", "shown"),
    [
        (
            "retention",
            {"retentionTimeInMinutes": "5", "retentionSizeInMB": "-1"},
            "retention",
            {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1},
        ),
        ("deduplication", {"value": "true"}, "deduplication", True),
        ("replication", {"us-east": "yes"}, "replication", ["us-east"]),
        (
            "autoTopicCreation",
            {"allowAutoTopicCreation": "true", "topicType": "partitioned", "defaultNumPartitions": "3"},
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        ),
    ],
)
def test_every_kind_of_field_is_sent(
    worker: ServedWorker, policy: str, values: dict[str, str], path: str, shown: object
) -> None:
    answer = Form(worker, policy).sent(**values)
    assert answer.status == 303, errors(answer)
    assert worker.ask("GET", f"namespaces/public/default/{path}").json == shown
    assert Form(worker, policy).sent("unset").status == 303


def test_one_quota_takes_the_other_along_and_the_page_shows_both(worker: ServedWorker) -> None:
    size, age = QUOTAS
    policy = "producer_request_hold"
    assert Form(worker, size).sent(limitSize="1000", policy=policy).status == 303
    quotas = worker.ask("GET", "namespaces/public/default/backlogQuotaMap").json
    assert (quotas["destination_storage"]["limitSize"], quotas["message_age"]["limitTime"]) == (1000, 7200)
    assert "topology file sets this" not in Form(worker, age).text  # it is the namespace's now
    refused = Form(worker, age).sent(limitTime="5", policy="producer_exception")
    assert refused.status == 412
    assert "must be producer_request_hold, as for the other quota" in errors(refused)["value.policy"]


@pytest.mark.parametrize(
    ("policy", "values", "status", "field", "said"),
    [
        ("messageTTL", {"value": "soon"}, 400, "value", "must be a whole number, not 'soon'"),
        ("messageTTL", {"value": ""}, 400, "value", "the body is empty"),
        ("messageTTL", {"value": "-5"}, 412, "value", "must be a number from 0"),
        ("deduplication", {"value": "<b>"}, 400, "value", "must be true or false"),
        (
            "retention",
            {"retentionTimeInMinutes": "1", "retentionSizeInMB": "much"},
            400,
            "value.retentionSizeInMB",
            "must be a whole number",
        ),
        (
            "autoTopicCreation",
            {"allowAutoTopicCreation": "true", "topicType": "partitioned"},
            412,
            "value.defaultNumPartitions",
            "number of partitions that new topics",
        ),
    ],
)
def test_what_the_api_refuses_is_said_beside_the_field_and_what_was_typed_stays(
    worker: ServedWorker, policy: str, values: dict[str, str], status: int, field: str, said: str
) -> None:
    before = worker.ask("GET", "namespaces/public/default").json
    answer = Form(worker, policy).sent(**values)
    assert answer.status == status
    found = errors(answer)
    assert set(found) == {field}
    assert said in found[field]
    if values.get("value") == "soon":
        assert b'name="value" value="soon"' in answer.content
    assert b"<b>" not in answer.content
    assert worker.ask("GET", "namespaces/public/default").json == before


def test_what_somebody_else_changed_meanwhile_is_not_overwritten(worker: ServedWorker) -> None:
    form = Form(worker, "messageTTL")
    assert worker.ask("POST", "namespaces/public/default/messageTTL", "99").status == 204
    for action in ("set", "unset"):
        answer = form.sent(action, value="60")
        assert (answer.status, b"was changed in us-east" in answer.content) == (409, True)
        assert "99 seconds" in answer.content.decode()
    assert worker.ask("GET", "namespaces/public/default/messageTTL").json == 99


def test_nothing_is_changed_without_a_cluster_or_in_one_that_does_not_have_it(worker: ServedWorker) -> None:
    form = Form(worker, "messageTTL")
    fields = {**form.hidden, **form.of, "policy": "messageTTL", "action": "set", "value": "60"}
    for more, status, said in (
        ({}, 400, b"choose a cluster"),
        ({"in.us-east": "yes", "namespace": "public/none"}, 409, b"us-east does not have it"),
        ({"in.us-east": "yes", "action": "both"}, 400, b"action must be one of set, unset"),
        ({"in.us-east": "yes", "policy": "none"}, 400, b"namespaces have no policy"),
        ({"in.us-east": "yes", "namespace": "x"}, 400, b""),
        ({"in.us-east": "yes", "namespace": ""}, 400, b"parameters namespace and topic are both missing"),
    ):
        answer = worker.ask("POST", "/dashboard/policy", urlencode({**fields, **more}), {**FORM, **form.cookie})
        assert (answer.status, said in answer.content) == (status, True), (more, answer.content)
    assert worker.ask("GET", "namespaces/public/default/messageTTL").status == 204


def test_a_change_is_asked_for_in_the_name_of_who_signed_in(tmp_path_factory: pytest.TempPathFactory) -> None:
    secrets = Secrets.made(tmp_path_factory.mktemp("secrets"))
    with served_worker(sections={"auth": secrets.auth()}) as closed:
        cookie = cookie_of(signed_in(closed, token=secrets.token("operator"))[0])
        shown = {**PAGE, **cookie}
        page = closed.ask("GET", "/dashboard/policy?namespace=public/default&policy=messageTTL", headers=shown)
        marks = dict(re.findall(r'name="(mark\.[^"]+)" value="(\w+)"', page.content.decode()))
        fields = {
            "form_token": form_token(page), **marks, "namespace": "public/default", "policy": "messageTTL",
            "in.us-east": "yes", "action": "set", "value": "60",
        }  # fmt: skip
        answer = closed.ask("POST", "/dashboard/policy", urlencode(fields), {**FORM, **cookie})
        assert answer.status == 303, answer.content
        operator = {"Authorization": f"Bearer {secrets.token('operator')}"}
        assert closed.ask("GET", "namespaces/public/default/messageTTL", headers=operator).json == 60
