"""Stopped links are in the way of a topic only if no other way to the target is open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replicator.failover.obstacles import StoppedLink, Way
from replicator.links.schema_announcer import SCHEMAS
from replicator.topology import Topology, load_topology

TOPIC, OTHER = "persistent://public/default/t", "persistent://public/default/u"


def topology_with(path: Path, *links: str) -> Topology:
    file = path / "topology.yaml"
    clusters = "".join(f"  {name}: {{address: '127.0.0.1:700{at}', data: {name}}}\n" for at, name in enumerate("abcd"))
    file.write_text(f"clusters:\n{clusters}links:\n" + "".join(f"  - {{{link}}}\n" for link in links))
    return load_topology(file)


def status(*, halted: bool = False, gap: bool = False, paused: bool = False) -> dict[str, Any]:
    """Return the status of a link.

    * ``halted``: the link has halted :data:`TOPIC` for a reason that may end by itself.
    * ``gap``: the link has halted :data:`TOPIC` at a gap.
    * ``paused``: an operator paused the whole link.
    """
    stops = [{"topic": TOPIC, "kind": "made-anew", "detail": "resolve it", "policies": ["keep-both"]}]
    return {"paused": paused, "halted": {TOPIC: "why"} if halted or gap else {}, "gaps": stops if gap else []}


def way(topology: Topology, stopped: dict[str, dict[str, Any]]) -> Way:
    """Return the way from a to b. ``stopped`` has the status of each stopped link by its key."""
    found = {link.key: StoppedLink.of(link, stopped[link.key]) for link in topology.links if link.key in stopped}
    return Way(topology, "a", "b", found)


def test_a_gap_on_the_only_way_is_named_with_its_link_and_what_ends_it(tmp_path: Path) -> None:
    found = way(topology_with(tmp_path, "from: a, to: b"), {"a>b": status(gap=True)})
    assert found.topics() == {TOPIC}
    assert found.obstacle(OTHER) is None
    obstacle = found.obstacle(TOPIC)
    assert obstacle is not None
    assert obstacle.text == f"link a>b has a gap (made-anew) in {TOPIC}: resolve it"
    assert obstacle.lasting


def test_a_gap_that_the_links_policy_ends_and_a_halt_do_not_last(tmp_path: Path) -> None:
    by_policy = topology_with(tmp_path, "from: a, to: b, on_gap: keep-both")
    for given in (status(gap=True), status(halted=True)):
        obstacle = way(by_policy, {"a>b": given}).obstacle(TOPIC)
        assert obstacle is not None
        assert not obstacle.lasting


def test_schemas_that_the_destination_refused_hold_up_no_messages(tmp_path: Path) -> None:
    given = {"paused": False, "halted": {TOPIC: f"{SCHEMAS}IncompatibleSchema: no"}, "gaps": []}
    found = way(topology_with(tmp_path, "from: a, to: b"), {"a>b": given})
    assert found.obstacles([TOPIC, OTHER]) == {}


def test_a_paused_link_holds_up_all_topics_until_it_is_resumed(tmp_path: Path) -> None:
    found = way(topology_with(tmp_path, "from: a, to: b, name: first"), {"a>b#first": status(paused=True)})
    assert found.topics() is None
    obstacle = found.obstacle(OTHER)
    assert obstacle is not None
    assert "`replicator links resume -f FILE --from a --to b --name first`" in obstacle.text
    assert obstacle.lasting


FORWARDING = ("from: a, to: c", "from: c, to: b, forward: true")


@pytest.mark.parametrize(
    ("links", "stopped", "named"),
    [
        (("from: a, to: b", *FORWARDING), ["a>b"], []),
        (("from: a, to: b", *FORWARDING), ["a>b", "c>b"], ["a>b", "c>b"]),
        (("from: a, to: b", "from: a, to: c", "from: c, to: b"), ["a>b", "a>c", "c>b"], ["a>b"]),
        (("from: a, to: b", "from: a, to: d"), ["a>d"], []),
        (("from: a, to: b", "from: a, to: d", "from: b, to: a"), ["a>b", "a>d", "b>a"], ["a>b"]),
        (FORWARDING, ["a>c", "c>b"], ["a>c"]),
    ],
    ids=["another way", "both ways", "c forwards nothing", "aside", "back", "one after the other"],
)
def test_a_link_is_in_the_way_if_no_way_around_it_is_open(
    tmp_path: Path, links: tuple[str, ...], stopped: list[str], named: list[str]
) -> None:
    topology = topology_with(tmp_path, *links)
    assert [link.key for link in topology.held_up_at("a", "b", TOPIC, stopped)] == named
    assert (way(topology, dict.fromkeys(stopped, status(gap=True))).obstacle(TOPIC) is not None) == bool(named)
