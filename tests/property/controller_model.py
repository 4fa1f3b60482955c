"""Model clusters around real controllers: list logs, in-order links, consumers that acknowledge prefixes.

A message's identity is (origin, origin position). The model knows who acknowledged what, so it can say of every
applied position and of every recorded mapping whether it is true.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import count, groupby

from snapshots.actions import (
    Action,
    ApplyUpdate,
    LogState,
    RecordMapping,
    WriteLocalSnapshot,
    WriteRequest,
    WriteResponse,
    WriteUpdate,
)
from snapshots.controller import SnapshotController
from snapshots.mapping import SnapshotMapping
from snapshots.markers import Marker
from snapshots.position import BEFORE_ALL, Position

Identity = tuple[str, Position]
ROUNDS_MAX = 400
"""Rounds of deliver, handle, tick until nothing is left to do; a topic that does not come to rest needs more."""


class Kind(Enum):
    MESSAGE = "message"
    MARKER = "marker"
    LOCAL_MARKER = "local marker"


class MarkerMoves(Enum):
    """Ways in which an engine moves the mark-delete position over markers that follow it; the controller must bear
    each."""

    NOT_AT_ALL = "not at all"
    AS_LOCAL = "as local"
    AS_REMOTE = "as remote"


@dataclass(frozen=True)
class Entry:
    position: Position
    origin: str
    origin_position: Position
    kind: Kind
    marker: Marker | None

    @property
    def identity(self) -> Identity:
        return self.origin, self.origin_position


@dataclass
class ModelSubscription:
    generation: int
    mark_delete: Position


class Model:
    """Model of clusters, links and the clock. ``acknowledged[name, generation]`` has the identities of messages that
    any consumer acknowledged."""

    def __init__(self, clusters: Iterable[str], links: Iterable[tuple[str, str]], moves: MarkerMoves) -> None:
        self.now_ms = 1_000
        self.moves = moves
        self.links = dict.fromkeys(links, 0)
        """Number of entries of the source's log that each link has looked at."""
        self.dead: set[str] = set()
        self.acknowledged: dict[tuple[str, int], set[Identity]] = defaultdict(set)
        self.clusters = {name: ModelCluster(name, self) for name in clusters}

    @property
    def alive(self) -> list[ModelCluster]:
        return [cluster for cluster in self.clusters.values() if cluster.name not in self.dead]

    def is_linked(self, source: str, destination: str) -> bool:
        return (source, destination) in self.links and not {source, destination} & self.dead

    def deliver(self, source: str, destination: str, entries_max: int) -> int:
        """Let a link carry its next entries, in blocks of one kind. Return how many log entries it got past."""
        first = self.links[source, destination]
        looked_at = self.clusters[source].log[first : first + entries_max]
        self.links[source, destination] = first + len(looked_at)
        carried = [e for e in looked_at if e.origin == source and e.kind is not Kind.LOCAL_MARKER]
        for kind, block in groupby(carried, key=lambda entry: entry.kind):
            self.clusters[destination].append_copied(source, kind, list(block))
        return len(looked_at)

    def run_round(self, stalled: Collection[tuple[str, str]] = (), asleep: Collection[str] = ()) -> int:
        """Let each link deliver, then each worker handle its markers and what is due; return how many things
        happened."""
        moved = sum(self.deliver(*link, 10_000) for link in self.links if self.is_linked(*link) and link not in stalled)
        for cluster in self.alive:
            if cluster.name in asleep:
                continue
            moved += cluster.handle(10_000)
            deadline_ms = cluster.controller.next_deadline(self.now_ms)
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                moved += 1
                cluster.tick()
        return moved

    def settle(self, stalled: Collection[tuple[str, str]] = ()) -> None:
        """Run every living worker and every link that is not stalled, and the clock with them, until all is quiet."""
        for _ in range(ROUNDS_MAX):
            if self.run_round(stalled):
                continue
            deadlines = [cluster.controller.next_deadline(self.now_ms) for cluster in self.alive]
            waiting = [deadline for deadline in deadlines if deadline is not None]
            if not waiting:
                break
            self.now_ms = min(waiting)
        else:
            raise AssertionError("an idle topic does not come to rest (invariant 7)")
        self.now_ms += 10_000_000
        for cluster in self.alive:
            assert cluster.controller.on_tick(self.now_ms, cluster.log_state()) == [], "a marker on an idle topic"


