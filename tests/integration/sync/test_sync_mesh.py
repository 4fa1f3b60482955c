"""Cost of one new topic in a full mesh: the number of markers, and of links' looks for topics that are not there.

Both grow with the number of clusters, and not with its square. The test counts and does not measure time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from engine_support import eventually, message
from sync_node_support import TOPIC, Node, mesh

from replicator.engine.log.store import Store
from replicator.sync.marker_log import Counters, MarkerLog
from snapshots.actions import ControllerSettings
from snapshots.markers import LocalSnapshot, SnapshotRequest, SnapshotResponse, SubscriptionsUpdate
from snapshots.position import BEFORE_ALL, Position

PATIENT = ControllerSettings(snapshot_interval_ms=60_000, snapshot_timeout_ms=3_600_000)
"""Settings so patient that even on a busy machine the publishing cluster asks before another one does."""


def at_rest(nodes: Collection[Node]) -> bool:
    """Return whether every cluster has all that the others wrote, has the subscription, and waits for nothing."""
    topics = [node.engine.find(TOPIC) for node in nodes]
    if any(topic is None or "sub" not in topic.subscriptions for topic in topics):
        return False
    vectors = [topic.origins.vector() for topic in topics if topic is not None]
    return all(node.sync.is_idle for node in nodes) and all(vector == vectors[0] for vector in vectors)


def markers(node: Node) -> Counter[tuple[str, type]]:
    """Return the markers of the log, by writer and kind."""
    log = MarkerLog(node.topic(), Counters())
    return Counter(
        (stored.header.origin, type(marker))
        for blocks in log.pages(BEFORE_ALL, node.topic().log.last)
        for stored in blocks
        if stored.header.kind.value
        for _, marker in log.markers(stored)
    )


@pytest.mark.parametrize("clusters", [2, 4])
def test_a_new_topic_is_asked_about_once_however_many_clusters_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clusters: int
) -> None:
    names = [f"c{number}" for number in range(clusters)]
    read_blocks, in_vain = Store.read_blocks, Counter[str]()

    def counted(store: Store, *asked: Any, origins: Collection[str] | None = None, **how: Any) -> Any:
        found, reached = read_blocks(store, *asked, origins=origins, **how)
        if origins is not None and not found:
            in_vain[store.cluster] += 1
        return found, reached

    monkeypatch.setattr(Store, "read_blocks", counted)

    async def main() -> None:
        async with mesh(tmp_path, *names, settings=PATIENT) as nodes:
            topic = await nodes["c0"].engine.topic(TOPIC)
            await topic.publish([message()])
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await eventually(lambda: at_rest(nodes.values()), "all clusters at rest")
            others = names[1:]
            for name, node in nodes.items():
                expected: dict[tuple[str, type], int] = {
                    ("c0", SnapshotRequest): 1,
                    **{(other, SnapshotResponse): 1 for other in others},
                    ("c0", SubscriptionsUpdate): 1,
                    (name, LocalSnapshot): 1,
                }
                assert markers(node) == expected
                mapped = {mapping.peer: mapping for mapping in node.index.mappings}
                assert mapped.keys() == set(names) - {name}
                # What is here lies at or below that in the other's log: consumed here, it is consumed there.
                for peer, mapping in mapped.items():
                    assert mapping.remote >= last_message(nodes[peer])
                # Each link looks once when it hears of the topic first.
                assert in_vain[name] <= len(others)

    asyncio.run(main())


def last_message(node: Node) -> Position:
    return MarkerLog(node.topic(), Counters()).last_message()
