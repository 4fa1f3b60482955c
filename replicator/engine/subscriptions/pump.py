"""Dispatch of one subscription, as the dispatcher decides it: reads entries, and hands them to consumers.

The shell of :mod:`replicator.engine.subscriptions.dispatch`. It runs in short pieces on the event loop, and wakes by
itself when a delayed message is due.

All subscriptions share turns of their own (:mod:`replicator.running.turns`). In each turn of the event loop they
dispatch for a few milliseconds together. Subscriptions whose clients used the least time lately go first. A client's
commands use time, and so does the dispatch to its consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import Final

import structlog

from replicator.engine.errors import EngineError, EntryCorrupt, MessageTooLarge
from replicator.engine.log.block import BlockKind
from replicator.engine.log.entry import decode_entry, may_be_delayed
from replicator.engine.log.topic_reading import CommittedBlock
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from replicator.engine.subscriptions.dispatch.plan import Candidate, ReadPlan, ReadTail
from replicator.engine.subscriptions.key_shared.hashing import entry_key, key_hash
from replicator.engine.types import Delivery, LoggedEntry, ReadEntries, SubscriptionType
from replicator.running.turns import FairScheduler
from replicator.tracing.tracing import SubscriptionTraces
from snapshots.position import Position

DISPATCH_ENTRIES_MAX: Final = 1000
"""Limit of entries in one dispatch, so that a busy subscription does not block the event loop."""
DISPATCH_BYTES_MAX: Final = 4 * 1024 * 1024
ALONE_BYTES_MAX: Final = 4096
"""Most bytes of an entry that is delivered by itself without a plan. For a larger one the plan takes little of the
time."""
DISPATCH_SECONDS_MAX: Final = 0.02
"""Longest time of one dispatch. Redelivered entries may each lie in another block, which must be read whole."""
SLEEP_SECONDS_MAX: Final = 60.0
"""Longest sleep. So if the wall clock is put forward, a delayed message does not wait for long."""

log = structlog.get_logger(__name__)


class Pump:
    """Reads the entries of one subscription and delivers them, whenever something has changed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: FairScheduler,
        wall_clock_ms: Callable[[], int],
        cursor: Cursor,
        consumers: Mapping[int, EngineConsumer],
    ) -> None:
        self._loop = loop
        self._turns = turns
        self._wall_clock_ms = wall_clock_ms
        self._cursor = cursor
        self._consumers = consumers
        self._scheduled: asyncio.Handle | None = None
        self._waits = False
        """Whether the pump waits for its turn."""
        self._client: EngineConsumer | None = None
        """Consumer that got entries last; its client is the one that dispatch works for."""
        self._alarm: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        """Ends a pause of dispatch; None if there is none."""
        self.dispatcher: Dispatcher | None = None
        self.read: ReadEntries | None = None
        """Function that returns entries in (after, upto], up to a number and size, at least one if there is one."""
        self.handed_out: Callable[[LoggedEntry], None] = lambda oldest: None
        """Function that is called with the oldest entry of each run of new entries, after its messages were
        delivered."""
        self.ages: Callable[[str, float], None] = lambda origin, seconds: None
        """Function that receives the origin of a new entry that was delivered by itself, and its age then."""
        self._new: CommittedBlock | None = None
        """Last block of the log, from its commit to the next run."""
        self.delays = True
        """Whether messages with delayed delivery wait for their time."""
        self.error: str | None = None
        """Reason why dispatch stands still, such as a block that cannot be read; None if it works."""
        self.paused: Callable[[], bool] = lambda: False
        """Function that returns whether dispatch pauses. Whoever ends the pause calls :meth:`schedule`."""
        self.may_drop: frozenset[str] = frozenset()
        """Names of consumers whose clients may drop entries that came back, as they acknowledged later ones."""
        self._before_restart = cursor.has_uncovered
        """Whether entries came back before this worker started. Acknowledgements that clients sent by then are
        unknown."""
        self._known: set[int] = set()
        """Ids of consumers that were added to :attr:`may_drop` for that reason, even if they were removed again."""
        self._batch_size = 1.0
        """Mean number of messages for consumers in the last entries that were read."""
        self.traces: SubscriptionTraces | None = None
        """Traces of delivered messages; None if tracing is off."""

    @property
    def scheduled(self) -> bool:
        """Whether the pump has work for the next turn of the event loop."""
        return self._scheduled is not None

    @property
    def waits_for_acknowledgements(self) -> bool:
        """Whether an acknowledgement may allow an entry to be sent that cannot be sent now."""
        dispatcher = self.dispatcher
        return self.error is not None or (dispatcher is not None and dispatcher.waits_for_acknowledgements)

    def appended(self, new: CommittedBlock | None) -> None:
        """Deliver entries that were just committed, on the next turn of the event loop.

        ``new`` is the last block of the log, or None if it is not in memory.
        """
        self._new = new
        self.schedule()

    def schedule(self) -> None:
        """Dispatch on the next turn of the event loop, since permits, entries or consumers changed."""
        if self._scheduled is None and self._consumers:
            self._scheduled = self._loop.call_soon(self._run)

    @property
    def held(self) -> bool:
        """Whether a pause of dispatch runs."""
        return self._pause is not None

    def hold(self, seconds: float) -> None:
        """Dispatch nothing for ``seconds``, or until :meth:`release`. A later call replaces an earlier one."""
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self._loop.call_later(seconds, self.release)

    def release(self) -> None:
        """End a pause of dispatch, if there is one."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self.schedule()

    def postpone(self) -> None:
        """Let callbacks that wait on the event loop come first, such as news of a new active consumer."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
            self._waits = False
            self.schedule()

    def _run(self) -> None:
        """Dispatch now, or when it is the turn of this subscription."""
        client = self._client
        if client is None or client.closed:
            client = self._client = next(iter(self._consumers.values()), None)
            if client is None:
                self._scheduled = self._new = None
                return
        if self._turns.may_begin(client.share):
            self._take_turn(client)
        else:
            self._waits = True
            self._turns.wait(client.share, self._waited)

    def _waited(self) -> bool:
        """Dispatch, unless dispatch was postponed meanwhile: then it is scheduled again."""
        if self._waits:
            self._waits = False
            if (client := self._client) is not None:
                self._take_turn(client)
        return False

    def _take_turn(self, client: EngineConsumer) -> None:
        """Dispatch, and count the time as use by the clients that are served; by ``client`` if nobody is."""
        self._scheduled = None
        turns = self._turns
        began = turns.clock()
        served = self._dispatch()
        if served is None:
            turns.sample(client.share, began)
            return
        now = turns.clock()
        if not served:
            turns.spend(client.share, now - began, now)
        for consumer in served:
            self._client = consumer
            turns.spend(consumer.share, (now - began) / len(served), now)

    def _dispatch(self) -> Sequence[EngineConsumer] | None:
        """Read what the dispatcher wants, and deliver it.

        Return the consumers that got something; None if one small entry was delivered by itself.
        """
        new, self._new = self._new, None
        dispatcher = self.dispatcher
        if dispatcher is None or self.read is None or not self._consumers:
            return ()
        if self._pause is not None or self.paused():
            return ()
        now_ms = self._wall_clock_ms()
        if new is not None and self._alarm is None and self._deliver_new(new, dispatcher, now_ms):
            return None
        plan = dispatcher.next_read(now_ms)
        wake_at_ms = dispatcher.wake_at_ms
        if plan is None and wake_at_ms is not None and wake_at_ms <= now_ms:
            wake_at_ms = None  # what is due waits for a permit or an acknowledgement, which schedules the pump
        self._set_alarm(wake_at_ms, now_ms)
        if plan is None:
            return ()
        try:
            entries, reached_end = self._read(plan, dispatcher)
            untouched = bool(entries) and self._cursor.is_unconsumed_from(entries[0].position)
            candidates = self._candidates(entries, dispatcher.type, untouched=untouched)
        except EngineError as error:
            self.error = str(error)
            return ()
        self.error = None
        if not entries and isinstance(plan, ReadTail):
            return ()
        deliveries: dict[int, list[Delivery]] = {}
        served: list[EngineConsumer] = []
        for assignment in dispatcher.assign(plan, candidates, now_ms):
            delivery = self._delivery(entries[assignment.candidate], assignment.redelivery_count, untouched=untouched)
            deliveries.setdefault(assignment.consumer_id, []).append(delivery)
        for consumer_id, batch in deliveries.items():
            consumer = self._consumers.get(consumer_id)
            if consumer is not None:  # not closed by a consumer that was served before it
                if self.traces is not None:
                    self.traces.delivered(consumer.name, batch)
                served.append(consumer)
                self._deliver(consumer, batch)
                if self._cursor.has_uncovered and not self._may_drop(consumer_id, consumer):
                    self._cursor.delivered([delivery.position for delivery in batch])
        if isinstance(plan, ReadTail):
            if deliveries:
                self.handed_out(next(entry for entry in entries if not entry.marker))
            wanted = sum([candidate.messages for candidate in candidates if candidate.wanted])
            self._batch_size = max(1.0, wanted / len(candidates))
            if reached_end and not self._more_to_read(dispatcher, entries[-1].position, now_ms):
                return served  # the next append, permit or acknowledgement schedules the pump
        self.schedule()
        return served

    def _deliver_new(self, new: CommittedBlock, dispatcher: Dispatcher, now_ms: int) -> bool:
        """Deliver the single small entry of the log's last block, if nothing else waits. Return whether it was
        delivered.

        This is the usual case if messages come one by one. The result is that of :meth:`_run`, without plans or
        candidates.
        """
        position, view = new
        header, cursor, after = view.header, self._cursor, dispatcher.read_position
        if (
            header.entries != 1
            or position[1] != after[1] + 1
            or position[0] != after[0]
            or header.kind is not BlockKind.MESSAGES
            or len(view.block) > ALONE_BYTES_MAX
            or not cursor.is_unconsumed_from(position)
            or cursor.has_uncovered
        ):
            return False
        entry = view.entry(0)
        if self.delays and not dispatcher.type.one_active and may_be_delayed(entry):
            return False
        messages = header.messages
        consumer_id = dispatcher.assign_next(position, messages)
        if consumer_id is None:
            return False
        self.error = None
        self._batch_size = float(messages)
        consumer = self._consumers[consumer_id]
        count = dispatcher.redeliveries.count(position)
        batch = (Delivery(position, count, messages, None, bytes(entry), header.origin, header.origin_first),)
        if self.traces is not None:
            self.traces.delivered(consumer.name, batch)
        self._client = consumer
        self._deliver(consumer, batch)
        self.ages(header.origin, (now_ms - header.publish_time_ms) / 1000)
        return True

    def _more_to_read(self, dispatcher: Dispatcher, end: Position, now_ms: int) -> bool:
        """Return whether the dispatcher must read more now, after it read the tail up to the end of the log.

        Also set the alarm for the next time at which the dispatcher must wake.
        """
        if dispatcher.may_redeliver or dispatcher.read_position < end:
            following = dispatcher.next_read(now_ms)
            more = following is not None and not (isinstance(following, ReadTail) and following.after >= end)
        else:
            more = False
        wake_at_ms = dispatcher.wake_at_ms
        if wake_at_ms is not None and wake_at_ms <= now_ms:
            wake_at_ms, more = None, True  # the next run takes it, or waits
        self._set_alarm(wake_at_ms, now_ms)
        return more

    def _may_drop(self, consumer_id: int, consumer: EngineConsumer) -> bool:
        """Return whether the client may drop entries that came back, because it acknowledged later ones."""
        if self._before_restart and consumer.drops_acknowledged and consumer_id not in self._known:
            self._known.intersection_update(self._consumers)
            self._known.add(consumer_id)
            self.may_drop |= {consumer.name}
        return consumer.name in self.may_drop

    @staticmethod
    def _deliver(consumer: EngineConsumer, batch: Sequence[Delivery]) -> None:
        """Deliver a batch to a consumer. Close a consumer that fails, so that others get its messages."""
        try:
            consumer.deliver(batch)
        except Exception:
            log.exception("a consumer failed to take its messages", consumer=consumer.name)
            consumer.close("it failed to take its messages")

    def _read(self, plan: ReadPlan, dispatcher: Dispatcher) -> tuple[list[LoggedEntry], bool]:
        """Return the entries of a plan, and whether a read of the tail came to the end of the log."""
        assert self.read is not None
        if isinstance(plan, ReadTail):
            # An estimate from the last entries. If these entries are smaller, the next read finds more.
            permits = dispatcher.permits(ceil(DISPATCH_ENTRIES_MAX * self._batch_size))
            entries_max = min(max(1, ceil(permits / self._batch_size)), DISPATCH_ENTRIES_MAX)
            entries = self.read(plan.after, None, entries_max, DISPATCH_BYTES_MAX)
            has_room = len(entries) < entries_max and sum([len(each.entry) for each in entries]) < DISPATCH_BYTES_MAX
            return entries, has_room
        found: list[LoggedEntry] = []
        bytes_left = DISPATCH_BYTES_MAX
        until = self._loop.time() + DISPATCH_SECONDS_MAX
        for first, last in _runs(plan.positions):
            run = self.read(Position(first.ledger, first.entry - 1), last, last.entry - first.entry + 1, bytes_left)
            found += [entry for entry in run if first <= entry.position <= last]
            bytes_left -= sum(len(entry.entry) for entry in run)
            if bytes_left <= 0 or (found and self._loop.time() >= until):
                break
        return found, False

    def _candidates(
        self, entries: Sequence[LoggedEntry], subscription_type: SubscriptionType, *, untouched: bool
    ) -> list[Candidate]:
        """Return candidates for the dispatcher from ``entries``. If they are ``untouched``, nothing in them is
        acknowledged."""
        cursor = self._cursor
        passes_over, acked_indexes = cursor.passes_over, cursor.acked_indexes
        if subscription_type.one_active:
            return [
                Candidate(
                    entry.position,
                    entry.batch_size,
                    not entry.marker and (untouched or not passes_over(entry.position)),
                )
                for entry in entries
            ]
        keyed = subscription_type is SubscriptionType.KEY_SHARED
        candidates: list[Candidate] = []
        for entry in entries:
            position, unacked = entry.position, entry.batch_size
            if entry.marker or not (untouched or not passes_over(position)):
                candidates.append(Candidate(position, entry.batch_size, False))
                continue
            if not untouched and (acked := acked_indexes(position)) is not None:
                unacked -= len(acked)
            if not keyed and not (self.delays and may_be_delayed(entry.entry)):
                candidates.append(Candidate(position, entry.batch_size, True, unacked))
                continue
            try:
                metadata, _ = decode_entry(entry.entry, check=False)  # the block's checksum was checked
            except (EntryCorrupt, MessageTooLarge):
                # A consumer receives the malformed entry and refuses it. It must not block the entries after it.
                candidates.append(Candidate(position, entry.batch_size, True))
                continue
            candidates.append(
                Candidate(
                    position,
                    entry.batch_size,
                    True,
                    unacked,
                    key_hash(entry_key(metadata)) if keyed else 0,
                    metadata.deliver_at_time if self.delays else 0,
                )
            )
        return candidates

    def _delivery(self, entry: LoggedEntry, redelivery_count: int, *, untouched: bool) -> Delivery:
        acked = None if untouched else self._cursor.acked_indexes(entry.position)
        return Delivery(
            entry.position,
            redelivery_count,
            entry.batch_size,
            None if acked is None else acked.serialize(),
            bytes(entry.entry),
            entry.origin,
            entry.origin_position,
        )

    def _set_alarm(self, wake_at_ms: int | None, now_ms: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if wake_at_ms is not None:
            delay = min(max(0.0, (wake_at_ms - now_ms) / 1000), SLEEP_SECONDS_MAX)
            self._alarm = self._loop.call_later(delay, self.schedule)

    def stop(self) -> None:
        """Stop dispatch after the consumers or the topic have gone. A pause goes on, for consumers that come later."""
        self._set_alarm(None, 0)


def _runs(positions: Sequence[Position]) -> list[tuple[Position, Position]]:
    """Return sorted positions as runs of neighbours: the first and the last position of each run."""
    runs: list[tuple[Position, Position]] = []
    for _, group in groupby(enumerate(positions), key=lambda pair: (pair[1].ledger, pair[1].entry - pair[0])):
        members = [position for _, position in group]
        runs.append((members[0], members[-1]))
    return runs
