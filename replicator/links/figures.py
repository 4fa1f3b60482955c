"""The figures of a link: what it counts, how far it lags, and its part of the worker's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from replicator.engine.engine import Engine
from replicator.links.link_topics import LinkTopics

if TYPE_CHECKING:
    from replicator.links.link import Link

SHOWN_MAX: Final = 1_000
"""Of each list in a status; the number of all is given beside it."""
LAGS_MAX: Final = 1_000
"""Topics that are looked at for the lag: some milliseconds. More than that are behind only where the lag is plain."""


@dataclass(slots=True)
class LinkFigures:
    """Counted since the worker started."""

    blocks: int = 0
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    """Of blocks."""
    wire_bytes: int = 0
    """Of frames, as compressed."""
    reconnects: int = 0

    def add(self, blocks: int, entries: int, messages: int, size_bytes: int, wire_bytes: int) -> None:
        """Others carried that much."""
        self.blocks += blocks
        self.entries += entries
        self.messages += messages
        self.bytes += size_bytes
        self.wire_bytes += wire_bytes


def lag_ms(engine: Engine, topics: LinkTopics, now_ms: int) -> int:
    """The age of the oldest block that the destination has not confirmed, by the source's clock; 0 if it has all."""
    behind = (name for name, copy in topics.copier.topics.items() if copy.acknowledged < copy.last)
    oldest_ms = now_ms
    for name in islice(behind, LAGS_MAX):
        topic = engine.find(name)
        if topic is not None:
            spans = engine.store.block_spans(topic.topic_id, topics.copier.topics[name].acknowledged, blocks_max=1)
            oldest_ms = min([oldest_ms, *(span.publish_time_ms for span in spans)])
    return now_ms - oldest_ms


def link_status(link: Link, topics: LinkTopics, partitions_refused: Mapping[str, str]) -> dict[str, Any]:
    """As ``GET /replication/v1/status`` gives it (docs/http.md)."""
    copies = topics.copier.topics
    halted = {**partitions_refused, **topics.stopped()}
    held = topics.held_too_far()
    gaps = [(name, copy.gap) for name, copy in copies.items() if copy.gap is not None]
    spec, figures = link.spec, link.figures
    return {
        "key": link.key,
        "to": link.to,
        "name": spec.name,
        "address": link.address,
        "forward": spec.forward,
        "engine": link.route.engine,
        "carrier": link.planner.carriers.holder,
        "origins": sorted(link.route.origins),
        "state": link.state,
        "backfill": _backfill(link),
        "detail": link.detail,
        "paused": link.paused,
        "topics": len(copies),
        "halted": dict(islice(halted.items(), SHOWN_MAX)),
        "halted_count": len(halted),
        "gaps": [
            {"topic": name, "kind": gap.kind, "origin": gap.origin, "detail": gap.detail}
            for name, gap in gaps[:SHOWN_MAX]
        ],
        "gap_count": len(gaps),
        "skipped": topics.memory.skips,
        "skipped_count": len(topics.memory.skips),
        "hold_exceeded": held[:SHOWN_MAX],
        "hold_exceeded_count": len(held),
        "on_hold_exceeded": spec.on_hold_exceeded,
        "deleted_here": list(topics.deleted_here),
        "backlog_entries": topics.backlog_entries(),
        "lag_ms": lag_ms(link.engine, topics, link.engine.writer.wall_clock_ms()),
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


def _backfill(link: Link) -> dict[str, int] | None:
    """How far the backfill is that has the link, as it was last told; None without one."""
    progress = link.backfill_progress
    if not link.planner.backfilling or progress is None:
        return None
    total, left = progress
    done = max(0, total - left)
    return {
        "bytes_total": total,
        "bytes_left": left,
        "percent": 100 if left <= 0 else min(99, 100 * done // max(total, 1)),
    }
