"""Rates over the last minute, by a clock that is set by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import TOPIC, batch, marker, message, opened

from replicator.api.admin.traffic import SLOT_SECONDS, SLOTS, TrafficMeter
from replicator.engine.types import ProducerOptions

MINUTE_SECONDS = SLOT_SECONDS * SLOTS


class Clock:
    def __init__(self) -> None:
        self.now_seconds = 1000.0

    def __call__(self) -> float:
        return self.now_seconds


def test_the_rate_is_that_of_the_last_minute_and_falls_to_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        meter = TrafficMeter(clock)
        async with opened(tmp_path) as engine:
            engine.add_listener(meter)
            topic = await engine.topic(TOPIC)
            assert meter.messages_per_second(TOPIC) == 0
            for _ in range(SLOTS):
                await topic.publish([batch([b"x"] * 50)])
                await topic.publish([message()] * 50)
                await topic.writing.marker(marker())
                clock.now_seconds += SLOT_SECONDS
            assert meter.messages_per_second(TOPIC) == 100 / SLOT_SECONDS
            await topic.publish([message()] * 1000)  # of the running slot: not counted yet
            assert meter.messages_per_second(TOPIC) == 100 / SLOT_SECONDS
            clock.now_seconds += MINUTE_SECONDS
            assert meter.messages_per_second(TOPIC) == 1000 / MINUTE_SECONDS
            clock.now_seconds += SLOT_SECONDS
            assert meter.messages_per_second(TOPIC) == 0

    asyncio.run(main())


def test_topics_that_nothing_is_published_to_and_deleted_ones_have_no_meter(tmp_path: Path) -> None:
    async def main() -> None:
        meter = TrafficMeter(Clock())
        async with opened(tmp_path) as engine:
            engine.add_listener(meter)
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions())
            await topic.writing.marker(marker())
            assert not meter._slots
            await producer.publish([message()])
            producer.close()
            assert list(meter._slots) == [TOPIC]
            await engine.deleting.delete(TOPIC)
            assert not meter._slots

    asyncio.run(main())
