"""Overview of clusters and links: their states in words, and their places in the picture."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.dashboard.fan_out import Answer
from replicator.dashboard.map_drawing import NODE_HEIGHT, NODE_WIDTH, WIDTH, draw
from replicator.dashboard.overview import BAD, GOOD, UNKNOWN, WARN, Observer, cluster_row
from replicator.topology import Link
from replicator.topology.values import Topology, default_topology


def link(key: str, **more: Any) -> dict[str, Any]:
    figures = {
        "key": key,
        "to": key.partition(">")[2],
        "state": "copying",
        "detail": "",
        "paused": False,
        "engine": "embedded",
        "lag_ms": 3,
        "backlog_entries": 0,
        "gap_count": 0,
        "halted_count": 0,
        "skipped_count": 0,
        "hold_exceeded_count": 0,
        "messages": 0,
        "bytes": 0,
    }
    return figures | more


def status(*links: dict[str, Any], **failover: Any) -> Answer:
    state = {"epoch": 0, "serves": ["us-east"], "served_by": "us-east", "fenced": False, "learned": True}
    return Answer(
        {
            "version": "1",
            "links": list(links),
            "failover": state | {"switching_to": None} | failover,
            "database": {"state": "up"},
            "store": {"failed": None},
            "tasks": {"failing": []},
            "clients": {"connections": 2},
        }
    )


@pytest.fixture
def topology(tmp_path: Any) -> Topology:
    return default_topology(tmp_path, (1, 2))


SILENT = Answer(error="eu-west at 127.0.0.1:2 does not answer: refused", status=0)


def test_a_rate_is_the_difference_since_the_link_was_last_looked_at(topology: Topology) -> None:
    observer = Observer()
    first = {"us-east": status(link("us-east>eu-west", messages=100, bytes=1000)), "eu-west": SILENT}
    assert observer.overview(topology, first, 10.0).links[0].messages_per_second is None
    second = {"us-east": status(link("us-east>eu-west", messages=300, bytes=5000)), "eu-west": SILENT}
    row = observer.overview(topology, second, 12.0).links[0]
    assert (row.messages_per_second, row.bytes_per_second) == (100.0, 2000.0)


def test_a_worker_that_was_started_again_has_no_rate_and_not_a_negative_one(topology: Topology) -> None:
    observer = Observer()
    for messages, at in ((500, 1.0), (3, 2.0)):
        answers = {"us-east": status(link("us-east>eu-west", messages=messages)), "eu-west": SILENT}
        row = observer.overview(topology, answers, at).links[0]
    assert row.messages_per_second is None


@pytest.mark.parametrize(
    ("figures", "tone"),
    [
        ({"state": "idle"}, GOOD),
        ({"state": "copying"}, GOOD),
        ({"state": "paused"}, WARN),
        ({"state": "connecting"}, BAD),
        ({"state": "failed"}, BAD),
        ({"state": "idle", "gap_count": 1}, WARN),
        ({"state": "connecting", "gap_count": 1}, BAD),
    ],
)
def test_a_link_stands_as_its_state_and_its_gaps_say(topology: Topology, figures: dict[str, Any], tone: str) -> None:
    answers = {"us-east": status(link("us-east>eu-west", **figures)), "eu-west": SILENT}
    assert Observer().overview(topology, answers, 1.0).links[0].tone == tone


def test_links_of_a_cluster_that_does_not_answer_are_shown_as_unknown(topology: Topology) -> None:
    overview = Observer().overview(topology, {"us-east": status(), "eu-west": SILENT}, 1.0)
    assert [(each.key, each.tone) for each in overview.links] == [("eu-west>us-east", UNKNOWN)]
    assert overview.clusters[1].state == "does not answer"
    assert overview.troubles == 2


@pytest.mark.parametrize(
    ("failover", "tone", "state"),
    [
        ({}, GOOD, "serves its clients"),
        ({"fenced": True, "served_by": "eu-west", "serves": []}, WARN, "fenced: eu-west serves its clients"),
        ({"serves": ["us-east", "eu-west"]}, WARN, "serves the clients of us-east, eu-west"),
        ({"switching_to": "eu-west"}, WARN, "is being switched to eu-west"),
        ({"learned": False}, WARN, "starting"),
    ],
)
def test_a_cluster_stands_as_its_failover_says(failover: dict[str, Any], tone: str, state: str) -> None:
    row = cluster_row("us-east", status(**failover))
    assert (row.tone, row.state) == (tone, state)


def test_a_cluster_with_a_second_live_copy_of_its_store_stands_badly_and_says_what_to_do() -> None:
    answer = status()
    answer.value["run"] = {"id": "r1", "twins": [{"id": "r2", "host": "h2"}]}
    row = cluster_row("us-east", answer)
    assert (row.tone, row.state) == (BAD, "two live copies of its store")
    assert "h2" in row.detail
    assert "replicator links stays" in row.detail


def starts(state: str, progress: dict[str, Any] | None = None) -> Answer:
    """Return the answer of a worker that is starting."""
    value = {"message": "it takes back messages", "start": {"state": state, "peers": {}, "progress": progress or {}}}
    return Answer(value, "us-east refuses: it takes back messages", 503)


@pytest.mark.parametrize(
    ("answer", "tone", "state", "detail"),
    [
        (starts("opening"), WARN, "is starting", "it takes back messages"),
        (starts("waiting"), BAD, "starting: waits for another cluster", "it takes back messages"),
        (
            starts("reclaiming", {"number": 2, "topics": 7, "messages": 12_345, "read_bytes": 3_000_000}),
            WARN,
            "starting: takes back messages",
            "it takes back messages: topic 2 of 7, 12,345 messages, 3 MB read",
        ),
        (Answer({"start": 7}, "us-east refuses: no", 503), BAD, "does not answer", "us-east refuses: no"),
    ],
)
def test_a_worker_that_is_starting_says_how_far_it_is(answer: Answer, tone: str, state: str, detail: str) -> None:
    row = cluster_row("us-east", answer)
    assert (row.tone, row.state, row.detail) == (tone, state, detail)


def test_a_new_store_is_said_with_since_when_what_was_lost_and_who_was_not_asked(topology: Topology) -> None:
    east, west = status(), status()
    assert [each.store for each in overviewed(topology, east, west)] == ["", ""]
    start = {"how": "reclaimed", "database": "none", "lost": ["1", "2"], "unasked": {}, "nobody_asked": False}
    east.value.update({"start": start, "restored": {"lost": ["3", "4", "5"]}})
    west.value["stores"] = {"us-east": {"store": "new", "since_ms": 1_700_000_000_000, "earlier": ["old"]}}
    said = overviewed(topology, east, west)[0].store
    assert said.startswith(
        "a new store since 2023-11-14 22:13:20 UTC, as eu-west can tell; lost: 1; lost: 2; lost: 3; "
    )
    assert said.endswith("2 more losses, in its status")
    assert overviewed(topology, SILENT, west)[0].store.startswith("a new store since 2023"), "peers know it meanwhile"
    east.value["start"] = start | {"lost": [], "unasked": {"eu-west": "refused"}, "database": "away"}
    east.value.update({"restored": None, "states": {"clusters": {"eu-west": "refused"}}})
    assert overviewed(topology, east, SILENT)[0].store == (
        "its store is new; not asked what they have of it: eu-west; Postgres did not answer, and was not asked what an "
        "earlier store had; states of subscriptions are awaited from eu-west"
    )


def overviewed(topology: Topology, east: Answer, west: Answer) -> Any:
    return Observer().overview(topology, {"us-east": east, "eu-west": west}, 1.0).clusters


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_clusters_stand_apart_and_on_the_map(topology: Topology, count: int) -> None:
    names = [f"c{number}" for number in range(count)]
    clusters = tuple(topology.clusters[0].model_copy(update={"name": name}) for name in names)
    links = tuple(Link(one, other) for one in names for other in names if one != other)
    made = Topology(clusters, links)
    answers = {name: Answer(error="away", status=0) for name in names}
    drawing = draw(Observer().overview(made, answers, 1.0))
    assert len(drawing.arrows) == len(links)
    for node in drawing.nodes:
        assert NODE_WIDTH / 2 <= node.x <= WIDTH - NODE_WIDTH / 2
        assert NODE_HEIGHT / 2 <= node.y <= drawing.height - NODE_HEIGHT / 2
    if count <= 5:
        for one in drawing.nodes:
            for other in drawing.nodes:
                apart = abs(one.x - other.x) >= NODE_WIDTH or abs(one.y - other.y) >= NODE_HEIGHT
                assert one is other or apart


def test_of_several_links_of_a_pair_the_worst_is_drawn(topology: Topology) -> None:
    both = status(link("us-east>eu-west"), link("us-east>eu-west#bulk", to="eu-west", state="failed"))
    drawing = draw(Observer().overview(topology, {"us-east": both, "eu-west": status()}, 1.0))
    assert [arrow.tone for arrow in drawing.arrows] == [BAD]
