"""Clients are told of a last message exactly if one is to come, whatever the history of the topic.

The rules by which clients compare message ids are those of the official ones: after a message was read, or at a start
by message id, the id of the last message must be greater; at a start from latest, and after a seek by time, the
mark-delete position must be below it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import replace
from pathlib import Path

from duplicates_support import ON
from engine_support import opened
from examples import examples
from histories_support import STEPS, History, Id, reading
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.types import InitialPosition, SubscribeOptions, SubscriptionType
from replicator.gateway.consuming import last_message_answer
from replicator.protocol.values import position_of
from snapshots.position import BEFORE_ALL, Position

EARLIEST = SubscribeOptions(
    type=SubscriptionType.EXCLUSIVE, durable=False, initial=InitialPosition.EARLIEST, consumer_name="reader"
)
LATEST = replace(EARLIEST, initial=InitialPosition.LATEST)


class Judge:
    """Checker that reads one topic from every position, and compares with the last message that clients are told."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._topic = history.topic
        self._readers = 0

    async def check(self) -> None:
        for compacted in (False, True):
            await self._check_earliest(compacted)
            await self._check_latest(compacted)
            ids = self._history.ids
            for start in dict.fromkeys(self._history.random.choices(ids, k=4) if ids else ()):
                await self._check_id(start, compacted)
            times_ms = self._history.times_ms or [1]
            for time_ms in {0, *self._history.random.choices(times_ms, k=2), 2**62}:
                await self._check_time(time_ms, compacted)

    async def _check_earliest(self, compacted: bool) -> None:
        readable, last, mark_delete = await self._read(replace(EARLIEST, read_compacted=compacted))
        assert last == (readable[-1] if readable else None)
        assert last is None or mark_delete < last.position

    async def _check_latest(self, compacted: bool) -> None:
        readable, last, mark_delete = await self._read(replace(LATEST, read_compacted=compacted))
        assert readable == []
        if last is None:
            return
        assert mark_delete == last.position, "exclusive: nothing is to come; inclusive: the last one"
        assert await self._readable_from(last, compacted) == [last], "the client seeks to it"

    async def _check_id(self, start: Id, compacted: bool) -> None:
        readable = await self._readable_from(start, compacted)
        _, last, _ = await self._read(replace(EARLIEST, read_compacted=compacted))
        assert bool(readable) is (last is not None and last >= start)
        assert any(each > start for each in readable) is (last is not None and last > start)

    async def _check_time(self, time_ms: int, compacted: bool) -> None:
        reader = await reading(self._topic, self._name(), replace(LATEST, read_compacted=compacted))
        await reader.consumer.seek(time_ms)
        last, mark_delete = answer(reader.consumer)
        readable = await reader.readable()
        assert bool(readable) is (last is not None and mark_delete < last.position)
        reader.consumer.close()

    async def _readable_from(self, start: Id, compacted: bool) -> list[Id]:
        """Return the messages that a reader shows if it begins with one of them; the cluster sends its whole batch."""
        before = Position(start.position.ledger, start.position.entry - 1)
        readable, _, _ = await self._read(replace(EARLIEST, read_compacted=compacted, start=before))
        return [each for each in readable if each >= start]

    async def _read(self, options: SubscribeOptions) -> tuple[list[Id], Id | None, Position]:
        reader = await reading(self._topic, self._name(), options)
        last, mark_delete = answer(reader.consumer)
        readable = await reader.readable()
        assert answer(reader.consumer)[0] == last
        for each in readable:  # it says so too to a reader that has read a part
            assert last is not None
            assert each <= last
        reader.consumer.close()
        return readable, last, mark_delete

    def _name(self) -> str:
        self._readers += 1
        return f"reader-{self._readers}"


def answer(consumer: object) -> tuple[Id | None, Position]:
    """Return the last message's id and the mark-delete position that a connection sends for ``consumer``."""
    sent = last_message_answer(consumer.last_message(), -1)  # type: ignore[attr-defined]
    position = position_of(sent.last_message_id)
    last = None if position == BEFORE_ALL else Id(position, sent.last_message_id.batch_index)
    return last, position_of(sent.consumer_mark_delete_position)


@settings(max_examples=examples(80), deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), min_size=3, max_size=14), randoms=st.randoms(use_true_random=False))
def test_a_reader_is_told_of_a_message_exactly_if_it_gets_one(steps: list[str], randoms: random.Random) -> None:
    async def run(directory: Path) -> None:
        async with opened(directory, settings=ON) as engine:
            history = History(await engine.topic("orders"), randoms)
            judge = Judge(history)
            await judge.check()
            for step in steps:
                await history.step(step)
                if step in ("compact", "trim", "markers"):
                    await judge.check()
            await judge.check()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))
