"""Last steps of putting back an earlier life of a topic below its log.

The blocks of that life are in the store already (:mod:`replicator.engine.log.commit.putting_back`). Until the last step
is done, the store has a note for the topic (:class:`PutBackNote`), and the worker does not start. Each step can be
interrupted and done again.

1. Each block stores how many entries and messages lie before it. These numbers are computed again.
2. Other clusters are asked for the states of the topic's subscriptions. The cursors here are changed accordingly
   (:mod:`replicator.engine.subscriptions.putting_back`).
3. One transaction deletes the note, and writes the changed cursors and three positions. The first is the end of the
   log: a mark-delete position of another cluster that maps below it says nothing about the messages that were put back.
   The second are the ends of the ledgers that were put back between ledgers of the newest life. The third is where the
   log is trimmed: it now lies below the messages that were put back. The same transaction resets a compacted view that
   lacks these messages, so that the topic is compacted anew.

A compacted view whose log was trimmed has messages that the log does not have. It is not reset.
:func:`take_into_view` merges what was put back into it, before the last step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from replicator.backup.errors import WorkerNotAsked
from replicator.engine.compaction.compacted_view import STATE_TABLE, ViewState
from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt, NotAllowedError
from replicator.engine.log.commit.putting_back import (
    PUT_BACK,
    PUT_BACK_BELOW,
    PUT_BACK_BETWEEN,
    PUT_BACK_LEDGERS,
    PUT_BACK_LEDGERS_MAX,
    PutBackNote,
    put_back_between,
    put_back_note,
)
from replicator.engine.log.requests import Counted
from replicator.engine.log.store_tables import TOPIC_KEY, encode_trim
from replicator.engine.subscriptions.cursor_rows import RowWrite, load_cursors, rewritten
from replicator.engine.subscriptions.mark_delete import place_before
from replicator.engine.subscriptions.putting_back import PeerState, PutBackLog, follow_put_back
from replicator.engine.topic import Topic
from replicator.pipeline.errors import UnexpectedAnswer
from replicator.pipeline.verify.plane import NO_ROUTE, VerifyPlane
from snapshots.ack_vector import OriginAcks
from snapshots.ack_vector import from_data as vector_from_data
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, from_data


def states_told(planes: Iterable[VerifyPlane], topic: str, cluster: str) -> dict[str, PeerState]:
    """Ask other clusters for the states of a topic's replicated subscriptions. Return their answers, merged, by
    subscription.

    Raises :class:`WorkerNotAsked` if an answer cannot be read.
    """
    found: dict[str, PeerState] = {}
    for plane in planes:
        try:
            answer = plane.call("GET", "/replication/v1/ack-vectors", topic=topic)
        except UnexpectedAnswer as error:
            if error.status in NO_ROUTE:  # that cluster has no such topic, or no route for subscriptions
                continue
            raise
        try:
            told = {name: _told(row, cluster) for name, row in answer["subscriptions"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WorkerNotAsked(
                f"worker at {plane.url}: its answer about subscriptions of {topic} cannot be read: {error!r:.200}; "
                "run the same version everywhere"
            ) from None
        for name, each in told.items():
            found[name] = each if name not in found else found[name].merged(each)
    return found


def _told(row: Mapping[str, Any], cluster: str) -> PeerState:
    start = from_data(row.get("starts", {})).get(cluster, FROM_THE_FIRST)
    stated = {origin: acks for origin, acks in row["vector"].items() if origin == cluster}
    acks = vector_from_data(stated).origins.get(cluster, OriginAcks(0))
    return PeerState(int(row["generation"]), acks, start)


async def take_into_view(engine: Engine, topic: Topic) -> str | None:
    """Merge what was put back into the compacted view of ``topic``, if the log lacks messages of the view.

    Return in words why the view lacks what was put back; None if it does not.
    """
    topic = engine.loaded.load_again(topic)
    note = put_back_note(engine.store, topic.topic_id)
    if note is None or not _is_below_view(note, topic) or topic.log.trimmed == BEFORE_ALL:
        return None
    try:
        await topic.compaction.rebuild_view()
    except (NotAllowedError, BlockCorrupt) as error:
        return f"{topic.name}: subscriptions that read compacted do not get what came back: {error}"
    return None


def _is_below_view(note: PutBackNote, topic: Topic) -> bool:
    """Return whether messages were put back below the position up to which the compacted view stands for the log."""
    return any(after < topic.compaction.state.horizon for after, _ in note.ranges)


async def finish_put_back(engine: Engine, topic: Topic, told: Mapping[str, PeerState]) -> Topic:
    """Do the last steps for ``topic``, and return the topic as it is loaded again after them.

    ``told`` has the states of its subscriptions in other clusters, by name.
    """
    store, topic_id = engine.store, topic.topic_id
    note = put_back_note(store, topic_id)
    assert note is not None, f"nothing of {topic.name} is being put back"
    topic = engine.loaded.load_again(topic)
    await engine.writer.recount(topic.tail, Counted(BEFORE_ALL, note.entries, note.messages))
    log = _log_of(engine, topic, note)
    writes: list[RowWrite] = []
    cleared: list[tuple[str, bytes]] = []
    for name, (state, _) in load_cursors(store, topic_id).items():
        follow_put_back(state, log, told.get(name))
        rows = rewritten(topic_id, name, state)
        writes += rows.writes
        cleared += rows.cleared
    key = TOPIC_KEY.pack(topic_id)
    trim, first = store.trim(topic_id), topic.log.first
    if first is not None and trim.through >= first:
        writes.append(("trims", key, encode_trim(replace(trim, through=place_before(first)))))
    view = topic.compaction.state
    if _is_below_view(note, topic) and topic.log.trimmed == BEFORE_ALL:
        writes.append((STATE_TABLE, key, ViewState(view.generation).encode()))
    writes.append(("meta", f"{PUT_BACK} {topic_id}".encode(), None))
    writes.append(("meta", f"{PUT_BACK_BELOW} {topic_id}".encode(), json.dumps(str(topic.log.last)).encode()))
    runs = [run for after, upto in note.ranges for run in topic.log.runs_between(after, upto)]
    if between := [Position(ledger, end) for ledger, _, end in runs if ledger > topic.incarnation]:
        ends = sorted({*between, *put_back_between(store, topic_id)})
        writes.append(("meta", f"{PUT_BACK_BETWEEN} {topic_id}".encode(), json.dumps(str(ends[-1])).encode()))
        ledgers = json.dumps([str(end) for end in ends[-PUT_BACK_LEDGERS_MAX:]]).encode()
        writes.append(("meta", f"{PUT_BACK_LEDGERS} {topic_id}".encode(), ledgers))
    await engine.writer.put_many(writes, cleared=cleared)
    return engine.loaded.load_again(topic)


def _log_of(engine: Engine, topic: Topic, note: PutBackNote) -> PutBackLog:
    log = topic.log
    messages, put_back, between = PositionSet(), PositionSet(), PositionSet()
    last = BEFORE_ALL
    for ledger, first, end in log.runs_between(BEFORE_ALL, log.last):
        messages.add_range(ledger, first, end)
    for after, upto in note.ranges:
        for ledger, first, end in log.runs_between(after, upto):
            put_back.add_range(ledger, first, end)
            block = engine.store.block_of(topic.topic_id, Position(ledger, first))
            if block is not None and block.header.incarnation == topic.incarnation:
                between.add_range(ledger, first, end)
            else:
                last = max(last, Position(ledger, end))
    for each in (messages, put_back, between):
        each.difference_update(log.markers)
    own = messages.copy()
    for _, _, _, local_first, entries in engine.store.extents(topic.topic_id):
        copied = PositionSet()
        copied.add_range(local_first.ledger, local_first.entry, local_first.entry + entries - 1)
        own.difference_update(copied)
    return PutBackLog(engine.cluster, topic.incarnation, messages, own, put_back, last, between)
