"""Verify against two workers: each kind of fault, seeded alone, moves its own counter alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from aiohttp import web
from wire_worker import PUBLISHED_AT_MS, ScriptedTopic, WireWorker, batch_entry, marker_entry, single_entry

from replicator.api.app import make_app
from replicator.api.linked_sources import LinkedSources
from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.pipeline.errors import BadOption, PeerUnavailable, UnexpectedAnswer
from replicator.pipeline.verify.blocks import Selection
from replicator.pipeline.verify.fix import fix_and_verify
from replicator.pipeline.verify.report import FAULTS
from replicator.pipeline.verify.verify import VerifyReport, VerifySettings
from replicator.pipeline.verify.verify import verify as verify_live
from replicator.topology import Link
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position

FLIGHTS = "persistent://public/default/flights"
AT_REST = VerifySettings(settle_seconds=0)
BOTH_WAYS = [Link("us-east", "eu-west"), Link("eu-west", "us-east")]


def verify(spark: Any, *arguments: Any, settings: VerifySettings = AT_REST) -> VerifyReport:
    """Scripted clusters do nothing more, so nobody waits for them."""
    return verify_live(spark, *arguments, settings=settings)


@dataclass
class Clusters:
    """Two clusters whose ``flights`` each have 4 blocks: A's own 1 and 3 (3 entries), B's own 2 and 4 (2 entries).

    Positions: at A 3:0–2 own, 3:3–4 of B, 3:5–7 own, 3:8–9 of B; at B 3:0–1 own, 3:2–4 of A, 3:5–6 own, 3:7–9 of A.
    Each of A's entries is a batch of 2, each of B's a single message: 16 messages in all.
    """

    a: WireWorker
    b: WireWorker

    def __post_init__(self) -> None:
        us, eu = self.a.topic(FLIGHTS), self.b.topic(FLIGHTS)
        first = us.publish(*(batch_entry([b"u%d" % n, b"v%d" % n], key="k") for n in range(3)), sizes=[2] * 3)
        second = eu.publish(*(single_entry(b"e%d" % n) for n in range(2)))
        us.store(second)
        eu.store(first)
        third = us.publish(*(batch_entry([b"w%d" % n, b"x%d" % n]) for n in range(3)), sizes=[2] * 3)
        fourth = eu.publish(*(single_entry(b"f%d" % n) for n in range(2)))
        us.store(fourth)
        eu.store(third)

    @property
    def us(self) -> ScriptedTopic:
        return self.a.topics[FLIGHTS]

    @property
    def eu(self) -> ScriptedTopic:
        return self.b.topics[FLIGHTS]

    @property
    def urls(self) -> dict[str, str]:
        return {"us-east": self.a.url, "eu-west": self.b.url}

    def verify(self, spark: Any, links: Sequence[Link] = BOTH_WAYS) -> VerifyReport:
        return verify(spark, self.urls, links, [FLIGHTS])


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    with WireWorker("us-east") as a, WireWorker("eu-west") as b:
        yield Clusters(a, b)


def faults(report: VerifyReport) -> dict[str, int]:
    return {fault: count for fault in FAULTS if (count := getattr(report, fault))}


def examples(report: VerifyReport) -> tuple[str, ...]:
    (finding,) = report.findings
    return finding.examples


def test_clusters_in_step_are_clean_with_markers_mappings_and_equal_acknowledgements(
    spark: Any, clusters: Clusters
) -> None:
    us, eu = clusters.us, clusters.eu
    eu.store(us.publish(marker_entry(10), kind=BlockKind.MARKERS))
    us.publish(marker_entry(12), kind=BlockKind.LOCAL_MARKERS)
    us.store(eu.publish(marker_entry(11), kind=BlockKind.MARKERS))
    eu.store(us.publish(single_entry(b"after the gap that the local marker left")))
    us.map(Position(3, 4), "eu-west", Position(3, 1))
    us.map(Position(3, 9), "eu-west", Position(3, 9))
    eu.map(Position(3, 4), "us-east", Position(3, 4))
    # The same messages, at the positions that they have in each cluster: all of the first three blocks except A's 3:6.
    # Only the second message of that batch is acknowledged.
    us.subscribe("s", Position(3, 5), ranges=((Position(3, 7), Position(3, 7)),), batch_acks={Position(3, 6): [1]})
    eu.subscribe(
        "s",
        Position(3, 4),
        ranges=((Position(3, 7), Position(3, 7)), (Position(3, 9), Position(3, 9))),
        batch_acks={Position(3, 8): [1]},
    )
    us.subscribe("local", Position(3, 9), replicated=False)
    report = clusters.verify(spark)
    assert faults(report) == {}
    assert report.clean
    assert report.messages == 17
    assert report.topics == (FLIGHTS,)
    assert (report.mappings, report.subscriptions) == (3, 1)
    assert report.clusters["us-east"].messages == report.clusters["eu-west"].messages == 17
    assert report.clusters["us-east"].markers == {"snapshot_request": 1, "snapshot": 1, "snapshot_response": 1}
    assert report.clusters["eu-west"].markers == {"snapshot_request": 1, "snapshot_response": 1}
    assert 0 < report.seconds < 60


def test_an_entry_that_did_not_arrive_is_missing_with_all_its_messages(clusters: Clusters) -> None:
    at, _, block = clusters.eu.blocks[3]
    clusters.eu.blocks[3] = (at, 2, BlockView(block).slice(0, 2))
    report = clusters.verify(None)
    assert faults(report) == {"missing": 2}
    assert examples(report)[0] == "2 messages of us-east 3:7 (us-east 3:7, not in eu-west)"


def test_an_entry_that_its_origin_does_not_have_is_missing_there(clusters: Clusters) -> None:
    at, _, block = clusters.us.blocks[2]
    clusters.us.blocks[2] = (at, 2, BlockView(block).slice(0, 2))
    assert faults(clusters.verify(None)) == {"missing": 2}


def test_a_marker_that_did_not_arrive_is_missing_and_a_local_one_is_not(clusters: Clusters) -> None:
    clusters.us.publish(marker_entry(10), kind=BlockKind.MARKERS)
    clusters.us.publish(marker_entry(12), kind=BlockKind.LOCAL_MARKERS)
    report = clusters.verify(None)
    assert faults(report) == {"missing": 1}
    assert examples(report) == ("marker of us-east 3:10 (us-east 3:10, not in eu-west)",)


def test_a_topic_that_one_cluster_lacks_is_missing_as_a_whole(clusters: Clusters) -> None:
    del clusters.b.topics[FLIGHTS]
    assert faults(clusters.verify(None)) == {"missing": 16}


def test_what_no_link_carries_is_not_missing(clusters: Clusters) -> None:
    clusters.us.publish(single_entry(b"stays"))
    assert faults(clusters.verify(None, links=[Link("eu-west", "us-east")])) == {}
    assert faults(clusters.verify(None, links=[Link("us-east", "eu-west")])) == {"missing": 1}


def test_a_block_that_was_stored_twice_is_duplicated(clusters: Clusters) -> None:
    _, _, block = clusters.eu.blocks[3]
    clusters.eu.store(BlockView(block).slice(2, 3))
    report = clusters.verify(None)
    assert faults(report) == {"duplicated": 2}
    assert examples(report)[0] == "2 messages of us-east 3:7 (us-east 3:7, eu-west 3:9 ×2)"


def test_two_entries_that_changed_places_are_reordered_once(clusters: Clusters) -> None:
    at, _, block = clusters.eu.blocks[3]
    view = BlockView(block)
    clusters.eu.blocks[3:] = [
        (at, 1, view.slice(1, 2)),
        (Position(3, 8), 1, view.slice(0, 1)),
        (Position(3, 9), 1, view.slice(2, 3)),
    ]
    report = clusters.verify(None)
    assert faults(report) == {"reordered": 1}
    assert examples(report) == ("eu-west 3:8: us-east 3:5 after 3:6",)


def test_other_content_under_the_same_identity_is_corrupted(clusters: Clusters) -> None:
    """Each block's checksum is right: what differs is what the clusters believe was published."""
    other = ScriptedTopic("eu-west", next=Position(3, 5))
    changed = other.publish(single_entry(b"f0"), single_entry(b"F1"))
    clusters.us.blocks[3] = (Position(3, 8), 2, changed)
    report = clusters.verify(None)
    assert faults(report) == {"corrupted": 1}
    assert examples(report) == ("1 message of eu-west 3:6 (us-east 3:9, eu-west 3:6)",)


