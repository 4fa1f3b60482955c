"""The engine's periodic pass over its topics: expires messages, checks backlogs, deletes unneeded blocks.

It is the thin shell around :mod:`replicator.engine.upkeep.retention` and
:mod:`replicator.engine.upkeep.backlog_quota`. The order of steps for a topic lets expired messages be deleted in the
same pass:

1. TTL: each durable subscription moves over what was published too long ago. Markers are stepped over as ever.
2. Backlog quota: publishes are held or refused, or subscriptions are moved. While publishes are held, a subscription
   that moves on brings the topic's next check at once.
3. Holds: a link that holds back more than its quota allows is released or makes publishes be refused, or is only
   reported. When it moves on, the topic's next check follows at once.
4. Retention: the oldest blocks that no subscription or link needs and the policy does not keep are deleted. It waits
   while another cluster takes back its messages from here, unless the store is nearly full. For a role that may
   replicate only some topics, it waits only in these.
5. Deduplication: producers that were not seen for long are forgotten.
6. Compaction: a pass is started if one is due, and if none that was started here is running.

After all topics, sparse segments of the store are compacted.

Between two passes a topic can grow fast. So retention by size (4) checks a topic again as soon as an eighth of its
limit was appended. The disk then never holds much more than the limit.

While other clusters have to tell the states of subscriptions after a disk was lost, steps 1, 2 and 4 wait
(:mod:`replicator.engine.upkeep.waiting_states`).

A topic without any of these policies costs nothing. After :data:`PAGE_BLOCKS` headers, other tasks run. A topic that
fails (a block that is corrupt, a store that is full) does not stop the pass for others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from replicator.engine.compaction.compaction import Compaction
from replicator.engine.errors import StoreFailed, StoreFull
from replicator.engine.log.block import BlockSpan
from replicator.engine.log.log_sizes import SAMPLE_BLOCKS, LogSizes
from replicator.engine.log.store import Store
from replicator.engine.topic_listener import TopicListener
from replicator.engine.upkeep import backlog_quota, hold_quota, retention
from replicator.engine.upkeep.backlog_quota import Backlog, EvictBytes, EvictOlder
from replicator.engine.upkeep.hold_quota import HeldData
from replicator.engine.upkeep.waiting_states import HOLDER
from replicator.running.supervisor import Supervisor
from replicator.running.timeouts import timeout_at
from snapshots.position import Position

if TYPE_CHECKING:
    from replicator.engine.log.writer import AppendedBlock
    from replicator.engine.subscriptions.subscription import Subscription
    from replicator.engine.topic import Topic

INTERVAL_SECONDS: Final = 60.0
"""Time between two passes, as between upstream's checks of quotas. A limit can be exceeded by what comes in this
time."""
LOOK_SHARE: Final = 8
"""Divisor of retention's size limit. After that share of the limit was appended, the topic is checked again, so that it
stays within 12.5 % of the limit."""
LOOK_BYTES_MIN: Final = 64 * 1024 * 1024
"""Bytes that must be appended at least before a topic with a low limit is checked again."""
HELD_BACK_SECONDS: Final = 60.0
"""Time after a reclaim's last request in which retention deletes nothing. It is longer than the pauses between
requests."""
HOLD_ROOM_MIN: Final = 0.1
"""Share of the store that must be free while retention is held back, because a reclaim must not fill a store that
serves clients. If retention deletes messages because of that, the reclaim reports them as lost."""
TOPICS_AT_ONCE: Final = 100
"""Topics that a pass handles before other tasks run. A topic without policies takes some microseconds."""
PAGE_BLOCKS: Final = 1_000
"""Headers that are read at once, which takes some milliseconds."""

log = structlog.get_logger(__name__)


class Maintenance(TopicListener["Topic"]):
    """Runs the passes of one engine. ``topics`` returns its present topics."""

    def __init__(
        self,
        store: Store,
        topics: Callable[[], Iterable[Topic]],
        supervisor: Supervisor,
        *,
        wall_clock_ms: Callable[[], int],
        compact_segments: Callable[[], Awaitable[None]],
        interval_seconds: float = INTERVAL_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._topics = topics
        self._wall_clock_ms = wall_clock_ms
        self._interval_seconds = interval_seconds
        self._monotonic = monotonic
        self._holds: dict[str | None, tuple[float, Callable[[str], bool]]] = {}
        """For each role that holds retention back, the time until which it does so, and a function that returns whether
        it does so in the topic of a given name. None stands for a hold of all topics."""
        self.waits: Callable[[], bool] = lambda: False
        """Returns whether nothing may be trimmed, expired or evicted, because states of subscriptions are awaited."""
        self._compact_segments = compact_segments
        self._sizes: dict[int, LogSizes] = {}
        self._compacting: Compaction | None = None
        self._moved: set[Topic] = set()
        """Topics whose quotas are checked next."""
        self._grown: set[Topic] = set()
        """Topics that grew, and whose retention is checked next."""
        self._came_bytes: dict[int, int] = {}
        """For each topic id, the bytes that came since retention looked at it, if retention limits bytes."""
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._task = supervisor.task("maintenance", "maintenance", self._run)

    def start(self) -> None:
        self._task.start()

    @property
    def running(self) -> bool:
        return self._task.running

    async def stop(self) -> None:
        """Stop, and return when nothing is read or trimmed any more."""
        await self._task.stop()

    async def run_once(self) -> None:
        """Run one pass over all topics."""
        for number, topic in enumerate(list(self._topics())):
            if number % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
            await self._guarded(self._maintain, topic)
        try:
            await self._compact_segments()
        except (StoreFull, StoreFailed) as error:  # there is a next pass
            log.warning("segments were not compacted", reason=str(error))

    async def retain_now(self, topic: Topic) -> None:
        """Delete now what the retention policy of ``topic`` does not keep, instead of at the next pass."""
        async with self._one_at_a_time:
            await self._retain(topic)

    async def hold_back(
        self, whose: str, role: str | None = None, covers: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Keep retention from deleting anything for :data:`HELD_BACK_SECONDS`, while the cluster ``whose`` takes back
        messages. Do so only in the topics for whose names ``covers`` returns True.

        ``role`` is the role that asks for the hold; None if the hold is of all topics. A role has one hold at a time,
        so its last call counts. Wait for the end of a deletion that had begun. If the store is nearly full, do nothing.
        """
        if not self._has_room():
            return
        now = self._monotonic()
        self._holds = {each: hold for each, hold in self._holds.items() if now < hold[0]}
        held = role in self._holds
        self._holds[role] = (now + HELD_BACK_SECONDS, covers)
        if not held:
            log.info("retention waits while a cluster takes back its messages", whose=whose, role=role)
            async with self._one_at_a_time:
                pass

    def holds_back(self, topic: Topic) -> bool:
        """Return whether retention waits in ``topic``: for a cluster that takes back its messages, or for states of
        subscriptions."""
        now = self._monotonic()
        held = any(now < until and covers(topic.name) for until, covers in self._holds.values())
        return self.waits() or (held and self._has_room())

    def _has_room(self) -> bool:
        return self._store.pressure() <= 1 - HOLD_ROOM_MIN

    # What the engine tells.

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        bytes_max = topic.policies.effective.retention.bytes_max
        if bytes_max is None:
            return
        came = self._came_bytes.get(topic.topic_id, 0) + sum(block.size_bytes for block in blocks)
        self._came_bytes[topic.topic_id] = came
        if came >= max(bytes_max // LOOK_SHARE, LOOK_BYTES_MIN):
            self._grown.add(topic)
            self._wake.set()

    def on_subscription_deleted(self, topic: Topic, name: str, generation: int | None) -> None:
        self._check_soon(topic)

    def on_mark_delete(self, topic: Topic, subscription: Subscription, *, local: bool) -> None:
        self._check_soon(topic)

    def on_log_deleted(self, topic: Topic) -> None:
        self._sizes.pop(topic.topic_id, None)
        self._came_bytes.pop(topic.topic_id, None)
        self._moved.discard(topic)
        self._grown.discard(topic)

    def hold_moved(self, topic: Topic) -> None:
        """Check ``topic`` again soon: its log is held back less than before."""
        if topic.holds.exceeded:
            self._moved.add(topic)
            self._wake.set()

    def _check_soon(self, topic: Topic) -> None:
        if topic.writing.quota_exceeded is not None:
            self._moved.add(topic)
            self._wake.set()

    # The passes.

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._interval_seconds
        while True:
            self._wake.clear()
            moved, self._moved = self._moved, set()
            for topic in moved:
                await self._guarded(self._watch_quotas, topic)
            grown, self._grown = self._grown, set()
            for topic in grown:
                await self._guarded(self._retain, topic)
            if loop.time() >= due:
                await self.run_once()
                due = loop.time() + self._interval_seconds
            with contextlib.suppress(TimeoutError):
                async with timeout_at(due):
                    await self._wake.wait()

    async def _guarded(self, step: Callable[[Topic], Awaitable[None]], topic: Topic) -> None:
        async with self._one_at_a_time:
            try:
                await step(topic)
            except Exception:  # whatever is wrong with one topic, the others are looked after
                if topic.deleted is not None:
                    return
                log.exception("maintenance of a topic failed", topic=topic.name)

    async def _maintain(self, topic: Topic) -> None:
        await self._expire(topic)
        await self._watch_quotas(topic)
        await self._retain(topic)
        await topic.producers.forget_inactive()
        if self._compacting is not None and self._compacting.running:
            return
        if await topic.compaction.is_due() and topic.deleted is None:  # it may have been deleted during this round
            self._compacting = topic.compaction
            topic.compaction.start()

    async def _expire(self, topic: Topic) -> None:
        ttl_seconds = topic.policies.effective.message_ttl_seconds
        if ttl_seconds is not None and not self.waits():
            for subscription in _durable(topic):
                await self._expire_older(topic, subscription, self._wall_clock_ms() - 1000 * ttl_seconds)

    async def _expire_older(self, topic: Topic, subscription: Subscription, published_before_ms: int) -> None:
        reached = await topic.reading.position_at_time(published_before_ms, after=subscription.cursor.mark_delete)
        await subscription.moves.consume_through(reached)
        await asyncio.sleep(0)  # the last block was looked into, for each of maybe a thousand subscriptions

    async def _watch_quotas(self, topic: Topic) -> None:
        await self._watch_backlog(topic)
        await self._watch_holds(topic)

    async def _watch_holds(self, topic: Topic) -> None:
        found: dict[str, str] = {}
        for name, quota in list(topic.holds.quotas.items()):
            at = topic.holds.positions.get(name)
            if at is not None and quota.limited:
                held = await self._held(topic, at, sized=quota.bytes_max is not None)
                if hold_quota.exceeded(quota, held, self._wall_clock_ms()):
                    found[name] = quota.policy
        for name, policy in found.items():
            if name not in topic.holds.exceeded:
                log.warning("a link holds back more than it may", topic=topic.name, holder=name, policy=policy)
        for name in topic.holds.exceeded.keys() - found.keys():
            log.info("a link is back within its hold", topic=topic.name, holder=name)
        if found != topic.holds.exceeded:
            topic.holds.set_exceeded(found)

    async def _held(self, topic: Topic, at: Position, *, sized: bool) -> HeldData:
        """Return the data above position ``at`` that is held back, and that no subscription needs."""
        done = retention.done_through(topic.log.last, (each.cursor.needed_after() for each in _durable(topic)), ())
        if at >= done:
            return HeldData(0)
        oldest = self._store.block_spans(topic.topic_id, at, blocks_max=1)
        size_bytes = 0
        if sized:
            sizes = await self._sizes_of(topic)
            size_bytes = self._bytes_through(topic, sizes, done) - self._bytes_through(topic, sizes, at)
        return HeldData(size_bytes, oldest[0].publish_time_ms if oldest else None)

    async def _watch_backlog(self, topic: Topic) -> None:
        quota = topic.policies.effective.backlog_quota
        if quota.bytes_max is None and quota.age_seconds_max is None:
            topic.writing.quota_exceeded = None
            return
        backlogs = [await self._backlog(topic, each, sized=quota.bytes_max is not None) for each in _durable(topic)]
        if (at := topic.holds.positions.get(HOLDER)) is not None:
            backlogs.append(await self._backlog_after(topic, HOLDER, at, sized=quota.bytes_max is not None))
        decision = backlog_quota.decide(quota, backlogs, self._wall_clock_ms())
        for eviction in () if self.waits() else decision.evictions:
            await self._evict(topic, eviction)
        if decision.publishes is not topic.writing.quota_exceeded:
            log.info("backlog quota", topic=topic.name, publishes=decision.publishes and decision.publishes.value)
        topic.writing.quota_exceeded = decision.publishes

    async def _backlog(self, topic: Topic, subscription: Subscription, *, sized: bool) -> Backlog:
        return await self._backlog_after(topic, subscription.name, subscription.cursor.needed_after(), sized=sized)

    async def _backlog_after(self, topic: Topic, name: str, needed_after: Position, *, sized: bool) -> Backlog:
        oldest = self._store.block_spans(topic.topic_id, needed_after, blocks_max=1)
        size_bytes = 0
        if sized:
            sizes = await self._sizes_of(topic)
            size_bytes = sizes.size_bytes - self._bytes_through(topic, sizes, needed_after)
        return Backlog(name, size_bytes, oldest[0].publish_time_ms if oldest else None)

    async def _evict(self, topic: Topic, eviction: EvictBytes | EvictOlder) -> None:
        if eviction.subscription == HOLDER:
            await self._evict_held(topic, eviction)
            return
        subscription = topic.subscriptions.get(eviction.subscription)
        if subscription is None:
            return
        before = subscription.cursor.mark_delete
        if isinstance(eviction, EvictOlder):
            await self._expire_older(topic, subscription, eviction.published_before_ms)
        else:
            reached = await self._past(topic, subscription.cursor.needed_after(), eviction.size_bytes)
            await subscription.moves.consume_through(reached)
        log.warning(
            "backlog quota: messages were evicted",
            topic=topic.name,
            subscription=subscription.name,
            before=str(before),
            after=str(subscription.cursor.mark_delete),
        )

    async def _evict_held(self, topic: Topic, eviction: EvictBytes | EvictOlder) -> None:
        """Move the position that is kept for subscriptions whose states were not told, and so keep less."""
        before = topic.holds.positions[HOLDER]
        if isinstance(eviction, EvictOlder):
            reached = await topic.reading.position_at_time(eviction.published_before_ms, after=before)
        else:
            reached = await self._past(topic, before, eviction.size_bytes)
        if HOLDER in topic.holds.positions:
            topic.holds.positions[HOLDER] = max(before, reached)
        log.warning(
            "backlog quota: messages were evicted that were kept for states of other clusters",
            topic=topic.name,
            before=str(before),
            after=str(reached),
        )

    async def _past(self, topic: Topic, after: Position, size_bytes: int) -> Position:
        """Return the end of the blocks above ``after`` that have at least ``size_bytes`` together."""
        async for block in self._blocks(topic, after):
            if size_bytes <= 0:
                break
            size_bytes -= block.size_bytes
            after = block.last
        return after

    async def _retain(self, topic: Topic) -> None:
        self._came_bytes.pop(topic.topic_id, None)
        policy = topic.policies.effective.retention
        if (policy.age_seconds_max is None and policy.bytes_max is None) or self.holds_back(topic):
            return
        done = retention.done_through(
            topic.log.last, (each.cursor.needed_after() for each in _durable(topic)), topic.holds.holding()
        )
        if done <= topic.log.trimmed:
            return
        sizes = await self._sizes_of(topic)
        done_bytes = self._bytes_through(topic, sizes, done)
        going = retention.RetentionPass(policy, done, done_bytes, topic.log.last, self._wall_clock_ms())
        async for block in self._blocks(topic, topic.log.trimmed):
            if not going.drop(block):
                break
        if self.holds_back(topic):  # retention was held back after the pass began
            return
        trimming = going.trimming
        await topic.trimming.trim(
            topic.log.trimmed if trimming is None else trimming.upto
        )  # also what an earlier pass left
        # If the log was trimmed elsewhere meanwhile, the sums are made again.
        if trimming is not None and topic.log.trimmed == trimming.upto:
            sizes.trim(trimming.upto, trimming.size_bytes)

    # Reading headers.

    async def _blocks(self, topic: Topic, after: Position) -> AsyncIterator[BlockSpan]:
        while page := self._store.block_spans(topic.topic_id, after, blocks_max=PAGE_BLOCKS):
            for block in page:
                if block.last > topic.log.last:
                    return
                yield block
            after = page[-1].last
            await asyncio.sleep(0)

    async def _sizes_of(self, topic: Topic) -> LogSizes:
        sizes = self._sizes.get(topic.topic_id)
        if sizes is None or sizes.start != topic.log.trimmed:
            sizes = self._sizes[topic.topic_id] = LogSizes(topic.log.trimmed)
        async for block in self._blocks(topic, sizes.reached):
            sizes.add(block)
        return sizes

    def _bytes_through(self, topic: Topic, sizes: LogSizes, position: Position) -> int:
        """Return the bytes of the blocks that lie wholly at or below ``position``."""
        reached, size_bytes = sizes.sample(position)
        while page := self._store.block_spans(topic.topic_id, reached, blocks_max=SAMPLE_BLOCKS):
            for block in page:
                if block.last > position:
                    return size_bytes
                size_bytes += block.size_bytes
            reached = page[-1].last
        return size_bytes


def _durable(topic: Topic) -> list[Subscription]:
    return [each for each in topic.subscriptions.values() if each.durable]
