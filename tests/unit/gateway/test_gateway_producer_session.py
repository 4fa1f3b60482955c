"""The session of one producer: what it stores and answers where one of its calls is refused or given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, eventually, message, opened

from replicator.engine.admission import Admission
from replicator.engine.engine import Engine
from replicator.engine.log.entry import decode_entry
from replicator.engine.policies import QuotaPolicy, TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import ProducerOptions
from replicator.gateway.producing import ProducerSession
from replicator.gateway.wire import Unanswered
from replicator.protocol.commands_pb2 import BaseCommand
from replicator.protocol.data_commands import Sends
from snapshots.position import BEFORE_ALL, Position


class Connected:
    """A connection that notes what its sessions write."""

    def __init__(self, engine: Engine) -> None:
        self.admission: Admission = engine.admission
        self.writable = True
        self.unanswered: set[Unanswered] = set()
        self.held_bytes = 0
        self.frames: list[bytes] = []
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, command: BaseCommand) -> None:
        self.frames.append(command.SerializeToString())

    def write(self, frames: bytes) -> None:
        self.frames.append(frames)

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)

    def wants_broker_metadata(self) -> bool:
        return False

    def understands(self, since: int) -> bool:
        return True

    def knows_end_of_topic(self) -> bool:
        return True

    def work(
        self, call: Coroutine[Any, Any, None], name: str, *, to_the_end: bool = False, waits: bool = False
    ) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(call))
        return self.tasks[-1]

    def later(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def held(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes

    def producer_gone(self, producer_id: int, session: object) -> bool:
        return True

    def consumer_put_at(self, consumer_id: int, mark_delete: Position) -> None: ...

    def consumer_gone(self, consumer_id: int, session: object) -> bool:
        return True


def sends(*entries: bytes) -> Sends:
    sent = Sends(1)
    sent.entries = list(entries)
    sent.sequence_ids = [decode_entry(entry)[0].sequence_id for entry in entries]
    sent.highest_sequence_ids = [0] * len(entries)
    return sent


def stored(topic: Topic) -> list[int]:
    """Return the sequence ids of what is in the log, in its order."""
    entries = topic.reading.entries(BEFORE_ALL, None, 10_000, 1 << 30)
    return [decode_entry(bytes(each.entry))[0].sequence_id for each in entries]


@pytest.mark.parametrize("deduplication", [False, True])
def test_what_is_sent_with_the_close_does_not_overtake_a_large_call(tmp_path: Path, deduplication: bool) -> None:
    """With deduplication, what it overtook would be confirmed as duplicates, and be nowhere."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.policies.set(TopicPolicies(deduplication=deduplication))
            wire = Connected(engine)
            session = ProducerSession(wire, 1, await topic.producers.create(ProducerOptions()), -1, b"")

            def last() -> None:
                session.send(sends(message(sequence_id=3)))
                session.close()

            session.send(sends(*(message(bytes(3 << 20), sequence_id=at) for at in (1, 2))))
            asyncio.get_running_loop().call_soon(last)  # it came in the turn in which the large ones are published
            await asyncio.sleep(0)
            await asyncio.wait_for(session.answered(), 10)
            assert stored(topic) == [1, 2, 3]
            assert (wire.held_bytes, wire.unanswered) == (0, set())

    asyncio.run(main())


def test_what_waits_behind_a_refused_call_is_counted_back_when_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.gateway.producing.CLOSE_SECONDS_MAX", 0.05)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            wire = Connected(engine)
            session = ProducerSession(wire, 1, await topic.producers.create(ProducerOptions()), -1, b"")
            session.send(sends(message(sequence_id=1, clusters=["us-east"]), message(sequence_id=2)))
            await asyncio.sleep(0)  # refused: they cannot be published at once
            topic.writing.quota_exceeded = QuotaPolicy.PRODUCER_REQUEST_HOLD  # holds what is published again
            await eventually(lambda: topic.writing.gate.held == 1, "the first half is held")
            session.send(sends(message(sequence_id=3)))
            await asyncio.sleep(0)
            session.close()
            await asyncio.wait_for(session.answered(), 10)
            assert (wire.held_bytes, wire.unanswered) == (0, set())

    asyncio.run(main())