@pytest.mark.parametrize(
    "other",
    [
        single_entry(b"e0", key=""),
        single_entry(b"", key="e0"),
        single_entry(b"e0", p="v"),
        single_entry(b"e"),
    ],
)
def test_a_key_a_property_or_a_payload_that_differs_is_other_content(clusters: Clusters, other: bytes) -> None:
    changed = ScriptedTopic("eu-west").publish(other, single_entry(b"e1"))
    clusters.us.blocks[1] = (Position(3, 3), 2, changed)
    assert faults(clusters.verify(None)) == {"corrupted": 1}


def test_a_tombstone_is_told_from_a_message_whose_payload_is_its_key(clusters: Clusters) -> None:
    """Both hash one text and one null; which of the two it is must count."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=PUBLISHED_AT_MS, partition_key="e0", null_value=True
    )
    changed = ScriptedTopic("eu-west").publish(encode_entry(metadata, b""), single_entry(b"e1"))
    clusters.us.blocks[1] = (Position(3, 3), 2, changed)
    assert faults(clusters.verify(None)) == {"corrupted": 1}


def test_a_mapping_that_stands_before_what_it_promises_is_wrong(clusters: Clusters) -> None:
    # Of eu-west up to 3:7, the last is us-east's own 3:5; up to 3:6, it is eu-west's 3:6, which lies at 3:9 here.
    clusters.us.map(Position(3, 9), "eu-west", Position(3, 6))
    clusters.us.map(Position(3, 8), "eu-west", Position(3, 5))
    assert faults(clusters.verify(None)) == {}
    clusters.us.map(Position(3, 8), "eu-west", Position(3, 6))
    clusters.us.map(Position(3, 8), "eu-west", Position(3, 7))
    report = clusters.verify(None)
    assert faults(report) == {"mismapped": 2}
    assert examples(report)[0] == "snapshot s2: us-east 3:8 ↔ eu-west 3:6"


def test_a_mapping_past_an_entry_that_is_not_there_at_all_is_wrong(clusters: Clusters) -> None:
    clusters.us.blocks.pop()
    clusters.us.map(Position(3, 7), "eu-west", Position(3, 4))
    assert faults(clusters.verify(None)) == {"missing": 2}
    clusters.us.map(Position(3, 7), "eu-west", Position(3, 5))
    assert faults(clusters.verify(None)) == {"missing": 2, "mismapped": 1}


def test_a_mapping_counts_entries_of_the_mapping_clusters_own_origin_too(clusters: Clusters) -> None:
    # eu-west has us-east's 3:5 at 3:7, so a mapping of that place must not stand before 3:5 at home.
    clusters.eu.map(Position(3, 6), "us-east", Position(3, 5))
    assert faults(clusters.verify(None)) == {"mismapped": 1}


def test_local_markers_are_no_part_of_what_a_mapping_promises(clusters: Clusters) -> None:
    clusters.eu.publish(marker_entry(12), kind=BlockKind.LOCAL_MARKERS)
    clusters.us.map(Position(3, 9), "eu-west", Position(3, 10))
    assert faults(clusters.verify(None)) == {}


def test_markers_that_others_wrote_are_no_part_of_what_a_mapping_promises(clusters: Clusters) -> None:
    # It is in eu-west's log before the mapped place, and not yet in us-east's: nobody will ever consume it.
    clusters.eu.publish(marker_entry(10), kind=BlockKind.MARKERS)
    clusters.us.map(Position(3, 9), "eu-west", Position(3, 10))
    assert faults(clusters.verify(None)) == {"missing": 1}


def test_a_message_acknowledged_on_one_side_only_is_a_mismatch(clusters: Clusters) -> None:
    clusters.us.subscribe("s", Position(3, 2), batch_acks={Position(3, 5): [0]})
    clusters.eu.subscribe("s", BEFORE_ALL, ranges=((Position(3, 2), Position(3, 4)),))
    report = clusters.verify(None)
    assert faults(report) == {"ack_mismatch": 1}
    assert examples(report) == (
        "1 message of us-east 3:5 (us-east 3:5, eu-west 3:7) s: acknowledged in us-east, not in eu-west",
    )


def test_a_replicated_subscription_that_one_side_lacks_counts_all_that_it_has_acknowledged(clusters: Clusters) -> None:
    clusters.us.subscribe("s", Position(3, 4))
    clusters.us.subscribe("fresh")
    assert faults(clusters.verify(None)) == {"ack_mismatch": 8}


def test_acknowledgements_are_compared_in_the_direction_of_the_links(clusters: Clusters) -> None:
    clusters.eu.subscribe("s", Position(3, 9))
    assert faults(clusters.verify(None, links=[Link("us-east", "eu-west")])) == {}
    assert faults(clusters.verify(None, links=[Link("eu-west", "us-east")])) == {"ack_mismatch": 16}


def test_acknowledgements_of_messages_that_are_not_in_both_clusters_are_not_compared(clusters: Clusters) -> None:
    clusters.us.publish(single_entry(b"stays"))
    clusters.us.subscribe("s", Position(3, 10))
    clusters.eu.subscribe("s", Position(3, 9))
    assert faults(clusters.verify(None)) == {"missing": 1}


def test_three_clusters_are_compared_link_by_link(clusters: Clusters) -> None:
    with WireWorker("ap-south") as c:
        south = c.topic(FLIGHTS)
        for _, _, block in clusters.us.blocks[:3]:  # the last, of eu-west, has not come yet
            south.store(block)
        south.subscribe("s", Position(3, 7))
        clusters.us.subscribe("s", Position(3, 9))
        clusters.eu.subscribe("s", Position(3, 9))
        urls = {"us-east": clusters.a.url, "eu-west": clusters.b.url, "ap-south": c.url}
        links = [*BOTH_WAYS, Link("us-east", "ap-south"), Link("eu-west", "ap-south")]
        report = verify(None, urls, links)
    assert faults(report) == {"missing": 2}
    assert examples(report)[0] == "2 messages of eu-west 3:5 to 6 (us-east 3:8, eu-west 3:5, not in ap-south)"


OTHER = "persistent://shop/eu/orders"


def test_what_links_do_not_let_through_is_not_missing_and_what_they_forward_is(clusters: Clusters) -> None:
    """A ring that lets one topic through: what eu-west published comes to us-east by way of ap-south."""
    clusters.a.topic(OTHER).publish(single_entry(b"stays"))
    clusters.a.topic(OTHER).subscribe("s", Position(3, 0))
    clusters.b.topic(OTHER).subscribe("s")
    with WireWorker("ap-south") as c:
        south = c.topic(FLIGHTS)
        for _, _, block in clusters.us.blocks:
            south.store(block)
        urls = {"us-east": clusters.a.url, "eu-west": clusters.b.url, "ap-south": c.url}
        names = ("us-east", "eu-west", "ap-south")
        pairs = zip(names, (*names[1:], names[0]), strict=True)
        ring = [Link(*pair, forward=True, exclude=("shop/.*",)) for pair in pairs]
        south.store(clusters.eu.publish(single_entry(b"on its way")))
        report = verify(None, urls, ring)
    assert faults(report) == {"missing": 1}
    assert "not in us-east" in examples(report)[0]


def test_a_topic_at_which_a_link_has_stopped_is_a_fault_of_its_own(clusters: Clusters) -> None:
    gap = {"topic": FLIGHTS, "kind": "trimmed", "origin": "us-east", "detail": "messages are gone"}
    clusters.a.links = [
        {"key": "us-east>eu-west", "halted": {FLIGHTS: "messages are gone", OTHER: "refused"}, "gaps": [gap]},
        {"key": "us-east>ap-south", "halted": {}, "gaps": []},
    ]
    report = clusters.verify(None)
    assert faults(report) == {"gaps": 1}, "the other topic was not asked for"
    assert examples(report) == ("link us-east>eu-west: trimmed: messages are gone",)
    assert not report.clean


def test_examples_are_few_and_the_count_is_whole(clusters: Clusters) -> None:
    for number in range(50):
        clusters.us.publish(single_entry(b"%d" % number))
    report = clusters.verify(None)
    assert report.missing == 50
    assert len(examples(report)) == 10


def test_clusters_without_topics_are_clean() -> None:
    with WireWorker("us-east") as a, WireWorker("eu-west") as b:
        report = verify(None, {"us-east": a.url, "eu-west": b.url}, BOTH_WAYS)
        assert report.clean
        a.topic(FLIGHTS)
        assert verify(None, {"us-east": a.url, "eu-west": b.url}, BOTH_WAYS).clean


def test_what_cannot_be_verified_is_one_clear_error(clusters: Clusters) -> None:
    a, b = clusters.a, clusters.b
    with pytest.raises(BadOption, match=r"^option 'topic': no cluster has persistent://public/default/nothing"):
        verify(None, {"us-east": a.url}, [], ["nothing"])
    with pytest.raises(BadOption, match="cluster eu-west has no url"):
        verify(None, {"us-east": a.url}, BOTH_WAYS)
    with pytest.raises(UnexpectedAnswer, match=f"worker at {b.url} is of cluster eu-west, not us-east"):
        verify(None, {"us-east": b.url}, [])
    with pytest.raises(PeerUnavailable, match=r"worker at http://127\.0\.0\.1:1 cannot be reached"):
        verify(None, {"us-east": "http://127.0.0.1:1"}, [])


def test_a_cluster_that_is_away_is_named_and_the_others_are_compared(clusters: Clusters) -> None:
    clusters.eu.blocks.pop()
    urls = {"us-east": clusters.a.url, "eu-west": clusters.b.url, "ap-south": "http://127.0.0.1:1"}
    report = verify(None, urls, [*BOTH_WAYS, Link("us-east", "ap-south")], [FLIGHTS])
    assert faults(report) == {"missing": 6}
    assert list(report.unreachable) == ["ap-south"]
    assert report.exit_status == 1
    clusters.a.refuse["mappings"] = 503
    clusters.us.blocks.pop(2)
    report = verify(None, urls, [*BOTH_WAYS, Link("us-east", "ap-south")], [FLIGHTS])
    assert report.clean
    assert report.exit_status == 3
    assert any("mappings of us-east were not compared" in remark for remark in report.remarks)


def test_what_a_cluster_trimmed_or_links_left_out_is_not_missing(clusters: Clusters) -> None:
    us, eu = clusters.us, clusters.eu
    del us.blocks[0]  # us-east trimmed its own 3:0 to 3:2
    us.cut = {"trimmed": "3:2", "trimmed_of": {"us-east": "3:2"}}
    del eu.blocks[3]  # 3:5 to 3:7 of us-east did not come
    assert faults(clusters.verify(None)) == {"missing": 6}
    eu.cut = {"left_out": {"us-east": [["3:4", "3:6"]]}}
    assert faults(clusters.verify(None)) == {"missing": 2}
    eu.cut = {"left_out": {"us-east": [["3:4", "3:7"]]}}
    assert faults(clusters.verify(None)) == {}
    del us.blocks[0]
    us.cut = {"trimmed": "3:4", "trimmed_of": {"us-east": "3:2", "eu-west": "3:1"}}
    assert faults(clusters.verify(None)) == {}


def test_a_topic_that_is_deleted_while_it_is_compared_is_left_out(clusters: Clusters) -> None:
    clusters.a.topic(OTHER).publish(single_entry(b"gone"))
    served = clusters.a.topics
    clusters.a.vanish_at = f"/replication/v1/raw-blocks?topic={quote(OTHER, safe='')}"
    report = verify(None, clusters.urls, BOTH_WAYS)
    assert report.clean
    assert OTHER not in served
    assert report.topics == (FLIGHTS,)


def test_what_lies_above_a_copys_mark_is_on_its_way_if_the_mark_moves_and_missing_if_it_stands(
    clusters: Clusters,
) -> None:
    at, _, block = clusters.eu.blocks.pop()
    marks = {"us-east": [7, "3:2"], "eu-west": [7, "3:6"]}
    clusters.eu.cut = {"high_water": marks}
    assert faults(clusters.verify(None)) == {"missing": 6}, "nobody brings it"
    failed = {"key": "us-east>eu-west", "to": "eu-west", "state": "failed", "detail": "no answer"}
    clusters.a.links = [{**failed, "halted": {}, "gaps": []}]
    stopped = clusters.verify(None)
    assert (faults(stopped), stopped.remarks) == ({"missing": 6}, ("link us-east>eu-west is failed: no answer",))
    clusters.a.links = [{"key": "us-east>eu-west", "to": "eu-west", "paused": True, "halted": {}, "gaps": []}]
    paused = clusters.verify(None)
    assert (faults(paused), paused.behind, paused.exit_status) == ({}, 6, 0)
    assert "link us-east>eu-west is paused: what it does not bring is not missing" in paused.remarks
    clusters.a.links = []

    def arrive(_: float) -> None:
        marks["us-east"] = [7, "3:7"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replicator.pipeline.verify.verify.time.sleep", arrive)
        report = verify(None, clusters.urls, BOTH_WAYS, [FLIGHTS], settings=VerifySettings(settle_seconds=30))
    assert (faults(report), report.behind) == ({}, 6)
    clusters.eu.cut = {"high_water": {**marks, "us-east": [7, "3:7"]}}
    assert faults(clusters.verify(None)) == {"missing": 6}, "the mark says that it was there"
    clusters.eu.blocks.append((at, 3, block))
    assert clusters.verify(None).clean


@pytest.mark.parametrize(
    "held", [{"paused": True}, {"paused": False, "state": "backfilling", "detail": "by process 1"}]
)
@pytest.mark.parametrize("at", ["us-east>eu-west", "eu-west>ap-south"])
def test_what_a_link_on_the_way_holds_back_is_behind(clusters: Clusters, held: dict[str, Any], at: str) -> None:
    forwarding = [Link("us-east", "eu-west"), Link("eu-west", "ap-south", forward=True)]
    straight = Link("us-east", "ap-south")
    with WireWorker("ap-south") as c:
        south = c.topic(FLIGHTS)
        south.store(clusters.us.blocks[0][2])
        south.cut = {"high_water": {"us-east": [7, "3:2"], "eu-west": [7, "3:6"]}}
        urls = {**clusters.urls, "ap-south": c.url}
        for _, _, block in (clusters.eu.blocks[0], clusters.eu.blocks[2]):
            south.store(block)
        assert faults(verify(None, urls, forwarding)) == {"missing": 6}, "nothing holds it back"
        source, _, destination = at.partition(">")
        worker = clusters.a if source == "us-east" else clusters.b
        worker.links = [{"key": at, "to": destination, "halted": {}, "gaps": [], **held}]
        report = verify(None, urls, forwarding)
        assert (faults(report), report.behind) == ({}, 6)
        assert faults(verify(None, urls, [*forwarding, straight])) == {"missing": 6}, "it has another way"


def test_a_sample_asks_at_once_for_blocks_that_lie_close_together(clusters: Clusters) -> None:
    """Links with subscriptions write a marker between any two blocks: a request for each costs more than all bytes."""
    for number in range(300):
        clusters.eu.store(clusters.us.publish(single_entry(b"%d" % number)))
    clusters.us.cut = clusters.eu.cut = {"runs": [[3, 0, 309]]}  # one ledger, as workers say it
    settings = VerifySettings(Selection(sample=0.5), settle_seconds=0)
    requests = []
    for each in (settings, replace(settings, selection=Selection())):
        report = verify(None, clusters.urls, BOTH_WAYS, [FLIGHTS], settings=each)
        assert (report.clean, report.messages) == (True, 316)
        requests.append(sum("raw-blocks" in request for request in clusters.a.requests + clusters.b.requests))
        clusters.a.requests.clear()
        clusters.b.requests.clear()
    assert requests == [2, 2], "a page of each"
    at, entries, block = clusters.eu.blocks[-1]
    clusters.eu.blocks[-1] = (at, entries, block[:-1] + bytes([block[-1] ^ 1]))
    whole = replace(settings, selection=Selection(sample=1.0))
    assert faults(verify(None, clusters.urls, BOTH_WAYS, [FLIGHTS], settings=whole)) == {"corrupted": 1}


def test_an_acknowledgement_that_comes_while_waited_for_is_no_mismatch(clusters: Clusters) -> None:
    clusters.us.subscribe("s", Position(3, 4))
    clusters.eu.subscribe("s", Position(3, 1))

    def arrive(_: float) -> None:
        clusters.eu.subscriptions[0]["mark_delete"] = "3:4"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replicator.pipeline.verify.verify.time.sleep", arrive)
        report = verify(None, clusters.urls, BOTH_WAYS, [FLIGHTS], settings=VerifySettings(settle_seconds=30))
    assert report.clean


def test_all_differences_are_written_as_rows(clusters: Clusters, tmp_path: Path) -> None:
    for number in range(50):
        clusters.us.publish(single_entry(b"%d" % number))
    clusters.us.subscribe("s", Position(3, 4))
    clusters.a.links = [
        {"key": "us-east>eu-west", "to": "eu-west", "halted": {FLIGHTS: "its block is corrupt"}, "gaps": []}
    ]
    settings = VerifySettings(settle_seconds=0, parquet=tmp_path / "out")
    report = verify(None, clusters.urls, BOTH_WAYS, [FLIGHTS], settings=settings)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert Counter(row["kind"] for row in rows) == {"missing": 50, "ack_mismatch": 2, "gaps": 1}
    sums = {kind: sum(row["count"] for row in rows if row["kind"] == kind) for kind in FAULTS}
    assert {kind: count for kind, count in sums.items() if count} == faults(report)
    missing = next(row for row in rows if row["kind"] == "missing")
    names = ("topic", "cluster", "other", "origin", "origin_ledger", "origin_first", "ledger", "entry", "count")
    assert [missing[name] for name in names] == [FLIGHTS, "eu-west", "us-east", "us-east", 3, 10, 3, 10, 1]
    with pytest.raises(BadOption, match="is not empty"):
        verify(None, clusters.urls, BOTH_WAYS, [FLIGHTS], settings=settings)


def test_fix_has_everything_told_again_and_leaves_gaps_to_an_operator(clusters: Clusters) -> None:
    clusters.us.subscribe("s", Position(3, 4))
    clusters.eu.subscribe("s", Position(3, 1))
    gap = {"topic": FLIGHTS, "kind": "trimmed", "origin": "us-east", "detail": "messages are gone"}
    clusters.a.links = [{"key": "us-east>eu-west", "to": "eu-west", "halted": {FLIGHTS: "gone"}, "gaps": [gap]}]

    def tell(body: Any) -> dict[str, Any]:
        clusters.eu.subscriptions[0]["mark_delete"] = "3:4"
        return {"told": len(body["topics"])}

    clusters.a.on_request["ack-vectors/tell"] = tell
    before = dict(faults(clusters.verify(None)))
    report = fix_and_verify(None, clusters.urls, BOTH_WAYS, [FLIGHTS], None, AT_REST, Path("t.yaml"))
    assert before == {"ack_mismatch": 6, "gaps": 1}
    assert faults(report) == {"gaps": 1}
    assert report.steps[0] == f"done: us-east tells all acknowledgements of {FLIGHTS}"
    assert report.steps[1].startswith("not done: eu-west tells all acknowledgements")
    assert report.steps[-1] == (
        f"left: link us-east>eu-west has a gap (trimmed) in {FLIGHTS}: replicator links resolve -f t.yaml "
        f"--from us-east --to eu-west --topic {FLIGHTS} --policy skip-and-record|copy-anew"
    )
    assert not any("DELETE" in request for request in clusters.a.requests + clusters.b.requests)


def test_the_exact_mapping_is_asked_for_places_that_the_logs_know(clusters: Clusters) -> None:
    clusters.a.on_request["place"] = lambda _: {"cluster": "us-east", "position": "3:3", "source": "store"}
    clusters.b.on_request["place"] = lambda _: {"cluster": "eu-west", "position": "3:2", "source": "store"}
    assert clusters.verify(None).clean
    clusters.b.on_request["place"] = lambda _: {"cluster": "eu-west", "position": "3:4", "source": "postgres"}
    report = clusters.verify(None)
    assert faults(report) == {"mismapped": 1}
    assert examples(report) == ("exact mapping of eu-west: us-east 3:0 at 3:4, and it lies at 3:2",)


def test_spark_finds_what_is_found_without_it(spark: Any, clusters: Clusters, tmp_path: Path) -> None:
    """One of each at once, and the same rows in the files."""
    us, eu = clusters.us, clusters.eu
    for number in range(20):
        block = us.publish(single_entry(b"%d" % number))
        if number not in (3, 4):
            eu.store(block)
    eu.store(BlockView(eu.blocks[3][2]).slice(1, 2))
    changed = ScriptedTopic("eu-west", next=Position(3, 5)).publish(single_entry(b"f0"), single_entry(b"F1"))
    us.blocks[3] = (Position(3, 8), 2, changed)
    eu.blocks[-3:-1] = [
        (eu.blocks[-3][0], 1, eu.blocks[-2][2]),
        (eu.blocks[-2][0], 1, eu.blocks[-3][2]),
    ]
    us.map(Position(3, 8), "eu-west", Position(3, 6))
    us.subscribe("s", Position(3, 12))
    eu.subscribe("s", Position(3, 4))
    found, rows = [], []
    for where, session in (("here", None), ("spark", spark)):
        settings = VerifySettings(settle_seconds=0, parquet=tmp_path / where)
        report = verify(session, clusters.urls, BOTH_WAYS, [FLIGHTS], settings=settings)
        found.append((faults(report), report.messages, report.clusters))
        rows.append(sorted(map(str, pq.read_table(tmp_path / where).to_pylist())))
    assert found[0] == found[1]
    assert rows[0] == rows[1]
    assert set(found[0][0]) == {"missing", "duplicated", "reordered", "corrupted", "mismapped", "ack_mismatch"}


def test_both_engines_name_the_cluster_and_the_position_of_a_damaged_block(spark: Any, clusters: Clusters) -> None:
    at, entries, block = clusters.us.blocks[1]
    clusters.us.blocks[1] = (at, entries, block[:-1] + bytes([block[-1] ^ 1]))
    for session in (None, spark):
        report = clusters.verify(session)
        assert faults(report) == {"corrupted": 2}
        assert [(each.cluster, each.topic, each.position) for each in report.damaged] == [("us-east", FLIGHTS, at)]
        assert examples(report)[0].endswith("damaged in us-east)")


def test_fix_says_which_damaged_blocks_a_worker_mended_and_which_nobody_has(clusters: Clusters) -> None:
    sound = list(clusters.us.blocks)
    for number in (0, 1):
        at, entries, block = sound[number]
        clusters.us.blocks[number] = (at, entries, block[:-1] + bytes([block[-1] ^ 1]))
    second = sound[1][0]

    def mend(body: Any) -> dict[str, Any]:
        if body["position"] != str(second):
            return {"outcome": "left", "reason": "eu-west does not have that block as it was"}
        clusters.us.blocks[1] = sound[1]
        return {"outcome": "mended", "reason": ""}

    clusters.a.on_request["mend"] = mend
    report = fix_and_verify(None, clusters.urls, BOTH_WAYS, [FLIGHTS], None, AT_REST, Path("t.yaml"))
    assert [each.position for each in report.damaged] == [sound[0][0]]
    assert report.exit_status == 1
    assert report.steps[:2] == (
        f"not done: us-east mends {FLIGHTS} at {sound[0][0]}: no cluster gave it whole: eu-west does not have "
        "that block as it was",
        f"done: us-east mended {FLIGHTS} at {second}",
    )


def test_a_worker_that_goes_away_while_spark_reads_is_left_out(spark: Any, clusters: Clusters) -> None:
    clusters.b.refuse["raw-blocks"] = 503
    with pytest.raises(PeerUnavailable, match=r"cannot answer raw-blocks of .* now"):
        clusters.verify(spark)


def test_engines_behind_the_real_data_plane_are_verified(spark: Any, tmp_path: Path) -> None:
    """No scripted worker here: what is stored, copied, acknowledged and served is the service's own work."""

    class Mappings:
        def __init__(self, *rows: SnapshotMapping) -> None:
            self.rows = rows

        def status(self) -> dict[str, Any]:
            return {}

        def ready(self) -> None:
            return None

        def links(self) -> tuple[()]:
            return ()

        async def mappings(self, topics: Sequence[str]) -> dict[str, tuple[SnapshotMapping, ...]]:
            return dict.fromkeys(topics, self.rows)

    async def copy(source: Topic, destination: Topic) -> None:
        blocks, _ = source.reading.blocks(BEFORE_ALL, bytes_max=2**20, origins={source_name})
        previous = [BEFORE_ALL, *(stored.header.origin_last for stored in blocks)]
        await destination.writing.copy(
            [CopiedBlock(before, stored.block) for before, stored in zip(previous, blocks, strict=False)]
        )

    async def acknowledge(topic: Topic, consumer_name: str, *acks: Ack) -> None:
        consumer = await topic.subscribe(
            "s",
            SubscribeOptions(SubscriptionType.SHARED, consumer_name, initial=InitialPosition.EARLIEST, replicated=True),
            lambda _: None,
        )
        await consumer.acknowledge(acks)

    source_name = "us-east"

    async def main() -> None:
        us = await Engine.open(tmp_path / "us", cluster=source_name)
        eu = await Engine.open(tmp_path / "eu", cluster="eu-west")
        source, destination = await us.topic(FLIGHTS), await eu.topic(FLIGHTS)
        published: list[Position] = []
        for first in range(0, 30, 10):
            published += await source.publish([batch_entry([b"%d" % first, b"+1"]) for _ in range(10)])
        local = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, replicate_to=["__local__"])
        await source.publish([encode_entry(local, b"for this cluster alone")])
        await copy(source, destination)
        copied = [
            Position(stored.position.ledger, stored.position.entry + index)
            for stored in destination.reading.blocks(BEFORE_ALL, bytes_max=2**20)[0]
            for index in range(stored.header.entries)
        ]
        for topic, places in ((source, published), (destination, copied)):
            await acknowledge(topic, "c", Ack(places[0]), Ack(places[4]), Ack(places[7], (1,)))
        mapping = SnapshotMapping("s1", published[9], "eu-west", copied[9])
        runners, urls = [], {}
        for engine, source_of_status in ((us, Mappings(mapping)), (eu, Mappings())):
            runner = web.AppRunner(make_app(engine, source_of_status, LinkedSources()))
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            runners.append(runner)
            urls[engine.cluster] = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            clean = await asyncio.to_thread(verify, spark, urls, BOTH_WAYS)
            assert faults(clean) == {}
            assert (clean.messages, clean.mappings, clean.subscriptions) == (61, 1, 1)
            await source.publish([single_entry(b"not copied")])
            await acknowledge(source, "d", Ack(published[20]))
            late = await asyncio.to_thread(verify, spark, urls, BOTH_WAYS)
            assert faults(late) == {"missing": 1, "ack_mismatch": 2}
        finally:
            for runner in runners:
                await runner.cleanup()
            await us.close()
            await eu.close()

    asyncio.run(main())
