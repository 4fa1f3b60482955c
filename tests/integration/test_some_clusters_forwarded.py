"""Messages for some clusters, where links pass a topic on: what is admitted comes to those that it names, and halts
no link (invariants 2, 4 and 5)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from asynchronous import asynchronous
from engine_support import TOPIC, eventually
from link_support import web

from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.topology import Link as LinkSpec
from replicator.topology.paths import passed_on_by

CHAIN = [LinkSpec("a", "b"), LinkSpec("b", "c", forward=True)]
DIAMOND = [LinkSpec("a", "b"), LinkSpec("a", "c"), LinkSpec("b", "c", forward=True)]
STAR = [LinkSpec(one, other, forward=True) for spoke in "bc" for one, other in (("a", spoke), (spoke, "a"))]


def for_clusters(named: list[str], payload: bytes) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, replicate_to=named)
    return encode_entry(metadata, payload)


@pytest.mark.parametrize(
    ("links", "kinds"),
    [
        (CHAIN, [["b"], ["b", "c"]]),
        (DIAMOND, [["b"], ["b", "c"]]),
        (STAR, [["__local__"], ["b"], ["c"], ["b", "c"]]),
        ([*CHAIN, LinkSpec("a", "d")], [["b"], ["b", "d"], ["b", "c"]]),
    ],
    ids=["chain", "diamond", "star", "tree"],
)
@asynchronous
async def test_what_is_admitted_comes_to_those_that_it_names_and_halts_no_link(
    tmp_path: Path, links: list[LinkSpec], kinds: list[list[str]]
) -> None:
    for named in kinds:
        assert passed_on_by("a", links) <= set(named), "the engine admits it"
    async with web(tmp_path, links) as made:
        topic = await made.engines["a"].topic(TOPIC)
        expected: dict[str, list[bytes]] = {name: [] for name in made.engines if name != "a"}
        for number, named in enumerate([kind for kind in kinds for kind in ([], kind, kind, [])] * 5):
            entry = for_clusters(named, b"%d" % number)
            await topic.publish([entry])
            for name, entries in expected.items():
                if not named or name in named:
                    entries.append(entry)
            if number % 7 == 0:
                await asyncio.sleep(0.01)
        for name, entries in expected.items():
            await eventually(
                lambda name=name, entries=entries: made.entries(name, "a") == entries,
                name,
            )
        assert all(not link.status()["gap_count"] for link in made.links.values())


@pytest.mark.parametrize(
    ("links", "named"),
    [(CHAIN, []), (CHAIN, ["c"]), (DIAMOND, ["c"]), ([*CHAIN, LinkSpec("a", "d")], ["d"])],
)
def test_what_a_cluster_that_is_not_named_would_pass_on_as_missing_is_not_admitted(
    links: list[LinkSpec], named: list[str]
) -> None:
    assert passed_on_by("a", links) - set(named) == {"b"}