class ModelCluster:
    def __init__(self, name: str, model: Model) -> None:
        self.name = name
        self.model = model
        self.log: list[Entry] = []
        self.ledger = 1
        self.reached: dict[str, Position] = {}
        self.reached_messages: dict[str, Position] = {}
        self.subscriptions: dict[str, ModelSubscription] = {}
        self.index: list[SnapshotMapping] = []
        self.handled = 0
        self.incarnations = count()
        self.controller = self._new_controller()

    def _new_controller(self) -> SnapshotController:
        run, numbers = next(self.incarnations), count()
        return SnapshotController(
            self.name,
            peers=[destination for source, destination in self.model.links if source == self.name],
            reachable_origins=[source for source, destination in self.model.links if destination == self.name],
            next_id=lambda: f"{self.name}-{run}-{next(numbers)}",
        )

    def log_state(self) -> LogState:
        lac = self.log[-1].position if self.log else BEFORE_ALL
        return LogState(lac, dict(self.reached), dict(self.reached_messages))

    def messages(self) -> list[Entry]:
        return [entry for entry in self.log if entry.kind is Kind.MESSAGE]

    def identities(self) -> set[Identity]:
        return {entry.identity for entry in self.messages()}

    # ---- the log ----------------------------------------------------------------------------------------

    def append(self, kind: Kind, markers: list[Marker | None]) -> None:
        positions = self._next_positions(len(markers))
        self._append([Entry(at, self.name, at, kind, marker) for at, marker in zip(positions, markers, strict=True)])

    def append_copied(self, origin: str, kind: Kind, block: list[Entry]) -> None:
        new = [e for e in block if e.origin_position > self.reached.get(origin, BEFORE_ALL)]
        positions = self._next_positions(len(new))
        self._append(
            [Entry(at, origin, e.origin_position, kind, e.marker) for at, e in zip(positions, new, strict=True)]
        )

    def _next_positions(self, entries: int) -> list[Position]:
        in_ledger = sum(entry.position.ledger == self.ledger for entry in self.log)
        return [Position(self.ledger, in_ledger + index) for index in range(entries)]

    def _append(self, block: list[Entry]) -> None:
        if not block:
            return
        self.log += block
        last, is_messages = block[-1], block[-1].kind is Kind.MESSAGE
        self.reached[last.origin] = last.origin_position
        if is_messages:
            self.reached_messages[last.origin] = last.origin_position
        self.controller.on_append(last.position, origin=last.origin, messages=is_messages, now_ms=self.model.now_ms)
        if not is_messages:
            for name in self.subscriptions:
                self._pass_markers(name)

    # ---- the worker -------------------------------------------------------------------------------------

    def handle(self, entries_max: int) -> int:
        """Pass the markers among the next ``entries_max`` unhandled entries to the controller, and do its actions.

        Return the number of entries. The log may be far ahead of them.
        """
        handled = 0
        while handled < entries_max and self.handled < len(self.log):
            entry = self.log[self.handled]
            if entry.marker is not None:
                self.carry_out(
                    self.controller.on_marker(
                        entry.position, entry.origin, entry.marker, self.log_state(), self.model.now_ms
                    )
                )
            self.handled += 1
            handled += 1
        return handled

    def tick(self) -> None:
        self.carry_out(self.controller.on_tick(self.model.now_ms, self.log_state()))

    def restart(self, handled_again: int, *, with_index: bool) -> None:
        """Restart with a new controller. The last ``handled_again`` entries are handled again, or all without index."""
        self.ledger += 1
        self.controller = self._new_controller()
        for name, subscription in self.subscriptions.items():
            self.controller.on_subscription(name, subscription.mark_delete, subscription.generation, self.model.now_ms)
        if with_index:
            self.controller.restore(self.index)
            self.handled = max(0, self.handled - handled_again)
        else:
            self.handled = 0
        if not self.messages():
            return
        # An engine that reports moves over markers as local may give its LAC; others say where the last message is.
        moves_over_markers = self.model.moves is MarkerMoves.AS_LOCAL
        last = (self.log if moves_over_markers else self.messages())[-1].position
        self.controller.on_append(last, origin=None, messages=True, now_ms=self.model.now_ms)
        self.controller.on_append(self.log[-1].position, origin=None, messages=False, now_ms=self.model.now_ms)

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case WriteRequest() | WriteResponse():
                    self.append(Kind.MARKER, [action.marker])
                case WriteUpdate():
                    self.append(Kind.MARKER, [action.marker])
                    self.controller.on_written(self.model.now_ms)
                case WriteLocalSnapshot():
                    self.append(Kind.LOCAL_MARKER, [action.marker])
                case RecordMapping():
                    self._check_mapping(action.mapping)
                    self.index.append(action.mapping)
                case ApplyUpdate():
                    self._apply(action)

    def _check_mapping(self, mapping: SnapshotMapping) -> None:
        """Check that all of the peer's messages up to `remote` are here up to `local`."""
        here = {entry.identity for entry in self.messages() if entry.position <= mapping.local}
        there = self.model.clusters[mapping.peer].messages()
        ahead = [entry.identity for entry in there if entry.position <= mapping.remote and entry.identity not in here]
        assert not ahead, f"{mapping} covers {ahead}, which {self.name} has not at that position"

    # ---- the subscriptions ------------------------------------------------------------------------------

    def create(self, name: str) -> None:
        if name not in self.subscriptions:
            self.subscriptions[name] = ModelSubscription(1, BEFORE_ALL)
            self.controller.on_subscription(name, BEFORE_ALL, 1, self.model.now_ms)

    def consume(self, name: str, messages_max: int) -> int:
        """Acknowledge the next messages after the mark-delete position, as a consumer here; return how many there
        were."""
        subscription = self.subscriptions[name]
        consumed = [e for e in self.messages() if e.position > subscription.mark_delete][:messages_max]
        acknowledged = self.model.acknowledged[name, subscription.generation]
        acknowledged.update(entry.identity for entry in consumed)
        if consumed:
            self._move(name, consumed[-1].position, local=True)
        return len(consumed)

    def seek(self, name: str, messages: int) -> None:
        """Set the subscription to after the first so many messages, as an operator does, in a new generation."""
        subscription = self.subscriptions[name]
        subscription.generation += 1
        before = self.messages()[:messages]
        acknowledged = self.model.acknowledged[name, subscription.generation]
        acknowledged.update(entry.identity for entry in before)
        subscription.mark_delete = BEFORE_ALL
        self._move(name, before[-1].position if before else BEFORE_ALL, local=True)

    def _apply(self, update: ApplyUpdate) -> None:
        subscription = self.subscriptions.get(update.subscription)
        if subscription is None:
            subscription = ModelSubscription(update.generation, BEFORE_ALL)
            self.subscriptions[update.subscription] = subscription
            self.controller.on_subscription(
                update.subscription, BEFORE_ALL, update.generation, self.model.now_ms, announced=True
            )
        assert update.generation >= subscription.generation, "a lower generation was applied"
        if update.generation > subscription.generation:
            subscription.generation, subscription.mark_delete = update.generation, BEFORE_ALL
            self._move(update.subscription, BEFORE_ALL, local=False)
        if update.position is None:
            return
        acknowledged = self.model.acknowledged[update.subscription, update.generation]
        skipped = [
            entry.identity
            for entry in self.messages()
            if entry.position <= update.position and entry.identity not in acknowledged
        ]
        assert not skipped, f"{update} at {self.name} skips {skipped}, which nobody acknowledged (invariant 5)"
        assert update.position <= self.log[-1].position, "past the log"
        if update.position > subscription.mark_delete:
            self._move(update.subscription, update.position, local=False)

    def _move(self, name: str, position: Position, *, local: bool) -> None:
        subscription = self.subscriptions[name]
        assert position >= subscription.mark_delete, "a mark-delete position moved back (invariant 6)"
        subscription.mark_delete = position
        self.controller.on_mark_delete(name, position, subscription.generation, self.model.now_ms, local=local)
        self._pass_markers(name)

    def _pass_markers(self, name: str) -> None:
        if self.model.moves is MarkerMoves.NOT_AT_ALL:
            return
        subscription = self.subscriptions[name]
        behind = [entry for entry in self.log if entry.position > subscription.mark_delete]
        passed = BEFORE_ALL
        for entry in behind:
            if entry.kind is Kind.MESSAGE:
                break
            passed = entry.position
        if passed > subscription.mark_delete:
            subscription.mark_delete = passed
            local = self.model.moves is MarkerMoves.AS_LOCAL
            self.controller.on_mark_delete(name, passed, subscription.generation, self.model.now_ms, local=local)

    def has_consumed_all(self, name: str) -> bool:
        messages = self.messages()
        return not messages or self.subscriptions[name].mark_delete >= messages[-1].position
