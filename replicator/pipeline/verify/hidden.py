"""Check that the messages a cluster hides as duplicates are duplicates.

A worker hides an entry if an entry of another origin has the same message: equal ids and equal content. Verify does not
rely on the worker's own comparison. It asks each worker which entries are hidden, reads both entries of each pair, and
compares their content.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from replicator.engine.errors import BlockCorrupt, EngineError
from replicator.engine.log.block import BlockView, read_header
from replicator.engine.log.entry import decode_entry
from replicator.engine.producing.contents import alike
from replicator.pipeline.verify.cluster_state import ClusterState, ClusterStates, collecting_gone_topics
from replicator.pipeline.verify.comparison.rows import FindingRow
from replicator.pipeline.verify.plane import BlockUnreadable, VerifyPlane
from snapshots.position import Position

_BLOCKS_KEPT: Final = 8
HIDDEN: Final = "hidden"
"""Kind of fault: a hidden entry has other content (:data:`~replicator.pipeline.verify.report.FAULTS`)."""


@dataclass(slots=True)
class Duplicates:
    """Result of the check. By cluster, it has the number of messages that are rightly hidden; it also has the faults
    found."""

    messages: Counter[str] = field(default_factory=Counter)
    differing: list[FindingRow] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    """Topics that a cluster deleted during the check."""


def look_at_hidden(picture: ClusterStates) -> Duplicates:
    """Compare each hidden entry of all clusters with the entry that is delivered in its place; return the result.

    Raises :class:`PeerUnavailable` if a cluster does not answer.
    """
    found = Duplicates()
    for state in picture.clusters:
        topics = [name for name, standing in state.standings.items() if standing.hidden]
        if not topics:
            continue
        with VerifyPlane(state.url) as worker, VerifyPlane(state.url) as reader:
            for topic in topics:
                with collecting_gone_topics(found.gone, topic):
                    _look_at_topic(found, state, topic, worker, _Reader(reader, topic))
    return found


def _look_at_topic(found: Duplicates, state: ClusterState, topic: str, worker: VerifyPlane, read: _Reader) -> None:
    runs = state.standings[topic].runs
    if not runs:
        return
    ledger, _, last = runs[-1]
    for earlier, later in worker.hidden_duplicates(topic, Position(ledger, last)):
        one, other = read.entry(earlier), read.entry(later)
        if one is None or other is None:
            continue  # the entry was trimmed meanwhile, or is damaged: comparing logs finds that
        messages = _messages(other[1])
        if alike(one[1], other[1]):
            found.messages[state.name] += messages
            continue
        origin, origin_position = other[0]
        what = f"{messages:,} message{'s' * (messages != 1)}"
        found.differing.append(
            FindingRow(
                HIDDEN,
                topic,
                messages,
                cluster=state.name,
                origin=origin,
                origin_ledger=origin_position.ledger,
                origin_first=origin_position.entry,
                origin_last=origin_position.entry,
                ledger=later.ledger,
                entry=later.entry,
                detail=f"{what} of {origin} at {state.name} {later}, hidden behind {earlier} of {one[0][0]}",
            )
        )


def _messages(entry: memoryview) -> int:
    try:
        return decode_entry(entry, check=False)[0].num_messages_in_batch
    except EngineError:
        return 1


class _Reader:
    """Reader of single entries of one topic from one worker. It caches the last blocks that it read."""

    def __init__(self, worker: VerifyPlane, topic: str) -> None:
        self._worker = worker
        self._topic = topic
        self._views: OrderedDict[Position, BlockView] = OrderedDict()

    def entry(self, position: Position) -> tuple[tuple[str, Position], memoryview] | None:
        """Return identity and bytes of the entry at ``position`` in the worker's log; None if it cannot be read.

        The identity is origin and origin position.
        """
        return self._kept(position) or (self._kept(position) if self._fetch(position) else None)

    def _kept(self, position: Position) -> tuple[tuple[str, Position], memoryview] | None:
        for first, view in self._views.items():
            at = position.entry - first.entry
            if first.ledger == position.ledger and 0 <= at < len(view):
                origin_first = view.header.origin_first
                place = Position(origin_first.ledger, origin_first.entry + at)
                return (view.header.origin, place), view.entry(at)
        return None

    def _fetch(self, position: Position) -> bool:
        before = Position(position.ledger, position.entry - 1)
        try:
            blocks: Sequence[tuple[Position, BlockView]] = [
                (fetched.first, BlockView(fetched.block, read_header(fetched.block)))
                for fetched in self._worker.raw_blocks(self._topic, before, position)
            ]
        except (BlockUnreadable, BlockCorrupt):
            return False
        for first, view in blocks:
            self._views[first] = view
            if len(self._views) > _BLOCKS_KEPT:
                self._views.popitem(last=False)
        return bool(blocks)
