"""A link's part of the worker's status: how it stands, how far it lags, and which of its topics stopped."""

from __future__ import annotations

import asyncio
from heapq import nlargest
from itertools import islice
from typing import Any, Final

from replicator.engine.engine import Engine
from replicator.links.json_types import LinkBackfill, LinkStatus
from replicator.links.link_topics import LinkTopics
from replicator.links.plans import Carriers
from replicator.links.route import Route
from replicator.links.transfer import Transfer
from replicator.peering.topic_summary import LaggingTopic

TURN_TOPICS: Final = 100
"""Topics that are looked at before other tasks of the event loop run; this takes some milliseconds."""
SHOWN_MAX: Final = 1_000
"""Most items of each list in a status. Beside each list the status has the number of all items."""
BACKLOGS_SHOWN_MAX: Final = 10_000
"""Most topics whose backlogs an answer about one link has, the largest ones."""
LAGS_MAX: Final = 1_000
"""Most topics whose lag is looked up; this takes some milliseconds. If more are behind, the lag is plain anyway."""


def lag_ms(engine: Engine, topics: LinkTopics, now_ms: int) -> int:
    """Return the age of the oldest block that the destination has not confirmed, by the source's clock; 0 if there is
    none."""
    behind = (name for name, copy in topics.copier.topics.items() if copy.acknowledged < copy.last)
    oldest_ms = now_ms
    for name in islice(behind, LAGS_MAX):
        topic = engine.find(name)
        if topic is not None:
            spans = engine.store.block_spans(topic.topic_id, topics.copier.topics[name].acknowledged, blocks_max=1)
            oldest_ms = min([oldest_ms, *(span.publish_time_ms for span in spans)])
    return now_ms - oldest_ms


async def topics_behind(engine: Engine, topics: LinkTopics, key: str, now_ms: int, limit: int) -> list[LaggingTopic]:
    """Return the topics with the largest backlogs and those with the greatest lags: ``limit`` of each, each topic once.

    Lags are looked up only for the :data:`LAGS_MAX` topics with the largest backlogs. Other tasks run after every
    :data:`TURN_TOPICS` topics: ten thousand take some tenths of a second.
    """
    names = [name for name, copy in topics.copier.topics.items() if copy.acknowledged < copy.last]
    backlogs: list[tuple[int, str]] = []
    for at in range(0, len(names), TURN_TOPICS):
        backlogs += [(backlog, name) for name in names[at : at + TURN_TOPICS] if (backlog := topics.backlog_of(name))]
        await asyncio.sleep(0)
    found = []
    largest = nlargest(LAGS_MAX, backlogs)
    for at in range(0, len(largest), TURN_TOPICS):
        for backlog, name in largest[at : at + TURN_TOPICS]:
            topic, copy = engine.find(name), topics.copier.topics.get(name)
            if topic is not None and copy is not None:
                spans = engine.store.block_spans(topic.topic_id, copy.acknowledged, blocks_max=1)
                lag = max(0, now_ms - spans[0].publish_time_ms) if spans else 0
                found.append(LaggingTopic(name, key, backlog, lag))
        await asyncio.sleep(0)
    return list(dict.fromkeys([*found[:limit], *nlargest(limit, found, key=lambda each: each.lag_ms)]))


def link_status(
    route: Route, address: str, transfer: Transfer, carriers: Carriers, backfill_progress: tuple[int, int] | None
) -> LinkStatus:
    """Return a link's part of ``GET /replication/v1/status`` (docs/http.md).

    ``backfill_progress`` has the total bytes and the bytes left, as the link's backfill last reported them."""
    topics = transfer.topics
    copies = topics.copier.topics
    halted = {**transfer.schemas.refused, **transfer.partitions.refused, **topics.stopped()}
    held = topics.topics_over_hold_quota()
    gaps = [(name, copy.gap) for name, copy in copies.items() if copy.gap is not None]
    spec, figures = route.link, transfer.figures
    return {
        "key": spec.key,
        "to": spec.destination,
        "name": spec.name,
        "address": address,
        "forward": spec.forward,
        "engine": route.engine,
        "carrier": carriers.holder,
        "origins": sorted(route.origins),
        "state": transfer.state,
        "backfill": _backfill(carriers, backfill_progress),
        "detail": transfer.detail,
        "paused": topics.memory.paused,
        "topics": len(copies),
        "halted": dict(islice(halted.items(), SHOWN_MAX)),
        "halted_count": len(halted),
        "gaps": [
            {
                "topic": name,
                "kind": gap.kind,
                "origin": gap.origin,
                "detail": gap.detail,
                "policies": gap.policies(),
            }
            for name, gap in gaps[:SHOWN_MAX]
        ],
        "gap_count": len(gaps),
        "skipped": topics.memory.skips,
        "skipped_count": len(topics.memory.skips),
        "hold_exceeded": held[:SHOWN_MAX],
        "hold_exceeded_count": len(held),
        "on_hold_exceeded": spec.on_hold_exceeded,
        "deleted_here": list(topics.deleted_here),
        "lost_here": dict(topics.lost_here),
        "backlog_entries": topics.backlogs.total(),
        "lag_ms": lag_ms(transfer.engine, topics, transfer.engine.writer.wall_clock_ms()),
        "in_flight_frames": topics.copier.in_flight,
        "rate_bytes": spec.rate_bytes,
        "compression": spec.compression,
        "blocks": figures.blocks,
        "entries": figures.entries,
        "messages": figures.messages,
        "bytes": figures.bytes,
        "wire_bytes": figures.wire_bytes,
        "reconnects": figures.reconnects,
    }


def planned_link(route: Route, address: str, transfer: Transfer) -> dict[str, Any]:
    """Return the link as its carriers need it."""
    spec = route.link
    return {
        "key": spec.key,
        "source": spec.source,
        "destination": spec.destination,
        "address": address,
        "name": spec.name,
        "compression": spec.compression,
        "where": spec.where,
        "select": spec.select,
        "origins": sorted(route.origins),
        "engine": route.engine,
        "state": transfer.state,
        "detail": transfer.detail,
    }


def _backfill(carriers: Carriers, progress: tuple[int, int] | None) -> LinkBackfill | None:
    """Return the progress of the link's backfill, as it last reported it; None if there is none."""
    if not carriers.backfilling or progress is None:
        return None
    total, left = progress
    done = max(0, total - left)
    return {
        "bytes_total": total,
        "bytes_left": left,
        "percent": 100 if left <= 0 else min(99, 100 * done // max(total, 1)),
    }
