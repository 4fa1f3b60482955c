"""A topic counts as deleted where a link brought it whole and its destination lacks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from replicator.failover.deleted_topics import Brief, deleted_topics
from replicator.topology import Link

TOPIC = "persistent://public/default/t"
LINK = Link("a", "b")


def brief(*topics: str, has: Sequence[str] = ("a",), clusters: Any = None, partitions: int = 0) -> Brief:
    found = {name: {"name": name, "has": list(has), "clusters": clusters} for name in topics}
    return Brief(found, {TOPIC: partitions} if partitions else {})


@pytest.mark.parametrize(
    ("here", "there", "origin", "deleted"),
    [
        (brief(TOPIC), brief(), "a", True),
        (brief(TOPIC), brief(TOPIC), "a", False),
        (brief(TOPIC, has=["c"]), brief(), "a", False),
        (brief(TOPIC, has=["c"]), brief(), None, True),
        (brief(TOPIC, has=[]), brief(), None, False),
        (brief(TOPIC, clusters=["a", "c"]), brief(), "a", False),
        (brief(TOPIC, clusters=["a", "b"]), brief(), "a", True),
    ],
)
def test_what_a_link_brought_and_its_destination_does_not_have_was_deleted(
    here: Brief, there: Brief, origin: str | None, deleted: bool
) -> None:
    found = deleted_topics(LINK, [TOPIC], here, there, origin)
    assert list(found) == ([TOPIC] if deleted else [])
    assert deleted_topics(LINK, [], here, there, origin) == {}, "the link has something left to bring"


@pytest.mark.parametrize(
    ("partitions_here", "partitions_there", "command"),
    [
        (2, 0, f"create-partitioned --partitions 2 -f FILE --cluster b {TOPIC}"),
        (2, 2, f"create -f FILE --cluster b {TOPIC}-partition-1"),
        (0, 0, f"create -f FILE --cluster b {TOPIC}-partition-1"),
    ],
)
def test_the_command_makes_what_is_missing(partitions_here: int, partitions_there: int, command: str) -> None:
    name = f"{TOPIC}-partition-1"
    here, there = brief(name, partitions=partitions_here), brief(partitions=partitions_there)
    obstacle = deleted_topics(LINK, [name], here, there, "a")[name]
    assert f"`replicator topics {command}`" in obstacle.text
    assert not obstacle.lasting, "a cluster that lost its store gets the topic again by itself"
