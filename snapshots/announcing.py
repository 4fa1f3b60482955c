"""Announcements of a topic's subscriptions: what this cluster announces to peers, and how it handles what they announce
(DESIGN 4.3 and 4.4). Pure.

It serves three invariants. 5: a coarse position is announced only through a mapping that proves it, and an exact claim
only by a cluster that has the acknowledgements. 6: the generation decides, and within one generation everything is
merged. 7: nothing is announced twice, so an idle topic gets no markers. The exception is a whole state, which is
announced now and then, together with a change.

1. A change is recorded: the mark-delete position moved, something was acknowledged, a mapping came, or a subscription
   was made or deleted. :mod:`snapshots.pacing` decides when it is announced. One marker carries all subscriptions of
   the topic.
2. A subscription's update has two parts. The coarse state names each peer for which a mapping at or below the claim is
   new. The exact state has the acknowledgements since the last update. It has the whole state instead in these cases:
   in the first update of a generation, when another cluster asked, after a restart that does not know what was
   announced, and once in ``whole_interval_ms`` together with a change. By that a cluster learns from the others what
   only they heard of a dead one.
3. An update with an older generation than the one here is answered with the whole state. An update for a subscription
   that was buried here is answered with its deletion. In both cases the sender did not know. In an equal generation a
   deletion wins. A deletion that is announced once more, or as an answer, says so (``whole``): a cluster that made the
   subscription since, without knowing of the deletion, keeps it.
4. An update with a newer generation replaces the state here. An update with the same generation is merged.
5. A coarse state alone is announced at once while few topics move. Where snapshots are thinned it waits for a change of
   the exact state, which takes it along, but no longer than a snapshot would wait for its turn. Without an exact state
   it never waits: it is the only announcement.
6. A cluster that learns of a subscription by a change, and not by a whole state, asks for the whole state.
7. A cluster in which an earlier start opened messages asks once more, with a name for the question. A whole state names
   the last question that was heard of each cluster. So who asked knows that all is there that was acknowledged before.
8. A whole state has the subscription's start (:mod:`snapshots.starts`). So has a coarse state that is announced without
   an exact one, because its mark-delete position may include messages before the start.

A change that came only by an update from another cluster is not announced again, unless this cluster relays it. Then
the engine records it as a change here. A cluster relays updates if it has a peer that the announcing cluster does not
reach.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from snapshots.ack_vector import PART_BYTES_TARGET, AckVector
from snapshots.actions import ApplyUpdate, ControllerSettings, ControllerStats, WriteUpdate
from snapshots.markers import SubscriptionsUpdate, SubscriptionUpdate
from snapshots.pacing import SnapshotBudget, UpdateBudget, UpdatePace
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import Starts

UPDATES_PER_MARKER_MAX: Final = 1000
"""Limit of updates in one marker. It keeps a marker far below the largest entry: 1,000 subscriptions with 16 peers each
are about 1 MB."""
PROPERTIES_BYTES_MAX: Final = PART_BYTES_TARGET
"""Limit of a subscription's properties in bytes. Larger ones are not announced, so other clusters create the
subscription without them."""
_PROPERTY_BYTES: Final = 12
BURIED_MAX: Final = 1_000
"""Limit of announced deletions that are kept, as many as a topic keeps tombstones. A client may delete subscriptions
under new names without end."""


@dataclass(frozen=True, slots=True)
class Description:
    """Settings with which another cluster creates a subscription that it does not have."""

    properties: Mapping[str, str] = field(default_factory=dict)
    read_compacted: bool = False

    def size_bytes(self) -> int:
        """Return about how many bytes the properties take in a marker."""
        return sum(len(key.encode()) + len(value.encode()) + _PROPERTY_BYTES for key, value in self.properties.items())


class AckSource(Protocol):
    """Interface of the source of exact states, which keeps acknowledgements until they are announced."""

    def take(self, name: str, *, whole: bool) -> tuple[AckVector, bool]:
        """Return what was acknowledged of ``name`` since the last call, or the whole state, and whether it is whole.

        The returned acknowledgements count as announced.
        """

    def owe(self, name: str) -> None:
        """Note that the whole state of ``name`` is to be announced, because a cluster lacks it.

        It must be durable before the marker that showed this counts as handled: a restart does not read it again.
        """

    def describe(self, name: str) -> Description: ...


class _Deletion(NamedTuple):
    """Tombstone of a deleted subscription. ``unless_in_use`` tells that the deletion was not forced, and ``again`` that
    it is not new: it was announced before."""

    generation: int = 0
    unless_in_use: bool = False
    again: bool = False


@dataclass(slots=True)
class _Subscription:
    generation: int
    whole_due: bool
    """Whether peers wait for the whole state."""
    mark_delete: Position = BEFORE_ALL
    claim: Position = BEFORE_ALL
    """Mark-delete position when an acknowledgement here last moved it: peers may be told of it."""
    announced: dict[str, Position] = field(default_factory=dict)
    acknowledged: bool = False
    """Whether something was acknowledged here and not announced."""
    whole_next: bool = True
    """Whether the next announcement must be the whole state, because peers may not have this generation."""
    whole_announced_ms: int = 0
    asks: bool = False
    wanted: bool = False
    """Whether the whole state was asked for since the worker started. Then no update already in the log answers it."""
    ask_id: str = ""
    """Id of the question to ask, if somebody waits for its answer."""
    asked: Mapping[str, str] | None = None
    """Last question heard from each cluster; None if there was none."""


def _unknown(subscription: str) -> Starts:
    return {}


class UpdateAnnouncer:
    """Announcer and receiver of updates of one topic's subscriptions, for the cluster ``local``.

    ``mapped`` returns, for a peer and a local position, how far the peer's copy of a subscription may move. ``acks`` is
    None if only mark-delete positions travel. ``starts`` returns the start of a subscription by origin.
    """

    def __init__(
        self,
        local: str,
        peers: Collection[str],
        settings: ControllerSettings,
        stats: ControllerStats,
        mapped: Callable[[str, Position], Position | None],
        acks: AckSource | None,
        budget: UpdateBudget,
        snapshot_budget: SnapshotBudget,
        starts: Callable[[str], Starts] | None = None,
    ) -> None:
        self._local = local
        self.settings = settings
        self._stats = stats
        self._mapped = mapped
        self._acks = acks
        self._starts = starts or _unknown
        self._peers = peers
        self._subscriptions: dict[str, _Subscription] = {}
        self._buried: dict[str, _Deletion] = {}
        """Tombstones of deleted subscriptions, by name, the oldest deletion first."""
        self._unknown: dict[str, None] = {}  # a set that is empty takes three times as much, for each topic
        """Subscriptions that are being created because of an announced change. Their whole state must be asked for."""
        self._changed: dict[str, None] = {}
        """Subscriptions with something to announce, in order of their change."""
        self._coarse: dict[str, None] = {}
        """Subscriptions with only a coarse state to announce, which may wait."""
        self._coarse_due_ms = 0
        self._pace = UpdatePace(budget)
        self._snapshot_budget = snapshot_budget

    @property
    def has_subscriptions(self) -> bool:
        return bool(self._subscriptions)

    @property
    def due_ms(self) -> int | None:
        """Time at which the noted changes are to be announced; None without changes, or while an update is under
        way."""
        due_ms = self._pace.due_ms
        if self._changed or due_ms is None or not self._coarse:
            return due_ms if self._changed else None
        return max(due_ms, self._coarse_due_ms)

    # ---- events -----------------------------------------------------------------------------------------

    def on_subscription(
        self, name: str, mark_delete: Position, generation: int, now_ms: int, *, announced: bool, claims: bool = True
    ) -> None:
        """Record that a subscription exists; see :meth:`SnapshotController.on_subscription`."""
        known = self._subscriptions.get(name)
        if known is None or known.generation < generation:
            unknown = name in self._unknown
            self._unknown.pop(name, None)
            self._subscriptions[name] = _Subscription(
                generation,
                whole_due=not announced or unknown,
                asks=self._acks is not None and (not announced or unknown),
            )
        self._buried.pop(name, None)
        self.on_mark_delete(name, mark_delete, generation, now_ms, local=claims)

    def on_mark_delete(self, name: str, mark_delete: Position, generation: int, now_ms: int, *, local: bool) -> None:
        """Record a new mark-delete position; see :meth:`SnapshotController.on_mark_delete`."""
        subscription = self._subscriptions.get(name)
        if subscription is None or generation < subscription.generation:
            return
        if generation > subscription.generation:
            subscription = self._subscriptions[name] = _Subscription(generation, whole_due=local)
        if mark_delete < subscription.mark_delete:
            # Its start is earlier now, so earlier announcements may have had a start that does not count any more.
            subscription.claim = min(subscription.claim, mark_delete)
            subscription.announced.clear()
        subscription.mark_delete = mark_delete
        if local:
            subscription.claim = subscription.mark_delete
        self._note(name, subscription, now_ms)

    def on_acknowledged(self, name: str, now_ms: int) -> None:
        """Note that subscription ``name`` has new acknowledgements that the source of acknowledgements can return."""
        subscription = self._subscriptions.get(name)
        if subscription is not None and self._acks is not None:
            subscription.acknowledged = True
            self._note(name, subscription, now_ms)

    def on_subscription_deleted(
        self,
        name: str,
        generation: int | None,
        now_ms: int,
        *,
        announced: bool,
        unless_in_use: bool = False,
        again: bool = False,
    ) -> None:
        """Record that a subscription is gone. See :meth:`SnapshotController.on_subscription_deleted`."""
        self._subscriptions.pop(name, None)
        self._changed.pop(name, None)
        self._coarse.pop(name, None)
        if generation is not None:
            self._buried.pop(name, None)
            self._buried[name] = _Deletion(generation, unless_in_use, again or announced)
            if not announced:
                self._add(name, now_ms)
            while len(self._buried) > BURIED_MAX and (oldest := next(iter(self._buried))) not in self._changed:
                del self._buried[oldest]

    def on_peers(self, peers: Collection[str], now_ms: int, *, announce_all: bool) -> None:
        """Note which clusters get our markers. With ``announce_all``, announce every subscription, as some of them
        are new."""
        self._peers = peers
        if not peers:
            self._changed.clear()
            self._coarse.clear()
        if announce_all:
            self.announce_all(now_ms)
        self.note_all(now_ms)

    def announce_all(self, now_ms: int) -> None:
        """Make the whole state of every subscription, and each deletion, due for announcing.

        Ask for what other clusters have.
        """
        for name, subscription in self._subscriptions.items():
            subscription.whole_due = subscription.wanted = True
            subscription.asks = self._acks is not None
            self._note(name, subscription, now_ms)
        for name in self._buried:  # a cluster that was restored may have one of them again
            self._add(name, now_ms)

    def note_all(self, now_ms: int) -> None:
        """Note that any subscription may have news, since the known mappings changed."""
        for name, subscription in self._subscriptions.items():
            self._note(name, subscription, now_ms)

    def recall(self, update: SubscriptionUpdate) -> None:
        """Note that the content of ``update``, which is in the log, was announced by this cluster.

        Later questions are not answered by it. They may lie before it here: while the worker runs, an update may be
        seen late.
        """
        subscription = self._subscriptions.get(update.subscription)
        if subscription is None or subscription.generation != update.generation or update.deleted:
            return
        if (self._acks is None or update.whole) and not subscription.wanted:
            subscription.whole_due = subscription.asks = False
        for peer, reached in update.clusters.items():
            subscription.announced[peer] = max(reached, subscription.announced.get(peer, BEFORE_ALL))

    # ---- announcing -------------------------------------------------------------------------------------

    def announce(self, now_ms: int) -> list[WriteUpdate]:
        """Return actions that write markers for all noted changes. Coarse states that wait go with them."""
        if self._coarse:
            self._changed.update(self._coarse)
            self._coarse.clear()
        markers: list[WriteUpdate] = []
        updates: list[SubscriptionUpdate] = []
        room = PART_BYTES_TARGET
        for name in self._changed:
            for update, size in self._updates(name, now_ms):
                if updates and (size > room or len(updates) >= UPDATES_PER_MARKER_MAX):
                    markers.append(WriteUpdate(SubscriptionsUpdate(tuple(updates))))
                    updates, room = [], PART_BYTES_TARGET
                updates.append(update)
                room -= size
                self._stats.updates_sent += 1
        if updates:
            markers.append(WriteUpdate(SubscriptionsUpdate(tuple(updates))))
        self._changed.clear()
        if markers:
            self._pace.began(now_ms, len(markers), self.settings.update_interval_ms)
        return markers

    def on_written(self, now_ms: int) -> None:
        """Record that a marker is out of the way: it is in the log, or the writer refused it, such as in a full
        store."""
        self._pace.ended(now_ms)

    def _updates(self, name: str, now_ms: int) -> Iterable[tuple[SubscriptionUpdate, int]]:
        """Yield the updates of one subscription, each with its approximate size in bytes."""
        subscription = self._subscriptions.get(name)
        if subscription is None:
            if (buried := self._buried.get(name)) is not None:
                generation, sparing, again = buried
                yield SubscriptionUpdate(name, {}, generation, whole=again, deleted=True, unless_in_use=sparing), 0
                self._buried[name] = buried._replace(again=True)
            return
        news = self._news(subscription)
        due, asks, ask_id = subscription.whole_due, subscription.asks, subscription.ask_id
        vector, whole = self._take(name, subscription, now_ms)
        subscription.announced.update(news)
        subscription.whole_due = subscription.asks = subscription.wanted = False
        subscription.ask_id = ""
        if not (news or due or asks or whole or vector):
            return
        description = Description()
        if due or whole:
            description = Description() if self._acks is None else self._acks.describe(name)
        starts = self._starts(name) if due or whole or (news and self._acks is None) else {}
        described_bytes = description.size_bytes()
        if described_bytes > PROPERTIES_BYTES_MAX:
            description, described_bytes = Description({}, description.read_compacted), 0
        parts = list(vector.parts())
        for number, (part, size) in enumerate(parts):
            first, last = number == 0, number == len(parts) - 1
            yield (
                SubscriptionUpdate(
                    name,
                    news if first else {},
                    subscription.generation,
                    part,
                    whole=whole,
                    asks=asks and first,
                    properties=description.properties if first else {},
                    read_compacted=description.read_compacted,
                    starts=starts,
                    ask_id=ask_id if first else "",
                    answers=(subscription.asked or {}) if whole and last else {},
                ),
                size + (described_bytes if first else 0),
            )

    def _take(self, name: str, subscription: _Subscription, now_ms: int) -> tuple[AckVector, bool]:
        if self._acks is None or not (subscription.whole_due or subscription.acknowledged):
            return AckVector(), False
        often_enough = now_ms - subscription.whole_announced_ms < self.settings.whole_interval_ms
        whole = subscription.whole_due or subscription.whole_next or not often_enough
        vector, whole = self._acks.take(name, whole=whole)
        subscription.acknowledged = False
        if whole:
            subscription.whole_next = False
            subscription.whole_announced_ms = now_ms
        return vector, whole

    def _news(self, subscription: _Subscription) -> dict[str, Position]:
        """Return, by peer, the position to which its copy of the subscription may move, if that was not announced
        before."""
        news: dict[str, Position] = {}
        for peer in self._peers:
            position = self._mapped(peer, subscription.claim)
            if position is not None and position > subscription.announced.get(peer, BEFORE_ALL):
                news[peer] = position
        return news

    def _note(self, name: str, subscription: _Subscription, now_ms: int) -> None:
        if name in self._changed:
            return
        if subscription.whole_due or subscription.acknowledged:
            self._add(name, now_ms)
        elif name not in self._coarse and self._news(subscription):
            self._add_coarse(name, now_ms)

    def _add_coarse(self, name: str, now_ms: int) -> None:
        """Record that subscription ``name`` has only a coarse state to announce, which may wait."""
        interval_ms = self.settings.snapshot_interval_ms
        wait_ms = 0
        if self._acks is not None:
            wait_ms = min(self._snapshot_budget.wait_ms(now_ms), self._snapshot_budget.age_ms_max(interval_ms))
        if not wait_ms:
            self._add(name, now_ms)
        elif self._peers:
            if not self._coarse:
                self._coarse_due_ms = now_ms + wait_ms
            self._coarse[name] = None

    def _add(self, name: str, now_ms: int) -> None:
        if not self._peers:
            return
        self._coarse.pop(name, None)
        if not self._changed:
            self._pace.changed(now_ms, self.settings.update_interval_ms)
        self._changed[name] = None

    # ---- hearing ----------------------------------------------------------------------------------------

    def on_updates(self, marker: SubscriptionsUpdate, origin: str, lac: Position, now_ms: int) -> list[ApplyUpdate]:
        """Return the actions that follow from a marker of ``origin`` with updates. ``lac`` is the LAC of the local
        log."""
        return [
            action for update in marker.updates if (action := self._on_update(update, origin, lac, now_ms)) is not None
        ]

    def _on_update(self, update: SubscriptionUpdate, origin: str, lac: Position, now_ms: int) -> ApplyUpdate | None:
        name, known = update.subscription, self._subscriptions.get(update.subscription)
        newest = self._buried.get(name, _Deletion()).generation if known is None else known.generation
        if newest > update.generation or (known is None and newest == update.generation):
            if not update.deleted or newest > update.generation:
                self._answer(name, now_ms)
            return None
        if known is not None and update.asks:
            if update.ask_id and update.generation == known.generation:
                known.asked = {**(known.asked or {}), origin: update.ask_id}
            self._answer(name, now_ms)
        acks = update.acks if self._acks is not None else AckVector()
        position = update.clusters.get(self._local)
        if position is not None and position > lac:
            # Nothing that was mapped can be past our log, unless we lost a part of it.
            self._stats.skipped += 1
            position = None
            if not (acks or update.whole or update.deleted or update.starts):
                return None
        if known is not None and known.generation == update.generation and not update.deleted:
            is_old = position is None or position <= known.mark_delete
            if is_old and not acks and not update.starts and self._local not in update.answers:
                return None
        if known is None and acks and not update.whole:
            self._unknown[name] = None
        self._stats.updates_applied += 1
        return ApplyUpdate(
            name,
            update.generation,
            position,
            origin,
            acks,
            whole=update.whole,
            deleted=update.deleted,
            properties=update.properties,
            read_compacted=update.read_compacted,
            starts=update.starts,
            unless_in_use=update.unless_in_use,
            answer=update.answers.get(self._local, ""),
        )

    def ask(self, name: str, ask_id: str, now_ms: int) -> None:
        """Ask the other clusters for the whole state of the subscription ``name``. Their answers name ``ask_id``."""
        subscription = self._subscriptions.get(name)
        if subscription is not None and self._acks is not None:
            subscription.asks, subscription.ask_id = True, ask_id
            self._add(name, now_ms)

    def _answer(self, name: str, now_ms: int) -> None:
        """Announce the whole state of a subscription, or its deletion, with the next marker.

        Call this when a cluster asked for the state, or showed that it lacks it.
        """
        subscription = self._subscriptions.get(name)
        if subscription is not None:
            if self._acks is None:
                return
            subscription.whole_due = subscription.wanted = True
            self._acks.owe(name)
        self._add(name, now_ms)
