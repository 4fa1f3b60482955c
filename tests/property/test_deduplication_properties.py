"""However often producers send again, connect again and the engine restarts: everything is stored, once, in order."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from engine_support import TOPIC, logged, opened
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.engine import EngineSettings
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing.deduplication import SequencedEntry, SequenceRow, SequenceTable
from replicator.engine.topic import Topic
from replicator.engine.types import DUPLICATE, ProducerOptions
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata

ON = EngineSettings(policies=TopicPolicies(deduplication=True))
NAMES = ("p", "q")


def single(name: str, number: int) -> list[bytes]:
    return [encode_entry(MessageMetadata(producer_name=name, sequence_id=number, publish_time=1), b"m")]


def batch_of(name: str, number: int, size: int) -> list[bytes]:
    metadata = MessageMetadata(
        producer_name=name,
        sequence_id=number,
        highest_sequence_id=number + size - 1,
        publish_time=1,
        num_messages_in_batch=size,
    )
    body = bytearray()
    for _ in range(size):
        append_to_batch(body, SingleMessageMetadata(payload_size=0), b"b")
    return [encode_entry(metadata, body)]


def chunked(name: str, number: int, chunks: int) -> list[bytes]:
    return [
        encode_entry(
            MessageMetadata(
                producer_name=name,
                sequence_id=number,
                publish_time=1,
                chunk_id=at,
                num_chunks_from_msg=chunks,
                total_chunk_msg_size=chunks,
                uuid=f"{name}-{number}",
            ),
            b"c",
        )
        for at in range(chunks)
    ]


@dataclass
class Sender:
    """Producer that keeps messages until they are confirmed, and sends them again after every interruption."""

    name: str
    following: int = 0
    pending: deque[bytes] = field(default_factory=deque)
    sent: list[bytes] = field(default_factory=list)

    def make(self, kind: str, size: int) -> None:
        if kind == "single":
            made, used = single(self.name, self.following), 1
        elif kind == "batch":
            made, used = batch_of(self.name, self.following, size), size
        else:
            made, used = chunked(self.name, self.following, size + 1), 1
        self.following += used
        self.pending.extend(made)
        self.sent.extend(made)

    async def send(self, topic: Topic, count: int, *, heard: bool) -> None:
        """Publish the ``count`` oldest pending messages. Without ``heard`` the answer is lost: they stay pending."""
        entries = list(self.pending)[:count]
        if not entries:
            return
        producer = await topic.producers.create(ProducerOptions(name=self.name))
        try:
            positions = await producer.publish(entries)
        finally:
            producer.close()
        assert len(positions) == len(entries)
        stored = [position for position in positions if position != DUPLICATE]
        assert stored == sorted(set(stored))
        if heard:
            for _ in entries:
                self.pending.popleft()


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("make"), st.integers(0, 1), st.sampled_from(["single", "batch", "chunks"]), st.integers(1, 4)
        ),
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("twice"), st.integers(0, 1), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=30,
)


async def run(path: Path, script: list[tuple[str, int, object, object]]) -> None:
    senders = [Sender(name) for name in NAMES]
    left = deque(script)
    while True:
        async with opened(path, settings=ON) as engine:
            topic = await engine.topic(TOPIC)
            while left and (step := left.popleft())[0] != "restart":
                what, which, first, second = step
                sender = senders[which]
                if what == "make":
                    sender.make(str(first), int(second))  # type: ignore[call-overload]
                elif what == "send":
                    await sender.send(topic, int(first), heard=bool(second))  # type: ignore[call-overload]
                else:  # its first connection is lost before the answer, and it does not know what became of it
                    entries = list(sender.pending)[: int(first)]  # type: ignore[call-overload]
                    lost = asyncio.ensure_future(topic.publish(entries)) if entries else None
                    await asyncio.sleep(0)
                    await sender.send(topic, len(sender.pending), heard=bool(second))
                    if lost is not None:
                        await lost
            if left:
                continue
            for sender in senders:
                await sender.send(topic, len(sender.pending), heard=True)
                last = await topic.producers.create(ProducerOptions(name=sender.name))
                assert last.last_sequence_id == sender.following - 1
            stored = [entry for _, _, entry in logged(topic)]
            for sender in senders:
                assert [entry for entry in stored if entry in set(sender.sent)] == sender.sent
            assert len(stored) == sum(len(sender.sent) for sender in senders)
            return


@settings(max_examples=examples(20), deadline=None)
@given(steps)
def test_everything_is_stored_once_and_in_order(script: list[tuple[str, int, object, object]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), script))


numbered = st.tuples(
    st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 0, 3, 4])
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.lists(numbered, max_size=4), st.booleans()), max_size=12))
def test_a_transaction_that_is_rolled_back_never_happened(
    script: list[tuple[list[tuple[str, int, int, int, int]], bool]],
) -> None:
    """A table that saw failed transactions says the same as one that did not, and has the same rows to write."""
    tried, plain = SequenceTable(rows_max=1), SequenceTable(rows_max=1)
    written: dict[str, SequenceRow | None] = {}
    for now_ms, (entries, fails) in enumerate(script):
        calls = [
            SequencedEntry(name, first, first, min(chunk, chunks - 1), chunks, "u")
            if chunks
            else SequencedEntry(name, first, first + more)
            for name, first, more, chunk, chunks in entries
        ]
        tried.begin()
        said = attempt(tried, calls, now_ms)
        changes = tried.take_changes()
        if fails:
            tried.roll_back()
            continue
        written.update(changes)
        assert attempt(plain, calls, now_ms) == said
    for name in "ab":
        assert tried.highest(name) == plain.highest(name)
    rows = {name: row for name, row in written.items() if row is not None}
    again = SequenceTable(rows.items(), rows_max=1)
    probe = [SequencedEntry(name, 5, 5) for name in "ab"]
    assert attempt(again, probe, 99) == attempt(plain, probe, 99)


def attempt(table: SequenceTable, calls: list[SequencedEntry], now_ms: int) -> list[bool] | str:
    try:
        return table.admit(calls, now_ms)
    except Exception as error:  # noqa: BLE001 - compared, whatever it is
        return repr(error)
