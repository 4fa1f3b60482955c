"""The session of one producer: what it stores and answers where one of its calls is refused or given up."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from engine_support import TOPIC, eventually, message, opened
from hypothesis import given
from hypothesis import strategies as st
from wire_support import Connected

from replicator.engine.admission import Admission
from replicator.engine.errors import EngineError, NotAllowedError
from replicator.engine.log.entry import decode_entry
from replicator.engine.log.requests import Answer
from replicator.engine.policies import QuotaPolicy, TopicPolicies
from replicator.engine.producing.producers import EngineProducer
from replicator.engine.producing.publish_order import OrderTicket
from replicator.engine.topic import Topic
from replicator.engine.types import ProducerOptions
from replicator.gateway.producing import ProducerSession
from replicator.protocol.commands_pb2 import BaseCommand
from replicator.protocol.data_commands import Sends
from snapshots.position import BEFORE_ALL, Position


def sends(*entries: bytes) -> Sends:
    sent = Sends(1)
    sent.entries = list(entries)
    sent.sequence_ids = [decode_entry(entry)[0].sequence_id for entry in entries]
    sent.highest_sequence_ids = [0] * len(entries)
    return sent


def stored(topic: Topic) -> list[int]:
    """Return the sequence ids in the log, in its order."""
    entries = topic.reading.entries(BEFORE_ALL, None, 10_000, 1 << 30)
    return [decode_entry(bytes(each.entry))[0].sequence_id for each in entries]


@pytest.mark.parametrize("deduplication", [False, True])
def test_what_is_sent_with_the_close_does_not_overtake_a_large_call(tmp_path: Path, deduplication: bool) -> None:
    """With deduplication, the overtaken messages would be confirmed as duplicates without being stored."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.policies.set(TopicPolicies(deduplication=deduplication))
            wire = Connected(engine.admission)
            session = ProducerSession(wire, 1, await topic.producers.create(ProducerOptions()), -1, b"")

            def last() -> None:
                session.send(sends(message(sequence_id=3)))
                session.close()

            session.send(sends(*(message(bytes(3 << 20), sequence_id=at) for at in (1, 2))))
            asyncio.get_running_loop().call_soon(last)  # it came in the turn in which the large ones are published
            await asyncio.sleep(0)
            await asyncio.wait_for(session.answered(), 10)
            assert stored(topic) == [1, 2, 3]
            assert (wire.held_bytes, wire.unanswered) == (0, {})

    asyncio.run(main())


def test_what_waits_behind_a_refused_call_is_counted_back_when_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.gateway.producing.CLOSE_SECONDS_MAX", 0.05)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            wire = Connected(engine.admission)
            session = ProducerSession(wire, 1, await topic.producers.create(ProducerOptions()), -1, b"")
            session.send(sends(message(sequence_id=1, clusters=["us-east"]), message(sequence_id=2)))
            await asyncio.sleep(0)  # refused: they cannot be published at once
            topic.writing.quota_exceeded = QuotaPolicy.PRODUCER_REQUEST_HOLD  # holds what is published again
            await eventually(lambda: topic.writing.gate.held == 1, "the first half is held")
            session.send(sends(message(sequence_id=3)))
            await asyncio.sleep(0)
            session.close()
            await asyncio.wait_for(session.answered(), 10)
            assert (wire.held_bytes, wire.unanswered) == (0, {})

    asyncio.run(main())


class WaitingEngine:
    """A producer of an engine that commits one call at a time, in order, when :meth:`commit` is called.

    It refuses entries that are ``b"wrong"``. Some calls begin by a task, as those do that have to wait.
    """

    closed = deduplicated = False

    def __init__(self) -> None:
        self.on_closed: Callable[[str, str], None] | None = None
        self.by_task = False
        self.stored: list[bytes] = []
        self._calls: deque[tuple[Sequence[bytes], OrderTicket | None, Answer]] = deque()

    def begin_publish(
        self, entries: Sequence[bytes], turn: OrderTicket, answer: Answer
    ) -> asyncio.Task[list[Position]] | None:
        self._calls.append((entries, turn, answer))
        return asyncio.get_running_loop().create_task(asyncio.sleep(0, [])) if self.by_task else None

    async def publish(self, entries: Sequence[bytes], turn: OrderTicket | None = None) -> list[Position]:
        answer: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
        self._calls.append((entries, turn, answer))
        return await answer

    def close(self) -> None: ...

    def commit(self) -> bool:
        """Answer the oldest call. Return whether there was one."""
        if not self._calls:
            return False
        entries, turn, answer = self._calls.popleft()
        refusal: EngineError | None = None if turn is None else turn.refusal
        if b"wrong" in entries:
            refusal = refusal or NotAllowedError("it is wrong")
        if refusal is None:
            first = len(self.stored)
            self.stored += entries
            answer.set_result([Position(1, first + at) for at in range(len(entries))])
        else:
            if turn is not None:
                turn.refused(refusal)
            answer.set_exception(refusal)
        return True


def commands(frames: bytes) -> Iterator[BaseCommand]:
    at = 0
    while at < len(frames):
        total, size = struct.unpack_from(">II", frames, at)
        yield BaseCommand.FromString(frames[at + 8 : at + 8 + size])
        at += 4 + total


_STEPS = st.one_of(
    st.tuples(st.just("send"), st.lists(st.sampled_from([True, True, True, False]), min_size=1, max_size=3)),
    st.tuples(st.just("commit"), st.just([True])),
    st.tuples(st.just("turn"), st.just([True])),
    st.tuples(st.just("by task"), st.lists(st.booleans(), min_size=1, max_size=1)),
)


@given(st.lists(_STEPS, max_size=30))
def test_every_send_is_answered_in_order_and_all_but_the_wrong_ones_are_stored_in_order(
    steps: list[tuple[str, list[bool]]],
) -> None:
    async def main() -> None:
        engine, wire = WaitingEngine(), Connected(Admission())
        session = ProducerSession(wire, 1, cast(EngineProducer, engine), -1, b"")
        sent: list[bytes] = []
        for step, given_ in steps:
            if step == "send":
                entries = [b"%d" % (len(sent) + at) if right else b"wrong" for at, right in enumerate(given_)]
                sending = Sends(1)
                sending.entries = list(entries)
                sending.sequence_ids = list(range(len(sent), len(sent) + len(entries)))
                sending.highest_sequence_ids = [0] * len(entries)
                sent += entries
                session.send(sending)
            elif step == "commit":
                engine.commit()
            elif step == "turn":
                await asyncio.sleep(0)
            else:
                (engine.by_task,) = given_
        answered = session.answered()
        quiet = 0
        while quiet < 10:  # turns of the event loop in which nothing was committed
            quiet = 0 if engine.commit() else quiet + 1
            await asyncio.sleep(0)
        await asyncio.wait_for(answered, 10)
        said = [command for frames in wire.frames for command in commands(frames)]
        receipts = [command.type == BaseCommand.SEND_RECEIPT for command in said]
        ids = [
            (command.send_receipt if receipt else command.send_error).sequence_id
            for command, receipt in zip(said, receipts, strict=True)
        ]
        assert ids == list(range(len(sent)))
        assert receipts == [entry != b"wrong" for entry in sent]
        assert engine.stored == [entry for entry in sent if entry != b"wrong"]
        assert (wire.held_bytes, wire.unanswered) == (0, {})

    asyncio.run(main())
