"""Compared fields of entries at brokers, and the entries that subscriptions have acknowledged."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.apache.broker_cursor import BrokerCursor
from replicator.apache.stamps import Identity, stamped
from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.pipeline.verify.brokers.acknowledged import acked_at_broker, common_of, only_acked_at_source
from replicator.pipeline.verify.brokers.acknowledgements import States, compare_acknowledgements
from replicator.pipeline.verify.brokers.entry_log import Content, EntryLog, EntryRows, content_of, schema_version_of
from replicator.pipeline.verify.brokers.native_twins import with_twins
from snapshots.position import Position
from snapshots.position_set import PositionSet

IDENTITY = Identity("us-east.pulsar", 5, Position(7, 3))
VERSIONS: Mapping[bytes, bytes] = {b"": b"", b"v0": b"content", b"v9": b"content"}


def entry(payload: bytes = b"payload", **fields: object) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1_700_000_000_000)
    for name, value in fields.items():
        setattr(metadata, name, value)
    return encode_entry(metadata, payload)


def test_an_entry_is_the_same_with_a_stamp_and_with_another_version_of_the_same_schema() -> None:
    at_home = entry(schema_version=b"v0", num_messages_in_batch=3, txnid_least_bits=1, txnid_most_bits=2)
    copied = stamped(at_home, IDENTITY, b"v9")
    here, there = content_of(at_home, VERSIONS), content_of(copied, VERSIONS)
    assert here.identity is None
    assert there.identity == IDENTITY
    assert there.checksum == here.checksum
    assert there.messages == 3
    assert content_of(entry(schema_version=b"content", num_messages_in_batch=3)).checksum == here.checksum
    with pytest.raises(KeyError):
        content_of(entry(schema_version=b"new"), VERSIONS)
    assert schema_version_of(entry(schema_version=b"new")) == b"new"


def test_another_payload_key_property_or_schema_is_another_content() -> None:
    found = [
        content_of(entry(b"other")),
        content_of(entry(partition_key="k")),
        content_of(entry(producer_name="q")),
        content_of(entry(publish_time=1)),
        content_of(entry(schema_version=b"v0"), {b"v0": b"another"}),
        content_of(entry()),
    ]
    assert len({each.checksum for each in found}) == len(found)


def test_bytes_that_are_no_entry_are_compared_as_they_are() -> None:
    one, other = content_of(b"\0" * 30, VERSIONS), content_of(b"\1" * 30, VERSIONS)
    assert one.identity is None
    assert one.checksum != other.checksum
    assert one.checksum == content_of(b"\0" * 30).checksum


def log_of(entries: list[int], ledger: int) -> EntryLog:
    rows = EntryRows()
    for number, each in enumerate(entries):
        identity = Identity("A.pulsar", 5, Position(7, each))
        rows.add(identity, Position(ledger, number), Content(None, each, 2, 0))
    return rows.log()


@given(
    here=st.lists(st.integers(0, 30), unique=True, max_size=30).map(sorted),
    there=st.lists(st.integers(0, 30), unique=True, max_size=30).map(sorted),
    seed=st.integers(0, 2**32),
)
def test_what_is_acknowledged_at_the_source_alone_is_found_by_identity(
    here: list[int], there: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    acked_here = {each for each in range(31) if chance.random() < 0.5}
    acked_there = {each for each in acked_here if chance.random() < 0.7}

    def cursor(entries: list[int], acked: set[int], ledger: int) -> BrokerCursor:
        """With a mark-delete as far as it goes, and ranges beyond."""
        mark = 0
        while mark < len(entries) and entries[mark] in acked:
            mark += 1
        beyond = [Position(ledger, at) for at in range(mark, len(entries)) if entries[at] in acked]
        return BrokerCursor(Position(ledger, mark - 1), PositionSet(beyond))

    common = common_of(log_of(here, 100), log_of(there, 200))
    source = acked_at_broker("work", cursor(here, acked_here, 100))
    destination = acked_at_broker("work", cursor(there, acked_there, 200))

    def named(found: np.ndarray) -> set[int]:
        return {int(common.source.origin_entry[common.at_source[index]]) for index in found}

    assert named(only_acked_at_source(common, source, destination)) == (acked_here - acked_there) & {*here} & {*there}
    assert named(only_acked_at_source(common, source, None)) == acked_here & {*here} & {*there}


def test_what_native_replication_brought_stands_for_the_entry_of_the_other_cluster_once() -> None:
    """Cluster B has native copies of the contents 1, 2, 2 and 5 of cluster A, and got 3 by a link."""
    there, here = EntryRows(), EntryRows()
    for number, checksum in enumerate([1, 2, 2, 3, 4]):
        there.add(Identity("A.pulsar", 5, Position(7, number)), Position(100, number), Content(None, checksum, 1, 0))
    rows = [("", 9), ("a", 1), ("a", 2), ("elsewhere", 4), ("a", 2), ("a", 5)]
    for number, (source, checksum) in enumerate(rows):
        at = Position(200, number)
        here.add(Identity("B.pulsar", 6, at), at, Content(None, checksum, 1, 0, source=source))
    here.add(Identity("A.pulsar", 5, Position(7, 3)), Position(200, 6), Content(None, 3, 1, 0))
    log = here.log()
    found = with_twins(log, {"a": "A.pulsar", "b": "B.pulsar"}, [log, there.log()])
    of_a = [
        (int(found.origin_entry[row]), int(found.entry[row]))
        for row in range(len(found))
        if found.lives[found.life[row]].origin == "A.pulsar"
    ]
    assert of_a == [(0, 1), (1, 2), (2, 4), (3, 6)]
    assert found.entry.tolist() == sorted(found.entry)
    assert len(found) == len(log) + 3


def test_what_arrives_in_time_or_was_taken_back_at_the_source_is_no_difference() -> None:
    log = log_of([0, 1, 2, 3], 100)
    all_of = acked_at_broker("w", BrokerCursor(Position(100, 3)))
    none_of = acked_at_broker("w", BrokerCursor(Position(100, -1)))
    places = {"A": ("the brokers of A", log), "B": ("the brokers of B", log)}

    def differing(answers: Mapping[str, list[States]], seconds: float) -> list[str]:
        left = {name: list(each) for name, each in answers.items()}

        async def read(name: str) -> States:
            return left[name].pop(0) if len(left[name]) > 1 else left[name][0]

        found, subscriptions = asyncio.run(
            compare_acknowledgements([("A", "B")], places, {"A": {"w": all_of}}, read, time.monotonic() + seconds)
        )
        assert subscriptions == 1
        return [f"{each.kind} {each.entries} {each.messages} {each.copy}" for each in found]

    acked, open_ = {"w": all_of}, {"w": none_of}
    assert differing({"A": [acked], "B": [open_, acked]}, 60) == []
    assert differing({"A": [acked, open_], "B": [open_]}, 60) == []
    assert differing({"A": [acked], "B": [open_]}, 0) == ["ack_mismatch 4 8 the brokers of B"]
    assert differing({"A": [acked], "B": [{}]}, 0) == ["ack_mismatch 4 8 the brokers of B"]


def test_who_consumed_the_part_of_a_batch_that_a_link_let_pass_has_not_consumed_the_batch() -> None:
    def log(ledger: int, contents: list[Content]) -> EntryLog:
        rows = EntryRows()
        for number, content in enumerate(contents):
            rows.add(Identity("A.pulsar", 5, Position(7, number)), Position(ledger, number), content)
        return rows.log()

    whole = [Content(None, number, 4, 0) for number in range(3)]
    part = [whole[0], Content(None, 11, 2, 0, absent=2), whole[2]]
    everything = acked_at_broker("w", BrokerCursor(Position(100, 2)))
    home, there, also_there = log(100, whole), log(100, part), log(200, part)

    def lacking(source: EntryLog, destination: EntryLog) -> list[int]:
        return only_acked_at_source(common_of(source, destination), everything, None).tolist()

    assert lacking(home, there) == [0, 1, 2]
    assert lacking(there, home) == [0, 2]
    assert lacking(there, also_there) == [0, 1, 2]  # both have the same part
