"""Key_Shared: entries are spread over consumers by their key, and a key is with one consumer at a time. Pure.

The selector (:mod:`replicator.engine.subscriptions.key_shared`) assigns keys to consumers, and changes when consumers
come and go. This module keeps the order of each key:

1. An entry may go to its key's consumer only if no other consumer holds an entry of that key. So a new consumer waits
   only for those of its own keys that another consumer still holds, which is draining (PIP-379). Keys with the same
   32-bit hash count as one.
2. An entry that may not go now waits, in order. Reading the log goes on, so other keys are not delayed. At most about
   :data:`WAITING_MAX` entries wait; at the limit no more is read until some have gone.
3. An entry waits either with its consumer (which has no permits) or with its key (which is draining). When the last
   entry of a draining key is acknowledged or taken back, its waiting entries move to the key's present consumer.
4. When consumers come or go, waiting entries are sorted again before the next entry is given out.
5. The log is read on only if no consumer that could take an entry has one waiting. So no entry overtakes an earlier
   entry of its key: if one waits, its consumer has no permits, or the key is draining.

With ``allow_out_of_order_delivery``, rule 1 ignores holders of the key. With the older ordering of seed 000 (recently
joined), a new consumer also gets no entry that is sent after it came until all entries that were sent before are
acknowledged; "sent" and not "read", as PIP-282 corrected it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from replicator.engine.errors import ConsumerBusy, InvalidHashRanges
from replicator.engine.policies import KeyAssignment, KeyOrdering
from replicator.engine.subscriptions.dispatch.dispatcher import READ_AGAIN_MAX, ConsumerState, gone
from replicator.engine.subscriptions.dispatch.held import HeldEntry
from replicator.engine.subscriptions.dispatch.many_active import ManyActiveDispatcher
from replicator.engine.subscriptions.dispatch.plan import (
    Assignment,
    Candidate,
    ReadAgain,
    ReadPlan,
    ReadTail,
    UnackedLimits,
)
from replicator.engine.subscriptions.key_shared.selector import KeySelector, make_selector
from replicator.engine.types import HashRange, SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

WAITING_MAX: Final = 20_000
"""Limit of entries that wait for a consumer. Each takes about 200 bytes, because only its position and hash are
kept."""
HASHES_SHOWN_MAX: Final = 20
"""Hashes of a stuck consumer that the stats show."""
RANGES_SHOWN_MAX: Final = 200


class KeySharedDispatcher(ManyActiveDispatcher):
    """Dispatch state of a Key_Shared subscription."""

    def __init__(
        self,
        read_position: Position = BEFORE_ALL,
        *,
        assignment: KeyAssignment = KeyAssignment.CONSISTENT_HASHING,
        ordering: KeyOrdering = KeyOrdering.DRAINING,
        limits: UnackedLimits = UnackedLimits(),  # noqa: B008 - a frozen value
        waiting_max: int = WAITING_MAX,
    ) -> None:
        super().__init__(SubscriptionType.KEY_SHARED, read_position, limits)
        self._assignment = assignment
        self._ordering = ordering
        self._waiting_max = waiting_max
        self._selector: KeySelector | None = None
        self._ranges_of = -1
        self._ranges_shown: Mapping[int, Sequence[HashRange]] = {}
        self._sticky = False
        self._out_of_order = False
        self._holders: dict[int, tuple[int, int]] = {}
        """By key hash, the consumer that holds entries of the key, and their number."""
        self._waiting: dict[Position, int] = {}
        """By position, the key hash of each entry that waits."""
        self._waiting_order = PositionSet()
        self._queues: dict[int | None, PositionSet] = {}
        """By consumer, the entries that wait for it. None has the entries whose hash belongs to no consumer."""
        self._draining: dict[int, PositionSet] = {}
        """By key hash, the entries that wait until the key's holder has acknowledged its entries."""
        self._sorted = True
        """Whether the waiting entries are in the right one of these two; if not, :meth:`_sort_waiting` moves them."""
        self._due = PositionSet()
        """Delayed entries that are due now. Their keys are unknown until they are read again."""
        self._clock_ms = 0
        self._last_sent = BEFORE_ALL
        self._mark_delete = read_position
        self._joined_at: dict[int, Position] = {}
        """By recently joined consumer, a position. The consumer gets nothing above it until all up to it is
        acknowledged."""

    def next_read(self, now_ms: int) -> ReadPlan | None:
        if self._held.blocked:
            return None
        ready = [state for state in self.consumers.values() if state.ready]
        if not ready:
            return None
        self._sort_waiting()
        if self._delayed.is_due(now_ms):
            self._due.update(self._delayed.take_due(now_ms))
        again: list[Position] = []
        share = max(1, READ_AGAIN_MAX // len(ready))
        for state in ready:
            queue = self._queues.get(state.id)
            if queue:
                limit = self._joined_at.get(state.id)
                found = queue.head(min(state.permits, share))
                again += found if limit is None else [position for position in found if position <= limit]
        if not again and self._due and len(self._waiting) < self._waiting_max:
            again = self._due.head(READ_AGAIN_MAX)
        if again:
            again.sort()
            return ReadAgain(again)
        return ReadTail(self.read_position) if self._may_read_on() else None

    def assign(self, plan: ReadPlan, candidates: Sequence[Candidate], now_ms: int) -> list[Assignment]:
        assignments: list[Assignment] = []
        if isinstance(plan, ReadAgain):
            for position in gone(plan, candidates):
                self._forget(position)
        for index, candidate in enumerate(candidates):
            position = candidate.position
            waited = position in self._waiting
            if not candidate.wanted:
                self._forget(position)
            elif candidate.deliver_at_ms > now_ms and not waited:
                if self._delayed.full:
                    break
                self._delayed.add(position, candidate.deliver_at_ms)
            elif (state := self._receiver(candidate)) is not None:
                if waited:
                    self._unpark(position)
                self._send(state, candidate, now_ms)
                assignments.append(Assignment(state.id, index, self.redeliveries.count(position)))
            elif not waited:
                if len(self._waiting) >= self._waiting_max:
                    break
                self._park(position, candidate.key_hash)
            if isinstance(plan, ReadTail):
                self.read_position = position
            else:
                self._due.discard(position)
        return assignments

    @property
    def waits_for_acknowledgements(self) -> bool:
        return bool(self._waiting) or super().waits_for_acknowledgements

    def acknowledged(self, position: Position) -> None:
        entry = self._held.remove(position)
        if entry is not None:
            self._released(entry)
        self._forget(position)
        self.redeliveries.forget(position)

    def acknowledged_all(self, positions: PositionSet) -> None:
        for entry in self._held.remove_all(positions):
            self._released(entry)
        for waiting in self._waiting_order.common(positions):
            self._unpark(waiting)
        self._due.difference_update(positions)
        self._delayed.discard_all(positions)
        self.redeliveries.forget_all(positions)

    def acknowledged_through(self, position: Position) -> None:
        for entry in self._held.remove_through(position):
            self._released(entry)
        if position > self._mark_delete:
            self._mark_delete = position
            self._joined_at = {id_: limit for id_, limit in self._joined_at.items() if limit > position}
            while (waiting := self._waiting_order.first()) is not None and waiting <= position:
                self._unpark(waiting)  # consumed without an acknowledgement here: in another cluster, or skipped
        self._due.discard_through(position)
        self._delayed.discard_through(position)
        self.redeliveries.forget_through(position)
        self.read_position = max(self.read_position, position)

    def restart(self, position: Position) -> None:
        self.read_position = self._last_sent = self._mark_delete = position
        self._held.clear()
        self._holders.clear()
        self._waiting.clear()
        self._waiting_order = PositionSet()
        self._queues.clear()
        self._draining.clear()
        self._delayed.clear()
        self._due = PositionSet()
        self._joined_at.clear()
        self.redeliveries.clear()

    def rewind(self, positions: PositionSet) -> None:
        passed = positions.copy()
        passed.discard_after(self.read_position)
        self._due.update(passed)

    def status(self) -> Mapping[str, Any]:
        self._sort_waiting()
        return {
            **super().status(),
            "key_assignment": "sticky" if self._sticky else self._assignment.value,
            "key_ordering": "out-of-order" if self._out_of_order else self._ordering.value,
            "delayed_entries": len(self._delayed) + len(self._due),
            "waiting_entries": len(self._waiting),
            "blocked_on_waiting": len(self._waiting) >= self._waiting_max,
            "draining_hashes": len(self._draining),
        }

    def consumer_status(self, consumer_id: int) -> Mapping[str, Any]:
        """Return the figures of one consumer, with its ranges, and the hashes that it holds while others wait for
        them."""
        assert self._selector is not None
        self._sort_waiting()
        holds = self._hashes_held_by(consumer_id)
        queue = self._queues.get(consumer_id)
        joined_at = self._joined_at.get(consumer_id)
        return {
            **super().consumer_status(consumer_id),
            "key_hash_ranges": [list(range_) for range_ in self._ranges().get(consumer_id, ())][:RANGES_SHOWN_MAX],
            "held_hashes": len(holds),
            "draining_hashes": [hash_ for hash_ in holds if hash_ in self._draining][:HASHES_SHOWN_MAX],
            "waiting_entries": len(queue) if queue else 0,
            "recently_joined_at": None if joined_at is None else str(joined_at),
        }

    def _hashes_held_by(self, consumer_id: int) -> list[int]:
        """Return the key hashes that a consumer holds, in ascending order. Only its own entries are read, because the
        stats may ask for a thousand consumers."""
        entries = (self._held.get(position) for position in self.consumers[consumer_id].pending)
        hashes = {entry.key_hash for entry in entries if entry is not None}
        # Out of order, a key can have two holders. Only the newer one is remembered, until it holds no entry.
        return sorted(hash_ for hash_ in hashes if self._holders.get(hash_, (None, 0))[0] == consumer_id)

    def _ranges(self) -> Mapping[int, Sequence[HashRange]]:
        """Return the selector's ranges. They are cached, because the stats ask for each consumer's, and a ring has a
        hundred of each."""
        assert self._selector is not None
        if self._ranges_of != self._selector.version:
            self._ranges_of, self._ranges_shown = self._selector.version, self._selector.ranges()
        return self._ranges_shown

    # Consumers come and go.

    def _admit(self, consumer_id: int, options: SubscribeOptions) -> None:
        policy = options.key_shared
        other = next(iter(self.consumers.values()), None)  # those that are here agree
        if other is not None:
            theirs = other.options.key_shared
            if (theirs.sticky_ranges is None) != (policy.sticky_ranges is None):
                if policy.sticky_ranges is None:
                    raise InvalidHashRanges(
                        "the consumers of this subscription bring sticky ranges: bring some as well, or use another "
                        "subscription"
                    )
                raise ConsumerBusy(
                    "this consumer brings sticky ranges, and those connected to this Key_Shared subscription, such as "
                    f"{other.options.consumer_name!r}, bring none: connect without ranges, or use another subscription"
                )
            if theirs.allow_out_of_order_delivery != policy.allow_out_of_order_delivery:
                raise ConsumerBusy(
                    "the consumers of a Key_Shared subscription must agree on allow_out_of_order_delivery: give it the "
                    f"value {theirs.allow_out_of_order_delivery}, which it has for the connected "
                    f"{other.options.consumer_name!r}"
                )
        if not self.consumers or self._selector is None:
            # The kind of selector is settled by the first consumer, and can change only when all have gone.
            selector = make_selector(self._assignment, policy.sticky_ranges is not None)
            selector.add(consumer_id, options.consumer_name, policy)
            self._selector = selector
            self._ranges_of = -1
        else:
            self._selector.add(consumer_id, options.consumer_name, policy)
        self._sticky = policy.sticky_ranges is not None
        self._out_of_order = policy.allow_out_of_order_delivery

    def _joined(self, consumer_id: int) -> None:
        if (
            self._ordering is KeyOrdering.RECENTLY_JOINED
            and not self._out_of_order
            and len(self.consumers) > 1
            and self._last_sent > self._mark_delete
        ):
            self._joined_at[consumer_id] = self._last_sent
        self._sorted = False

    def _left(self, state: ConsumerState) -> None:
        assert self._selector is not None
        self._selector.remove(state.id)
        self._joined_at.pop(state.id, None)
        for position in state.pending:
            entry = self._held.remove(position)
            assert entry is not None
            self._count_waiting(position, entry.key_hash)
            self._let_go(entry)
        if len(self.consumers) == 1 and self._ordering is KeyOrdering.RECENTLY_JOINED:
            self._joined_at.clear()  # nobody is left whom the last one could overtake
        self._sorted = False

    def _sort_waiting(self) -> None:
        """Sort the waiting entries, once for all consumers that came and went since the last time."""
        if self._sorted:
            return
        self._sorted = True
        self._queues = {}
        self._draining = {}
        for position in self._waiting_order:
            self._place(position, self._waiting[position])

    # One entry.

    def _receiver(self, candidate: Candidate) -> ConsumerState | None:
        """Return the consumer that may have the entry now, or None."""
        if self._held.blocked:
            return None
        key_hash = candidate.key_hash
        consumer_id = self._select(key_hash)
        if consumer_id is None or not (state := self.consumers[consumer_id]).ready:
            return None
        holder = self._holders.get(key_hash)
        if holder is not None and holder[0] != consumer_id and not self._out_of_order:
            return None
        limit = self._joined_at.get(consumer_id)
        return None if limit is not None and candidate.position > limit else state

    def _send(self, state: ConsumerState, candidate: Candidate, now_ms: int) -> None:
        assert self._selector is not None
        state.permits -= candidate.messages
        unacked = candidate.unacked or candidate.messages
        self._held.add(candidate.position, HeldEntry(state.id, unacked, candidate.key_hash))
        holder = self._holders.get(candidate.key_hash)
        # Out of order a key may have two holders; the newer one is remembered.
        count = holder[1] + 1 if holder is not None and holder[0] == state.id else 1
        self._holders[candidate.key_hash] = (state.id, count)
        self._last_sent = max(self._last_sent, candidate.position)
        self._clock_ms = max(self._clock_ms, now_ms)  # the wall clock may be put back, the selector's may not
        self._selector.record(state.id, candidate.messages, self._clock_ms / 1000)

    def _select(self, key_hash: int) -> int | None:
        return None if self._selector is None else self._selector.select(key_hash)

    def _take_back(self, position: Position) -> bool:
        """Take an entry back from its consumer, so that it waits again. Return whether a consumer held it."""
        entry = self._held.remove(position)
        if entry is None:
            return False
        self._let_go(entry)
        self._park(position, entry.key_hash)
        self._drained(entry.key_hash)
        return True

    def _released(self, entry: HeldEntry) -> None:
        self._let_go(entry)
        self._drained(entry.key_hash)

    def _let_go(self, entry: HeldEntry) -> None:
        holder = self._holders.get(entry.key_hash)
        if holder is None or holder[0] != entry.consumer_id:
            return
        if holder[1] > 1:
            self._holders[entry.key_hash] = (holder[0], holder[1] - 1)
        else:
            del self._holders[entry.key_hash]

    def _drained(self, key_hash: int) -> None:
        """If nobody holds the key any more, move its waiting entries to the queue of its consumer."""
        if key_hash in self._holders or not self._sorted:
            return
        waiting = self._draining.pop(key_hash, None)
        if waiting is not None:
            self._queues.setdefault(self._select(key_hash), PositionSet()).update(waiting)

    # Waiting entries.

    def _park(self, position: Position, key_hash: int) -> None:
        self._count_waiting(position, key_hash)
        self._place(position, key_hash)

    def _count_waiting(self, position: Position, key_hash: int) -> None:
        self._waiting[position] = key_hash
        self._waiting_order.add(position)

    def _place(self, position: Position, key_hash: int) -> None:
        if not self._sorted:
            return
        consumer_id = self._select(key_hash)
        holder = self._holders.get(key_hash)
        if holder is not None and holder[0] != consumer_id and not self._out_of_order:
            self._draining.setdefault(key_hash, PositionSet()).add(position)
        else:
            self._queues.setdefault(consumer_id, PositionSet()).add(position)

    def _unpark(self, position: Position) -> None:
        key_hash = self._waiting.pop(position)
        self._waiting_order.discard(position)
        if not self._sorted:
            return
        draining = self._draining.get(key_hash)
        if draining is not None and position in draining:
            draining.discard(position)
            if not draining:
                del self._draining[key_hash]
            return
        queue = self._queues.get(self._select(key_hash))
        assert queue is not None
        queue.discard(position)

    def _forget(self, position: Position) -> None:
        """Forget an entry that is consumed, or that the log does not have any more."""
        if position in self._waiting:
            self._unpark(position)
        self._due.discard(position)

    def _may_read_on(self) -> bool:
        return len(self._waiting) < self._waiting_max and not self._delayed.full
