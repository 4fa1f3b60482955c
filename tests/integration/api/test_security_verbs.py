"""No verb of the command line does or tells anything for who may not; the verbs are taken from the program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_support import ASKING, BY_ROUTES, OFFLINE, SHOWS_WHO_DOES_NOT_ANSWER, VERBS, arguments
from security_support import Secrets
from served_worker import ServedWorker, served_worker
from typer.testing import CliRunner

from replicator.cli.main import app
from replicator.security.access import Access, use_in_process

TOPIC = "persistent/public/default/there"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.made(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def worker(secrets: Secrets) -> Iterator[ServedWorker]:
    with served_worker(cluster="solo", sections={"auth": secrets.auth()}, token=secrets.token("operator")) as served:
        assert served.ask("PUT", TOPIC).status == 204
        assert served.ask("PUT", f"{TOPIC}/subscription/s").status == 204
        yield served
    use_in_process(Access())


@pytest.fixture(scope="module")
def file(worker: ServedWorker, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topology of that worker and of one that does not answer."""
    directory = tmp_path_factory.mktemp("topology")
    content = {
        "clusters": {
            "solo": {"address": f"127.0.0.1:{worker.port}", "data": "solo"},
            "other": {"address": "127.0.0.1:9", "data": "other"},
        },
        "links": [{"between": ["solo", "other"]}],
        "auth": secrets.auth(token_file=str(directory / "nobody-may-read-it")),
    }
    file = directory / "topology.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def state(worker: ServedWorker) -> list[Any]:
    paths = ("tenants", "namespaces/public", "persistent/public/default", "namespaces/public/default",
             f"{TOPIC}/subscriptions", f"{TOPIC}/policies", "/replication/v1/audit", "/failover/v1/state")  # fmt: skip
    return [worker.ask("GET", path).json for path in paths]


@pytest.mark.parametrize("verb", ASKING)
def test_a_verb_is_refused_to_who_may_not(
    worker: ServedWorker, secrets: Secrets, file: Path, verb: str, tmp_path: Path
) -> None:
    before = state(worker)
    shown = {
        "nothing": {},
        "wrong": {"REPLICATOR_TOKEN": Secrets.made(tmp_path).token("operator")},
        "expired": {"REPLICATOR_TOKEN": secrets.token("operator", seconds=-1)},
        "too small a role": {"REPLICATOR_TOKEN": secrets.token("small")},
    }
    for what, environment in shown.items():
        kept = {"REPLICATOR_TOKEN": None, "REPLICATOR_PROFILE": None, **environment}
        done = CliRunner(env=kept).invoke(app, arguments(verb, file))
        said = done.output
        assert isinstance(done.exception, SystemExit | None), (verb, what, done.exception)
        assert done.exit_code in (1, 2, 3) or verb in SHOWS_WHO_DOES_NOT_ANSWER, (verb, what, said)
        assert done.stderr.count("\n") <= 1, (verb, what, said)
        assert "public/default/there" not in said or "may not" in said, (verb, what, said)
        token = environment.get("REPLICATOR_TOKEN")
        assert token is None or token not in said
    assert state(worker) == before


@pytest.mark.parametrize(("role", "status", "reason"), [(None, 401, "token"), ("small", 403, "small")])
def test_status_says_that_a_worker_refuses_and_why(
    worker: ServedWorker, secrets: Secrets, tmp_path: Path, role: str | None, status: int, reason: str
) -> None:
    """It must not say that no worker answers: the operator would start one that already runs."""
    file = tmp_path / "topology.yaml"
    alone = {"solo": {"address": f"127.0.0.1:{worker.port}", "data": "solo"}}
    file.write_text(yaml.safe_dump({"clusters": alone, "auth": secrets.auth(token_file=str(tmp_path / "none"))}))
    environment = {"REPLICATOR_PROFILE": None, "REPLICATOR_TOKEN": None if role is None else secrets.token(role)}
    done = CliRunner(env=environment).invoke(app, ["status", "--file", str(file)])
    said = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2, done.output
    assert f"status {status}" in said
    assert reason in said
    assert "docs/security.md" in said
    assert "No worker answers" not in said
    listed = CliRunner(env=environment).invoke(app, ["status", "--file", str(file), "--output", "json"])
    assert json.loads(listed.output)["solo"]["status"] == status


def test_the_lists_of_verbs_that_ask_nobody_are_of_verbs_that_there_are() -> None:
    assert OFFLINE.keys() | BY_ROUTES.keys() <= VERBS.keys()
