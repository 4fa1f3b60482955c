"""Decision what a worker does at its start: serve, take back messages, refuse, or wait. Pure.

A cluster whose disk was lost has a new, empty store. Other clusters still have copies of its messages. A volume that
was not mounted for a while has an older store, whose place a newer one took.

Invariants: a store that a peer knows to be replaced never serves; a store that is new serves only if no peer that
answers has anything of its cluster, or if an operator said so.

For a store that was used before:

1. If a peer knows a newer store of this cluster: *refuse*. Otherwise: *serve*. A peer that did not answer is asked
   again later, and its answer ends a worker with an older store.

For a new store; the first rule that applies decides:

2. The operator said ``start``: *serve*.
3. A peer that told of messages in an earlier try does not answer: *wait* for it.
4. A peer that answered has something of this cluster: *take back* from all that have, or *refuse*, as the operator
   said. An earlier start that was cut off in the middle also goes on. A peer that has nothing is not asked for
   messages: its worker may be waiting for others, too.
   Nor does a new store serve where the operator said ``refuse`` and Postgres has rows of an earlier one: the rows are
   a note outside the store, as when its file was deleted or its volume is not mounted.
5. A peer answered, and none has anything: *serve*. The others are noted as unasked. What rows in Postgres prove to be
   lost is named (:mod:`replicator.worker.store_start`).
6. The topology has no other cluster: *serve*.
7. Nobody answered, and Postgres has rows of an earlier store of this cluster: *wait*. Otherwise: *serve*, and say that
   nobody was asked. A Postgres that does not answer counts as one without rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Final

from replicator.engine.lineage import SHOWN_CHARS, NewestStore, StoreLine
from replicator.peering.known_stores import StoreOf
from replicator.topology.fields import REFUSE, START

NAMED_MAX: Final = 10
"""Most peers that a text names."""


class IndexRows(Enum):
    """Result of the look into Postgres for rows of an earlier store of the cluster."""

    EARLIER = "earlier"
    NONE = "none"
    AWAY = "away"
    """Postgres does not answer. It counts as one without rows."""


class StartMode(StrEnum):
    """Way in which a worker came to serve on its store."""

    USUAL = "usual"
    """The store was used before."""
    FIRST = "first"
    """The store is new, and nobody who answered has anything of this cluster."""
    EMPTY = "empty"
    """The store is new, and an operator said that the worker starts empty."""
    RECLAIMED = "reclaimed"
    """The store is new, and what other clusters had was taken back."""


@dataclass(frozen=True, slots=True)
class StartState:
    """State of a start."""

    cluster: str
    place: str
    """Data directory, for texts."""
    new: bool
    """Whether no worker ever served on the store."""
    line: StoreLine
    on_empty_store: str
    """Setting of the topology: one of :data:`~replicator.topology.fields.ON_EMPTY_STORE`."""
    answers: Mapping[str, StoreOf] = field(default_factory=dict)
    """Answers by peer."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Peers that did not answer in time, each with the reason."""
    had_messages: frozenset[str] = frozenset()
    """Peers that told of something of this cluster in an earlier try of this start."""
    begun: bool = False
    """Whether a start took back messages and was cut off."""
    taken_back: bool = False
    """Whether this start took back everything."""
    index: IndexRows = IndexRows.NONE
    asks: bool = True
    """Whether peers are asked at all, by the topology's ``store.ask_peers_seconds``."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Decision to serve clients."""

    how: StartMode
    unasked: tuple[str, ...] = ()
    """Peers that did not answer. Their later answers count."""
    nobody_asked: bool = False
    """Whether no peer at all answered, or could be asked."""


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Decision to take back messages from the peers ``sources``, without the peers ``unasked``. The other peers
    answered that they have nothing."""

    sources: tuple[str, ...]
    unasked: frozenset[str]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Decision that the worker does not start. ``reason`` says why, and names the ways on.

    ``older`` says that a newer store of the same cluster took the place of this one.
    """

    older: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Decision to ask the peers again; ``reason`` names them, and the command that ends the wait."""

    peers: tuple[str, ...]
    reason: str


Decision = Serve | TakeBack | Refuse | Wait


def decide(now: StartState) -> Decision:
    """Return what the worker does. See the rules of this module."""
    unasked = tuple(sorted(now.silent))
    if not now.new:
        reason = older_store(now.cluster, now.place, now.line, now.answers)
        if reason is not None:
            return Refuse(True, reason)
        return Serve(StartMode.USUAL, unasked, nobody_asked=bool(now.silent) and not now.answers)
    if now.on_empty_store == START:
        return Serve(StartMode.EMPTY)
    if now.taken_back:
        return Serve(StartMode.RECLAIMED, unasked)
    with_messages = tuple(sorted(name for name, each in now.answers.items() if each.messages))
    with_anything = tuple(sorted(name for name, each in now.answers.items() if each.topics or each.messages))
    gone = tuple(sorted(now.had_messages & now.silent.keys()))
    if now.on_empty_store == REFUSE and (with_messages or gone or now.begun):
        return Refuse(False, _not_empty(now, with_messages or gone))
    nobody = bool(unasked) and now.asks and not now.answers
    if now.on_empty_store == REFUSE and now.index is IndexRows.EARLIER and not gone and not nobody:
        return Refuse(False, _earlier_store(now))
    if gone:
        return Wait(gone, _waits_for_source(now.cluster, gone, now.silent))
    if now.on_empty_store != REFUSE and (with_anything or now.begun) and now.answers:
        return TakeBack(with_anything, frozenset(unasked))
    if now.answers:
        return Serve(StartMode.FIRST, unasked)
    if now.begun or (unasked and now.asks and now.index is IndexRows.EARLIER):
        return Wait(unasked, _waits_for_anybody(now.cluster, now.silent, begun=now.begun))
    return Serve(StartMode.FIRST, unasked, nobody_asked=bool(unasked))


def older_store(cluster: str, place: str, line: StoreLine, answers: Mapping[str, StoreOf]) -> str | None:
    """Return in words why the store is an older one that must not serve, with both ways on; None if it is not."""
    found: dict[str, NewestStore] = {}
    for name, answer in sorted(answers.items()):
        if answer.newest is not None and answer.newest.replaces(line):
            found[name] = answer.newest
    if not found:
        return None
    newest = next(iter(found.values()))
    since = "" if newest.since_ms is None else f", since {_moment(newest.since_ms)}"
    reclaim = f"replicator backup reclaim -f FILE --cluster {cluster}"
    knows = "knows" if len(found) == 1 else "know"
    return (
        f"data directory {place} has an older store of {cluster} (id {line.store[:SHOWN_CHARS]}…): {_named(found)} "
        f"{knows} a newer one (id {newest.line.store[:SHOWN_CHARS]}…{since}), as when a volume was not mounted for a "
        "while, or a backup was restored. The older one does not serve. There are two ways on, and neither loses a "
        "confirmed message. Keep the newer store: start the worker with its directory, after "
        f"`{reclaim} --from-directory {place}` took over what only this store has. Or go back to this store: "
        f"`{reclaim} --from-directory DIR`, with DIR the directory of the newer store, or without --from-directory if "
        "that is gone; then start the worker"
    )


def _waits_for_source(cluster: str, gone: tuple[str, ...], silent: Mapping[str, str]) -> str:
    without = "".join(f" --without {name}" for name in gone)
    return (
        f"the store of {cluster} is new, and {_named(gone)} told of its messages, and does not answer now: "
        f"{_reasons(gone, silent)}. The worker waits: start {_named(gone)}. To end the wait without what only "
        f"{_named(gone)} has, stop this worker and run `replicator backup reclaim -f FILE --cluster {cluster}{without}`"
    )


def _waits_for_anybody(cluster: str, silent: Mapping[str, str], *, begun: bool) -> str:
    why = (
        "an earlier start of it took back messages and was cut off"
        if begun
        else f"Postgres has rows of an earlier store of {cluster}, so it lost messages"
    )
    return (
        f"the store of {cluster} is new, {why}, and no other cluster answers: {_reasons(tuple(silent), silent)}. The "
        f"worker waits for {_named(silent)}. To start empty instead, stop it and run `replicator worker -f FILE "
        f"--cluster {cluster} --on-empty-store start`"
    )


def _not_empty(now: StartState, holders: tuple[str, ...]) -> str:
    without = "".join(f" --without {name}" for name in sorted(now.silent))
    topics = max((now.answers[name].messages for name in holders if name in now.answers), default=0)
    who = (
        f"{_named(holders)} {'has' if len(holders) == 1 else 'have'} messages of an earlier store of {now.cluster}"
        f"{f' in {topics} topics' if topics > 1 else ''}"
        if holders
        else "a reclaim of it was cut off"
    )
    return (
        f"data directory {now.place} has no store that was used before, and {who}. By `store.on_empty_store: refuse` "
        f"the worker does not start. Take them back: `replicator backup reclaim -f FILE --cluster {now.cluster}"
        f"{without}`; or start empty: `replicator worker -f FILE --cluster {now.cluster} --on-empty-store start`"
    )


def _earlier_store(now: StartState) -> str:
    without = "".join(f" --without {name}" for name in sorted(now.silent))
    reclaim = f"replicator backup reclaim -f FILE --cluster {now.cluster}{without}"
    return (
        f"data directory {now.place} has no store that was used before, and Postgres has rows of an earlier store of "
        f"{now.cluster}: its file is gone, or its volume is not mounted. By `store.on_empty_store: refuse` the worker "
        "does not start. Mount the volume; or put back a backup: `replicator backup restore -f FILE --cluster "
        f"{now.cluster} --at URL`; or take back what other clusters have: `{reclaim}`; or start empty: `replicator "
        f"worker -f FILE --cluster {now.cluster} --on-empty-store start`"
    )


def _reasons(names: tuple[str, ...], silent: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {silent[name]}" for name in sorted(names)[:NAMED_MAX]) or "nobody was asked"


def _named(names: Mapping[str, object] | tuple[str, ...]) -> str:
    shown = sorted(names)[:NAMED_MAX]
    more = len(names) - len(shown)
    return " and ".join([", ".join(shown), f"{more} more"] if more else [", ".join(shown)])


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
