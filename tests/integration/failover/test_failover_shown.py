"""A failover of many topics, as a user runs it, prints sentences that fit a screen."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from failover_support import Deployment, deployment
from postgres_support import databases_of

from replicator.client import Client

_serial = itertools.count()
TOPICS = 60
BOTH_WAYS = "[{between: [A, B]}]"


@pytest.fixture
def deployed(tmp_path: Path, postgres_server: str) -> Iterator[Deployment]:
    """Deploy two workers without a link between them, so that B gets nothing from A."""
    with (
        databases_of("AB", postgres_server, f"shown_{next(_serial)}") as databases,
        deployment(tmp_path, "A", "B", links="[]", databases=databases) as started,
    ):
        yield started


async def publish_all(url: str) -> None:
    """Publish messages to each topic: one to the first, two to the second, and so on."""
    async with Client(url, reconnect=False) as client:
        for number in range(TOPICS):
            producer = await client.create_producer(f"t{number:02}")
            await producer.send_many([b"x"] * (number + 1))
            await producer.close()


def test_a_failover_prints_at_most_forty_lines_the_worst_topics_first_and_all_of_them_with_details(
    deployed: Deployment,
) -> None:
    asyncio.run(publish_all(deployed.client_url("A")))
    linked = deployed.write(BOTH_WAYS, "linked.yaml").name  # as if the link had stood still until now
    ends = ("--from", "A", "--to", "B")
    for kind, then in (
        (("--dry-run",), "a planned switch waits for"),
        (("--unplanned", "--dry-run"), "by links from A"),
        (("--unplanned",), "by links from A"),
    ):
        done = deployed.command("failover", *ends, *kind, file=linked)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) <= 40
        assert lines[-1].endswith("more: --details")
        waiting = [line for line in lines if " not at B yet; " in line]
        assert waiting[0].startswith("t59: 60 messages are not at B yet; ")
        assert waiting[1].startswith("t58: 59 messages are not at B yet; ")
        assert all(then in line for line in waiting)
        assert "│" not in done.stdout
    status = deployed.command("failover-status", file=linked)
    assert len(status.stdout.splitlines()) <= 40
    assert "t59: 60 messages are not at B yet; they follow by links from A." in status.stdout

    back = ("failback", "--to", "A")
    found = json.loads(deployed.command(*back, "--dry-run", "--output", "json", file=linked).stdout)
    assert {each["topic"] for each in found["topics"]} == set(), "B has nothing of its own"
    details = deployed.command("promote", "--to", "A", "--for", "A", "--dry-run", "--details", file=linked)
    assert details.returncode == 0, details.stderr


def test_a_planned_failover_that_is_refused_prints_a_screen_and_json_has_every_topic(deployed: Deployment) -> None:
    asyncio.run(publish_all(deployed.client_url("A")))
    linked = deployed.write(BOTH_WAYS, "linked.yaml").name
    ends = ("--from", "A", "--to", "B", "--planned", "--timeout", "1")
    refused = deployed.command("failover", *ends, file=linked)
    assert refused.returncode == 1, refused.stderr
    assert refused.stdout.startswith("Refused: B does not have every message of A within the time: ")
    assert (
        "\nNothing was switched. B lacks 1,830 messages of A; no acknowledged ones may be repeated." in refused.stdout
    )
    assert len(refused.stdout.splitlines()) <= 40
    assert not re.search(r"\d+:\d+", refused.stdout), "positions are in the details"
    found = json.loads(deployed.command("failover", *ends, "--dry-run", "--output", "json", file=linked).stdout)
    assert len(found["topics"]) == TOPICS
    details = deployed.command("failover", *ends, "--dry-run", "--details", file=linked).stdout
    assert all(str(each["source_last"]) in details for each in found["topics"])
