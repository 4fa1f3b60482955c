"""A drill that another program starts on clusters that run, and one that the dashboard starts: what it says, in whose
name it asks, and that it ends with who started it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import psutil
import pytest
import yaml
from failover_support import Deployment
from postgres_support import databases_of, served_postgres
from security_support import Secrets

SECONDS_MAX = 240
FORM = {"namespace": "public/canary", "rate": "300", "typed": "public/canary"}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with served_postgres() as server, databases_of("AB", server, "watched") as databases:
        deployed = Deployment(tmp_path_factory.mktemp("clusters"), ("A", "B"), "[{between: [A, B]}]", databases)
        try:
            deployed.start("A", "B")
            yield deployed
        finally:
            deployed.stop()


def started(clusters: Deployment, tmp_path: Path, **more: Any) -> subprocess.Popen[str]:
    wanted = {
        "topology": str(clusters.file), "kept_by": "B", "namespace": "public/canary", "messages": 300, "rate": 300,
        "out": str(tmp_path / "out"), **more,
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-m", "replicator.cli.watched_drill"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(tmp_path / "stderr").open("w"), text=True,
    )  # fmt: skip
    pipe(child.stdin).write(json.dumps(wanted) + "\n")
    pipe(child.stdin).flush()
    return child


def pipe(end: IO[str] | None) -> IO[str]:
    assert end is not None
    return end


def topics(clusters: Deployment, name: str) -> list[str]:
    found: list[str] = clusters.get(name, "/admin/v2/persistent/public/canary")
    return found


def test_it_says_how_far_it_is_and_its_report_is_kept_where_it_was_told(clusters: Deployment, tmp_path: Path) -> None:
    child = started(clusters, tmp_path)
    said = [json.loads(line) for line in pipe(child.stdout)]
    assert child.wait(SECONDS_MAX) == 0, (said, (tmp_path / "stderr").read_text())
    pipe(child.stdin).close()
    *going, last = said
    assert last["passed"]
    assert going[0]["published"] == 0
    assert going[-1]["confirmed"] == 300
    assert len({line["phase"] for line in going}) > 2
    assert [each["id"] for each in clusters.get("B", "/replication/v1/drills")["drills"]] == [last["id"]]
    assert clusters.get("A", "/replication/v1/drills")["drills"] == []
    assert topics(clusters, "A") == topics(clusters, "B") == []


def test_it_ends_with_who_started_it_and_removes_what_it_made(clusters: Deployment, tmp_path: Path) -> None:
    child = started(clusters, tmp_path, messages=20_000)
    for line in pipe(child.stdout):
        if json.loads(line).get("confirmed"):
            break
    assert topics(clusters, "A")
    pipe(child.stdin).close()
    *_, last = pipe(child.stdout)
    assert "stopped by SIGTERM" in json.loads(last)["error"]
    assert child.wait(SECONDS_MAX) == 2
    assert topics(clusters, "A") == topics(clusters, "B") == []


def test_what_cannot_be_run_is_said_in_one_line(clusters: Deployment, tmp_path: Path) -> None:
    child = started(clusters, tmp_path, namespace="public")
    (said,) = [json.loads(line) for line in pipe(child.stdout)]
    assert "--namespace" in said["error"]
    assert child.wait(SECONDS_MAX) == 2
    pipe(child.stdin).close()


class Browser:
    """Somebody at the dashboard of a worker."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = build_opener(HTTPCookieProcessor())
        self.text = ""
        self.address = ""

    def open(self, path: str, **fields: str) -> str:
        """Load a page, or send a form of the page that is open."""
        token = re.search(r'name="form_token" value="(\w+)"', self.text)
        body = urlencode({"form_token": token[1], **fields}).encode() if fields and token is not None else None
        request = Request(path if "://" in path else f"{self._url}{path}", body, {"Accept": "text/html"})
        try:
            answer = self._opener.open(request, timeout=60)
        except HTTPError as error:
            answer = error
        with answer:
            self.text, self.address = unescape(answer.read().decode()), answer.url
        return self.text


def test_the_dashboard_starts_one_in_the_name_of_who_signed_in(tmp_path: Path) -> None:
    secrets = Secrets.made(tmp_path / "secrets")
    auth = secrets.auth(passwords=str(secrets.passwords(chief="right")))
    auth["superusers"] = ["operator", "chief"]
    with served_postgres() as server, databases_of("AB", server, "named") as databases:
        deployed = Deployment(tmp_path, ("A", "B"), "[{between: [A, B]}]", databases)
        deployed.file.write_text(deployed.file.read_text() + yaml.safe_dump({"auth": auth}))
        try:
            deployed.start("A", "B")
            browser = Browser(deployed.url("B"))
            browser.open("/dashboard/sign-in")
            browser.open("/dashboard/sign-in", name="chief", password="right")
            browser.open("/dashboard/drills/start")
            assert "sign in with a token" in browser.open("/dashboard/drills/start", messages="300", **FORM)
            browser.open("/dashboard/sign-in")
            browser.open("/dashboard/sign-in", token=secrets.token("chief"))
            browser.open("/dashboard/drills/start")
            started = browser.open("/dashboard/drills/start", messages="300", **FORM)
            assert "started by chief" in started, started
            address = browser.address
            deployed.until(lambda: "goes on: " not in browser.open(address), "the end of the drill", SECONDS_MAX)
            assert "passed" in browser.text, browser.text
            assert not (tmp_path / "data-B" / "drill").exists()
            (report,) = re.findall(r'href="(/dashboard/drill\?id=[^"]+)"', browser.text)
            assert "Drill move" in browser.open(report)
            assert report in browser.open("/dashboard/drills")
            audit = browser.open("/dashboard/audit?search=replicator-drill-")
            assert "chief" in audit
        finally:
            deployed.stop()


def test_it_ends_with_its_worker(clusters: Deployment) -> None:
    """The last one here: a worker is gone then."""
    browser = Browser(clusters.url("B"))
    browser.open("/dashboard/drills/start")
    browser.open("/dashboard/drills/start", messages="20000", **FORM)
    address = browser.address
    clusters.until(lambda: "confirmed" in browser.open(address), "the first messages", SECONDS_MAX)
    worker = clusters._processes.pop("B")
    (drill,) = [
        each
        for each in psutil.Process(worker.pid).children(recursive=True)
        if "replicator.cli.watched_drill" in each.cmdline()
    ]
    worker.send_signal(signal.SIGTERM)
    worker.wait(timeout=60)
    assert not drill.is_running() or drill.status() == psutil.STATUS_ZOMBIE
