"""``replicator roundtrip`` leaves nothing in any cluster: watched or not, and however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from urllib.error import HTTPError

import forked_commands
import pytest
from failover_support import Deployment, deployment

from replicator.client import Client
from replicator.operating.roundtrip import TOPIC_PREFIX

BOTH_WAYS = "[{between: [A, B]}]"
NAMESPACE = "public/roundtrip"
SECONDS_MAX = 60.0
START_SECONDS_MAX = 15.0
"""Limit of a command's start on a busy machine."""


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    databases = {"A": "embedded", "B": "embedded"}
    path = tmp_path_factory.mktemp("regions")
    with deployment(path, "A", "B", links=BOTH_WAYS, databases=databases) as deployed:
        yield deployed


def topics(regions: Deployment, cluster: str) -> list[str]:
    try:
        with urllib.request.urlopen(regions.url(cluster, f"/admin/v2/persistent/{NAMESPACE}")) as answer:
            found: list[str] = json.loads(answer.read())
    except HTTPError as error:
        if error.code != 404:  # the namespace is not there yet
            raise
        return []
    return [each for each in found if TOPIC_PREFIX in each]


def namespaces(regions: Deployment, cluster: str) -> list[str]:
    with urllib.request.urlopen(regions.url(cluster, "/admin/v2/namespaces/public")) as answer:
        found: list[str] = json.loads(answer.read())
        return found


def left(regions: Deployment) -> dict[str, list[str]]:
    return {cluster: found for cluster in regions.ports if (found := topics(regions, cluster))}


def begun(regions: Deployment, *options: str) -> forked_commands.Forked:
    """Begin a run that waits for messages while the link is paused."""
    log = regions.path / "roundtrip.log"
    arguments = ("roundtrip", "-f", str(regions.file), "--cluster", "A", *options)
    return forked_commands.start(arguments, cwd=regions.path, stdout=log, stderr=log)


def link(regions: Deployment, verb: str) -> None:
    ends = ("--from", "A", "--to", "B")
    done = forked_commands.run("links", verb, "-f", str(regions.file), *ends, cwd=regions.path)
    assert done.returncode == 0, done.stderr


