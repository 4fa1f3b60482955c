"""Workers tell of producers in each other's way at /metrics and by alerts, after it has really happened."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from asynchronous import asynchronous
from duplicates_support import ON, numbered, numbered_batch
from engine_support import TOPIC, eventually
from monitoring_support import fires
from worker_pair import NAMES, Pair, pair

from replicator.engine.producing import conflicts, duplicate_check
from replicator.engine.producing.contents import Contents
from replicator.engine.types import ProducerOptions
from replicator.worker.starting import start_worker

SHARED, HIDDEN = "ReplicatorProducerInTwoClusters", "ReplicatorHiddenDuplicatesDiffer"


async def told(both: Pair, cluster: str) -> tuple[int, int, set[str]]:
    """Return what a worker's metrics say: the number of producer names that two clusters use, the number of hidden
    duplicates whose content differs, and which of the alerts about these two fire."""
    url = f"http://{both.topology.cluster(cluster).address}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        scraped = await answer.text()

    def value(metric: str) -> int:
        (line,) = [line for line in scraped.splitlines() if line.startswith(f"replicator_{metric}{{")]
        return int(float(line.rpartition(" ")[2]))

    alerts = {alert for alert in (SHARED, HIDDEN) if fires(alert, scraped)}
    return value("producer_names_in_two_clusters"), value("hidden_duplicates_differing"), alerts


async def deduplicating(both: Pair) -> None:
    """Make the topic in both clusters, with one message and with deduplication on."""
    await (await both.engine("us-east").topic(TOPIC)).publish([numbered(1, producer="other")])
    await eventually(lambda: both.engine("eu-west").find(TOPIC) is not None, "the topic is in both clusters")
    for cluster in NAMES:
        await both.topic(cluster).policies.set(ON.policies)


@asynchronous
async def test_a_producer_name_in_two_clusters_is_told_by_the_metric_and_its_alert(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "CLOCKS_DIFFER_MS_MAX", -60_000)
    async with pair(data_dir) as both:
        await deduplicating(both)
        assert await told(both, "eu-west") == (0, 0, set())
        await both.topic("eu-west").producers.create(ProducerOptions(name="p"))
        await both.topic("us-east").publish([numbered(1), numbered(1, producer="q")])
        await eventually(lambda: both.topic("eu-west").log.messages == 3, "both are copied")
        assert await told(both, "eu-west") == (1, 0, {SHARED})
        assert await told(both, "us-east") == (0, 0, set())


@asynchronous
async def test_entries_that_an_earlier_version_hid_though_they_differ_are_told_by_the_metric_and_its_alert(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(data_dir) as both:
        await deduplicating(both)
        with monkeypatch.context() as earlier:
            earlier.setattr(Contents, "alike", lambda *_: True)  # as a version that compared nothing but ids
            for link in [link for cluster in NAMES for link in both.workers[cluster].parts.links]:
                await link.pause()
            await both.topic("us-east").publish([numbered(1), numbered(2), numbered_batch(3, 5)])
            await both.topic("eu-west").publish(
                [numbered(1), numbered(2, content="b"), numbered_batch(3, 5, content="b")]
            )
            for link in [link for cluster in NAMES for link in both.workers[cluster].parts.links]:
                await link.resume()
            for cluster in NAMES:
                log = both.topic(cluster).log
                await eventually(lambda log=log: log.messages == 11, "both have all")  # type: ignore[misc]
                assert log.duplicates is not None
                assert len(log.duplicates.hidden) == 3
        assert await told(both, "us-east") == (0, 0, set()), "that version knows nothing of it"
        monkeypatch.setattr(duplicate_check, "_RULE", "a later version")
        await both.workers["us-east"].stop()
        both.workers["us-east"] = await start_worker(both.topology, "us-east")
        assert await told(both, "us-east") == (0, 2, {HIDDEN})
        assert await told(both, "eu-west") == (0, 0, set())
