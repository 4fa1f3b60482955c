"""Admission: it decides how far a micro-batch reads each topic, by the limits. Pure but for one question.

1. The backlog of a topic lies between the query's position and the target (the LAC, or the end of an ``availableNow``
   run).
2. A limit on entries is divided: small backlogs are admitted whole, the others get equal shares of the rest.
3. A limit on bytes is divided in the same way in at most :data:`ROUNDS_MAX` rounds, since only the worker knows how
   large entries are. It is asked how far the share of each topic leads, and unused bytes go to the others in the next
   round. Topics that waited longest are asked first, :data:`TOPICS_MEASURED_MAX` at a time.
4. At least one block is admitted if there is any, or a limit below a block would stop the query for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from replicator.pipeline.source.planning import TopicSpan
from replicator.pipeline.source.topic_positions import Measured, water_fill
from snapshots.position import Position

ROUNDS_MAX: Final = 3
TOPICS_MEASURED_MAX: Final = 1_000
"""Limit of topics that a worker measures in one request."""

Key = tuple[str, str]
"""Worker's URL and a topic."""
Measure = Callable[[str, Sequence[tuple[str, Position, Position, int]], int], Sequence[Measured | None]]
"""Function that asks the worker at a URL for the sizes of ranges ``(topic, after, upto, bytes_max)``, up to a total of
bytes."""


@dataclass(slots=True)
class Admission:
    """Limits of a query, and the topics that waited. None is no limit."""

    entries_max: int | None
    bytes_max: int | None
    _served: dict[Key, int] = field(default_factory=dict)
    """Batch in which each topic was last admitted. It is lost with the process, which is unfair for a short time
    only."""
    _batch: int = 0

    def admit(self, backlog: Sequence[TopicSpan], measure: Measure) -> dict[Key, Position]:
        """Return the position up to which each admitted topic is read; the others stay where they are."""
        self._batch += 1
        spans = {span.key: span for span in backlog}
        ordered = sorted(spans, key=lambda key: (self._served.get(key, 0), key))
        reached = {key: spans[key].upto for key in ordered}
        if self.entries_max is not None:
            # With more topics than entries, those that waited longest get one each.
            wanted = {_name(key): spans[key].entries for key in ordered[: self.entries_max]}
            shares = water_fill(wanted, self.entries_max)
            reached = {
                key: span.upto if share >= span.entries else span.positions.advance(span.after, share)
                for key in ordered
                if (share := shares.get(_name(key))) and (span := spans[key])
            }
        if self.bytes_max is not None:
            reached = self._within_bytes(spans, reached, self.bytes_max, measure)
        self._served = {key: at for key, at in self._served.items() if key in spans}
        self._served.update(dict.fromkeys(reached, self._batch))
        return reached

    def _within_bytes(
        self, spans: Mapping[Key, TopicSpan], wanted: Mapping[Key, Position], bytes_max: int, measure: Measure
    ) -> dict[Key, Position]:
        reached: dict[Key, Position] = {}
        open_keys = list(wanted)[:TOPICS_MEASURED_MAX]
        left = bytes_max
        for _ in range(ROUNDS_MAX):
            if not open_keys or (left <= 0 and reached):
                break
            share = max(left // len(open_keys), 1)
            unfinished = []
            for url in dict.fromkeys(url for url, _ in open_keys):
                of_worker = [key for key in open_keys if key[0] == url]
                rows = [(key[1], reached.get(key, spans[key].after), wanted[key], share) for key in of_worker]
                if left <= 0 and reached:
                    break
                for key, row in zip(of_worker, measure(url, rows, max(left, 1)), strict=False):
                    if row is None or not row.size_bytes:
                        continue  # it went meanwhile, or nothing of it is left: the plan will say so
                    left -= row.size_bytes
                    reached[key] = row.reached
                    if row.reached < wanted[key]:
                        unfinished.append(key)
            open_keys = unfinished
        return reached


def _name(key: Key) -> str:
    return "\n".join(key)