def wait_for_topic(regions: Deployment, *clusters: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not all(topics(regions, cluster) for cluster in clusters):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def leave(regions: Deployment) -> None:
    """Leave the remains of a killed run: its topic is in both clusters, and nobody is connected to it."""

    async def main() -> None:
        topic = f"persistent://{NAMESPACE}/{TOPIC_PREFIX}A-0badcafe"
        async with Client(regions.client_url("A")) as client:
            producer = await client.create_producer(topic)
            await producer.send(b"one")

    asyncio.run(main())
    wait_for_topic(regions, "A", "B")


@pytest.mark.timeout(300)
def test_a_run_that_watches_no_links_leaves_nothing_where_links_copied_it(regions: Deployment) -> None:
    for _ in range(3):
        done = regions.command("roundtrip", "--cluster", "A", "--no-links")
        assert done.returncode == 0, done.stderr
        assert left(regions) == {}
        for cluster in regions.ports:
            assert NAMESPACE not in namespaces(regions, cluster), "it was not there before"
    verified = regions.command("verify", "--output", "json")
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_nothing(regions: Deployment, number: signal.Signals) -> None:
    link(regions, "pause")
    try:
        run = begun(regions, "--timeout", "100")
        wait_for_topic(regions, "A")
        run.send_signal(number)
        assert run.wait(SECONDS_MAX) != 0
    finally:
        link(regions, "resume")
    assert left(regions) == {}


@pytest.mark.timeout(300)
def test_a_namespace_that_was_there_before_stays(regions: Deployment) -> None:
    url = regions.url("A", f"/admin/v2/namespaces/{NAMESPACE}")
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
    done = regions.command("roundtrip", "--cluster", "A", "--links")
    assert done.returncode == 0, done.stderr
    assert NAMESPACE in namespaces(regions, "A")
    assert NAMESPACE not in namespaces(regions, "B")
    urllib.request.urlopen(urllib.request.Request(url, method="DELETE")).close()


def status_3_in(regions: Deployment, seconds: float) -> None:
    began = time.monotonic()
    done = regions.command("roundtrip", "--cluster", "A", "--timeout", f"{seconds:g}")
    assert time.monotonic() - began < seconds + START_SECONDS_MAX
    assert done.returncode == 3, done.stderr
    assert f"B at 127.0.0.1:{regions.ports['B']}: " in done.stderr
    assert topics(regions, "A") == []


@pytest.mark.timeout(300)
def test_a_worker_that_does_not_answer_ends_a_run_in_time_with_status_3_and_its_address(regions: Deployment) -> None:
    with regions.paused("B"):
        status_3_in(regions, 4)
    with regions.away("B"):
        status_3_in(regions, 4)


@pytest.mark.timeout(300)
def test_a_worker_that_goes_away_during_a_run_ends_it_with_status_3(regions: Deployment) -> None:
    link(regions, "pause")
    try:
        run = begun(regions, "--timeout", "12")
        wait_for_topic(regions, "A")
        with regions.away("B"):
            assert run.wait(SECONDS_MAX) == 3, (regions.path / "roundtrip.log").read_text()
            assert topics(regions, "A") == []
    finally:
        link(regions, "resume")


@pytest.mark.timeout(300)
def test_what_a_killed_run_left_is_removed_by_the_next_one_and_by_name(regions: Deployment) -> None:
    leave(regions)
    done = regions.command("roundtrip", "--cluster", "B")
    assert done.returncode == 0, done.stderr
    assert left(regions) == {}
    leave(regions)
    done = regions.command("roundtrip", "--cluster", "A", "--remove-left")
    assert (done.returncode, done.stdout.startswith("removed: ")) == (0, True), (done.stdout, done.stderr)
    assert left(regions) == {}
    assert regions.command("roundtrip", "--cluster", "A", "--remove-left").stdout == "nothing was left\n"


@pytest.mark.timeout(300)
def test_a_run_that_goes_on_is_not_taken_for_one_that_was_interrupted(regions: Deployment) -> None:
    link(regions, "pause")
    run = begun(regions, "--timeout", "100")
    try:
        wait_for_topic(regions, "A")
        assert regions.command("roundtrip", "--cluster", "B", "--no-links").returncode == 0
        assert topics(regions, "A")
    finally:
        link(regions, "resume")
    assert run.wait(SECONDS_MAX) == 0, (regions.path / "roundtrip.log").read_text()
    assert left(regions) == {}


def others(regions: Deployment, cluster: str) -> list[str]:
    with urllib.request.urlopen(regions.url(cluster, f"/admin/v2/persistent/{NAMESPACE}")) as answer:
        return sorted(each.rpartition("/")[2] for each in json.loads(answer.read()))


@pytest.mark.timeout(300)
def test_topics_whose_names_only_begin_like_those_of_runs_are_never_removed(regions: Deployment) -> None:
    names = [
        f"{TOPIC_PREFIX}{name}" for name in ("results", "A-notes", "A-0badcafe1", "elsewhere-0badcafe", "A-0BADCAFE")
    ]
    names = sorted([*names, f"x{TOPIC_PREFIX}A-0badcafe"])

    async def make() -> None:
        async with Client(regions.client_url("A")) as client:
            for name in names:
                producer = await client.create_producer(f"persistent://{NAMESPACE}/{name}")
                await producer.send(b"of somebody")

    asyncio.run(make())
    try:
        assert regions.command("roundtrip", "--cluster", "A", "--no-links").returncode == 0
        assert others(regions, "A") == names
        assert regions.command("roundtrip", "--cluster", "A", "--remove-left").stdout == "nothing was left\n"
        assert others(regions, "A") == names
    finally:
        for cluster in regions.ports:
            for name in names:
                url = regions.url(cluster, f"/admin/v2/persistent/{NAMESPACE}/{name}?force=true")
                with (
                    contextlib.suppress(HTTPError),
                    urllib.request.urlopen(urllib.request.Request(url, method="DELETE")),
                ):
                    pass


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_while_it_removes_its_topic_removes_it(
    regions: Deployment, number: signal.Signals
) -> None:
    run = begun(regions, "--no-links", "--timeout", "100")
    wait_for_topic(regions, "A")
    while topics(regions, "A"):
        assert run.poll() is None
    run.send_signal(number)  # what is on its way to B is waited for
    assert run.wait(SECONDS_MAX) != 0
    assert left(regions) == {}
