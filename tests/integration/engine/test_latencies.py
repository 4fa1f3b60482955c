"""Observation of latencies: of publishing, copying, dispatching, acknowledging and syncing between two clusters."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import TOPIC, eventually, message
from sync_support import acknowledged, clusters, having, in_step, taking

from replicator.engine.latencies import Histogram


def test_each_step_of_a_message_from_one_cluster_to_the_other_and_of_its_acknowledgement_is_observed(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            here, there = us.engine.writer.latencies, eu.engine.writer.latencies
            topic = await us.engine.topic(TOPIC)
            for _ in range(3):
                await topic.publish([message()] * 10)
            assert sum(here.publish.counts) == 3, "one for each publish, and none for a marker"
            assert here.publish.sum_seconds > 0
            consumer, inbox = await taking(us, 30)
            await having(eu, 30)
            assert 1 <= observed(here.dispatch["us-east"]) <= 30
            await eventually(lambda: observed(here.copy["eu-west", "us-east>eu-west"]) >= 1, "a frame in eu-west")
            before = observed(here.acknowledge)
            await acknowledged(consumer, inbox, slice(0, 5))
            assert observed(here.acknowledge) > before
            await in_step(us, eu, 25)
            await eventually(lambda: observed(there.sync["us-east"]) >= 1, "an update that was applied")
            await eventually(lambda: observed(here.announce) >= 1, "an update that was announced")
            assert list(here.sync) == [], "eu-west had nothing to announce"
            _, arrived = await taking(eu, 25)
            assert len(arrived.positions) == 25
            assert list(there.dispatch) == ["us-east"]
            assert sum(there.publish.counts) == 0, "a copy is no publish"

    asyncio.run(main())


def observed(histogram: Histogram) -> int:
    return sum(histogram.counts)
