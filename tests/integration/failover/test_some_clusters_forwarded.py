"""Messages for some clusters, where links pass a topic on: what is admitted comes to those that it names, and halts
no link (invariants 2, 4 and 5)."""

from __future__ import annotations

from pathlib import Path

import pytest
from asynchronous import asynchronous
from engine_support import TOPIC, eventually, message
from link_support import web

from replicator.topology import Link as LinkSpec
from replicator.topology.paths import passed_on_by

CHAIN = [LinkSpec("a", "b"), LinkSpec("b", "c", forward=True)]
DIAMOND = [LinkSpec("a", "b"), LinkSpec("a", "c"), LinkSpec("b", "c", forward=True)]
STAR = [LinkSpec(one, other, forward=True) for spoke in "bc" for one, other in (("a", spoke), (spoke, "a"))]


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
        for number, named in enumerate([named for kind in kinds for named in ([], kind, kind, [])] * 5):
            entry = message(b"%d" % number, clusters=named)
            await topic.publish([entry])
            for name, entries in expected.items():
                if not named or name in named:
                    entries.append(entry)
            if number % 7 == 0:  # links are not to carry all of it at once
                await eventually(lambda: made.entries("b", "a") == expected["b"])
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
