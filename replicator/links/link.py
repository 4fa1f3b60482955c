"""A link: copies one cluster's blocks to another cluster, for as long as the worker runs.

The shell around :class:`replicator.links.copier.Copier`. It belongs to the source's worker, reads its engine, and
pushes. A destination that is away delays only this link (invariant 8); when it is back the link resumes by itself.
Until the destination has confirmed what it was sent, the link holds the source's log back from retention.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_never

from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt, EngineError
from replicator.engine.log.arrow import Outgoing, encode_append
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.partitions import base_name
from replicator.links.copier import Read
from replicator.links.errors import LinkError, LinkPaused, NotResolved, PeerRefused, PeerUnavailable
from replicator.links.figures import LinkFigures, link_status
from replicator.links.gaps import Gap
from replicator.links.link_topics import LinkIndex, LinkTopics
from replicator.links.partition_teller import PartitionTeller
from replicator.links.route import Route
from replicator.links.token_bucket import TokenBucket
from replicator.links.transport import SILENCE_SECONDS_MAX, HttpTransport, Reply
from replicator.topology import Link as LinkSpec
from snapshots.position import BEFORE_ALL

RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
SIGN_OF_LIFE_SECONDS: Final = SILENCE_SECONDS_MAX / 3
CANCEL_AGAIN_SECONDS: Final = 0.1

SETTLE_SECONDS: Final = 5.0
"""How long a topic stays halted after what halted it is over, such as an old copy that was deleted."""
SETTLED_AT_ONCE: Final = 50
"""Topics asked for in one request; their names go into its address."""
SAVE_SECONDS: Final = 2.0
"""How often it is noted how far the topics are."""

_RETRY_WHOLE: Final = frozenset({"StoreFull", "StoreFailed", "TooBusy"})
"""Refusals that are of the destination, not of a topic: nothing would be taken now. Others halt their topic."""
_FOR_GOOD: Final = frozenset({BlockCorrupt.code})
"""Refusals of a topic that do not heal. Others may, as when it is being deleted there, or when the destination has not
read its new topology yet: it starts again once the destination was asked what it has."""

log = structlog.get_logger(__name__)


class Link:
    """Copies from ``engine`` to the worker of cluster ``to`` at ``address``, as ``route`` says; without one, the own
    messages of all topics.

    ``index`` is told how far the topics are; ``on_lost_copy`` of a topic of which the destination has less than it had,
    whenever that is found out; ``on_state`` of the link's state when it changes: ``connecting``,
    ``copying``, ``idle``, ``paused`` or ``failed``.
    """

    def __init__(
        self,
        engine: Engine,
        to: str,
        address: str,
        *,
        route: Route | None = None,
        index: LinkIndex | None = None,
        on_lost_copy: Callable[[str], None] | None = None,
        on_state: Callable[[Link], None] | None = None,
    ) -> None:
        self.engine = engine
        self.to = to
        self.address = address
        self.route = route or Route.single(LinkSpec(engine.cluster, to))
        self.state = "connecting"
        self.detail = ""
        self.figures = LinkFigures()
        self._on_state = on_state
        self._topics = LinkTopics(engine, self.route, index, on_lost_copy)
        self._copier = self._topics.copier
        self._work = asyncio.Event()
        self._sent = asyncio.Event()
        self._nudged = asyncio.Event()
        self._pause_changed = asyncio.Event()
        self._failures = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._transport: HttpTransport | None = None
        self._settling = asyncio.Lock()
        self._partitions = PartitionTeller(engine, to, self._topics.carries_name)
        rate = self.route.link.rate_bytes
        self._bucket = None if rate is None else TokenBucket(rate, time.monotonic())
        engine.add_listener(self)

    @property
    def spec(self) -> LinkSpec:
        """The link as it stands in the topology."""
        return self.route.link

    @property
    def key(self) -> str:
        return self.spec.key

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._run(), name=f"link {self.key}"),
            loop.create_task(self._save_often(), name=f"link {self.key} marks"),
        ]

    async def stop(self) -> None:
        """Stop copying; returns when the link's tasks have ended.

        A task group in which a child has just failed drops a cancellation of its own task (Python before 3.13), and the
        link would reconnect: so it is cancelled until it ends.
        """
        while running := [task for task in self._tasks if not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=CANCEL_AGAIN_SECONDS)
        with contextlib.suppress(EngineError):
            await self._topics.save()

    def let_go(self) -> None:
        """The link is stopped for good: nothing is held back for it, and the engine tells it nothing more."""
        self.engine.remove_listener(self)
        self._topics.let_go()

    def nudge(self) -> None:
        """The destination was heard of, by its own link to us: if we are waiting to try again, try now."""
        self._nudged.set()

    def tell_index(self) -> None:
        """The index lost something: tell it again how far all topics are."""
        self._topics.tell_index(self._copier.topics)

    # What an operator asks.

    @property
    def paused(self) -> bool:
        return self._topics.memory.paused

    async def pause(self) -> None:
        """Copy nothing, and hold back what is not copied, until :meth:`resume`; also over a restart."""
        self._topics.audit("pause")
        await self._topics.memory.set_paused(True)
        self._pause_changed.set()

    async def resume(self) -> None:
        self._topics.audit("resume")
        await self._topics.memory.set_paused(False)
        self._pause_changed.set()
        self._nudged.set()

    async def resolve(self, topic_name: str, policy: str) -> None:
        """Go on with a topic that has a gap, by ``skip-and-record`` or ``copy-anew``.

        Raises :class:`NotResolved`.
        """
        gap = self._topics.gap_of(topic_name)
        if gap is None:
            raise NotResolved(
                f"link {self.key} has no gap in {topic_name!r}; `replicator links list` shows those it has"
            )
        if not gap.allows(policy):
            raise NotResolved(f"{policy} cannot end the gap in {topic_name!r}, which is {gap.kind}: {gap.detail}")
        if self._transport is None or not self._copier.connected:
            raise NotResolved(f"link {self.key} is not connected ({self.state} {self.detail}): try again when it is")
        self._topics.audit("resolve", topic=topic_name, policy=policy, kind=gap.kind)
        try:
            await self._settle_topics(self._transport, [topic_name], policy)
        except LinkError as error:
            raise NotResolved(f"link {self.key}: {error}; try again") from None
        gap = self._topics.gap_of(topic_name)
        if gap is not None:
            reason = self._copier.topics[topic_name].halted
            raise NotResolved(f"the gap in {topic_name!r} is still there: {reason}")

    # What the engine tells.

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        if self._topics.moved(topic):
            self._work.set()

    def on_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Links carry blocks; what happens to subscriptions travels in markers."""

    def on_subscription_deleted(self, topic: Topic, name: str, generation: int | None) -> None:
        """See :meth:`on_subscription`."""

    def on_acknowledged(self, topic: Topic, subscription: Subscription) -> None:
        """See :meth:`on_subscription`."""

    def on_mark_delete(self, topic: Topic, subscription: Subscription, *, local: bool) -> None:
        """See :meth:`on_subscription`."""

    def on_log_deleted(self, topic: Topic) -> None:
        self._topics.deleted(topic)

    def on_partitions(self, topic_name: str, partitions: int) -> None:
        self._partitions.changed(topic_name)
        self._work.set()

    def on_namespace_policies(self, namespace: str) -> None:
        """They say which clusters the namespace is copied to."""
        self._topics.look_again(namespace)
        for name in self.engine.catalog.partitioned_topics(namespace):
            self._partitions.changed(name)
        self._work.set()

    def on_topic_created(self, topic_name: str) -> None:
        """A topic is copied from its first entry on."""

    def on_topic_deleted(self, topic_name: str) -> None:
        self._partitions.forget(topic_name)

    # The connection.

    async def _run(self) -> None:
        """Connect, copy until the connection breaks, and again, for ever, with growing pauses between failures."""
        while True:
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(Exception),
                wait=self._pause_seconds,
                stop=stop_never,
                before_sleep=self._note_failure,
                sleep=self._sleep_unless_nudged,
            )
            async for attempt in retrying:
                with attempt:
                    await self._while_paused()
                    async with HttpTransport(
                        self.engine.cluster,
                        self.to,
                        self.address,
                        name=self.spec.name,
                        compression=self.spec.compression,
                    ) as transport:
                        try:
                            await self._connect(transport)
                            await self._copy(transport)
                        finally:
                            self._transport = None

    async def _while_paused(self) -> None:
        while self.paused:
            self._set_state("paused", "")
            self._pause_changed.clear()
            await self._pause_changed.wait()

    def _pause_seconds(self, _: RetryCallState) -> float:
        """Grows with the failures since the link last made progress, so that no failure is retried in a tight loop."""
        self._failures += 1
        pause = min(RETRY_SECONDS_MAX, RETRY_SECONDS_MIN * 2.0 ** min(self._failures, 16))
        return pause * random.uniform(0.5, 1.0)

    async def _sleep_unless_nudged(self, seconds: float) -> None:
        self._nudged.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()

    def _note_failure(self, retry_state: RetryCallState) -> None:
        self._copier.on_disconnected()
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        if isinstance(error, LinkPaused):
            self._set_state("paused", "")
            return
        self.figures.reconnects += 1
        if not isinstance(error, LinkError):
            log.error("link failed", cluster=self.engine.cluster, to=self.to, exc_info=error)
        elif str(error) != self.detail:
            log.warning("link lost", cluster=self.engine.cluster, to=self.to, reason=str(error))
        self._set_state("connecting" if isinstance(error, PeerUnavailable) else "failed", str(error))

    async def _connect(self, transport: HttpTransport) -> None:
        there = await transport.high_water(self.route.origins)
        await transport.open(encode_append(()))
        await transport.receive()
        self._topics.on_connected(there)
        self._transport = transport
        self._partitions.on_connected()
        log.info("link connected", cluster=self.engine.cluster, to=self.to)
        self._set_state("idle", "")

    async def _copy(self, transport: HttpTransport) -> None:
        """Send and receive until one of them fails."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(transport))
                group.create_task(self._receive(transport))
                group.create_task(self._notice_end(transport))
                group.create_task(self._settle_often(transport))
                group.create_task(self._notice_pause())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _notice_pause(self) -> None:
        while not self.paused:
            self._pause_changed.clear()
            await self._pause_changed.wait()
        raise LinkPaused(f"link {self.key} is paused")

    async def _settle_often(self, transport: HttpTransport) -> None:
        """Now and then ask the destination about topics that wait for it, such as one that is to be deleted there."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._topics.ask_again.wait()
            self._topics.ask_again.clear()
            names = self._topics.to_settle()
            for first in range(0, len(names), SETTLED_AT_ONCE):
                await self._settle_topics(transport, names[first : first + SETTLED_AT_ONCE], self.spec.on_gap)

    async def _settle_topics(self, transport: HttpTransport, names: Sequence[str], policy: str) -> None:
        """Look again at topics that wait, and end their gaps where ``policy`` does."""
        async with self._settling:
            there = await transport.high_water(self.route.origins, names)
            for name in names:
                await self._topics.settle(name, there.get(name, {}), policy, transport)
            self._work.set()

    async def _send(self, transport: HttpTransport) -> None:
        while True:
            self._work.clear()
            await self._partitions.tell(transport)  # before there are blocks of them in a frame
            await self._wait_for_rate()
            frame, size_bytes, searching = self._next_frame()
            if searching and not frame:
                await asyncio.sleep(0)
                continue
            if frame:
                self._set_state("copying", "")
                await self._tell_of_first_blocks(frame, transport)
                self._note_sent(size_bytes)
                packed = await transport.pack(encode_append(frame))
                wire_bytes = len(packed[0]) + packed[1].size
                self.figures.wire_bytes += wire_bytes
                if self._bucket is not None:
                    self._bucket.take(wire_bytes, time.monotonic())
                await transport.send(packed)
                continue
            if not self._copier.in_flight:
                self._topics.reached(self._copier.on_idle())
                self._set_state("idle", "")
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_SECONDS):
                    await self._work.wait()
            except TimeoutError:
                await self._send_sign_of_life(transport)

    async def _send_sign_of_life(self, transport: HttpTransport) -> None:
        self._note_sent(0)
        await transport.send(await transport.pack(encode_append(())))

    async def _wait_for_rate(self) -> None:
        """A frame may overdraw the rate; the next one waits."""
        while self._bucket is not None and (seconds := self._bucket.wait_seconds(time.monotonic())) > 0:
            await asyncio.sleep(min(seconds, SIGN_OF_LIFE_SECONDS))
            if seconds > SIGN_OF_LIFE_SECONDS and self._transport is not None:
                await self._send_sign_of_life(self._transport)

    async def _tell_of_first_blocks(self, frame: Sequence[Outgoing], transport: HttpTransport) -> None:
        """A topic that begins anew at the destination may have been deleted there with the number of partitions."""
        for each in frame:
            if each.previous == BEFORE_ALL and parse_topic(each.topic).partition >= 0:
                self._partitions.changed(base_name(each.topic))
        await self._partitions.tell(transport)

    def _note_sent(self, size_bytes: int) -> None:
        self._copier.on_sent(size_bytes)
        self._sent.set()

    async def _receive(self, transport: HttpTransport) -> None:
        while True:
            while not self._copier.in_flight and not transport.at_end:
                self._sent.clear()
                await self._sent.wait()
            self._note_reply(await transport.receive())

    async def _notice_end(self, transport: HttpTransport) -> None:
        """Wake the receiver when the destination ends the connection, so that an idle link learns of it at once."""
        await transport.ended()
        self._sent.set()

    def _note_reply(self, reply: Reply) -> None:
        self._failures = self._failures if reply.refused else 0
        for topic, (code, message) in reply.refused.items():
            if code in _RETRY_WHOLE:
                raise PeerRefused(code, message)
            if not self._copier.outdated(topic):
                again = code not in _FOR_GOOD
                self._topics.refused(topic, f"{code}: {message}", ask_again=again, seconds_max=SETTLE_SECONDS)
        self._topics.reached(self._copier.on_acknowledged())
        self._work.set()

    def _next_frame(self) -> tuple[list[Outgoing], int, bool]:
        """Blocks of as many topics as are behind, up to about one frame's size; their bytes; whether to ask again.

        Stops after a read that found nothing to copy, so that the event loop gets its turn.
        """
        frame: list[Outgoing] = []
        size_bytes = 0
        searching = False
        while (read := self._copier.next_read(size_bytes)) is not None:
            found = self._read(read, frame)
            size_bytes += found
            if not found:
                searching = True
                break
        self.figures.bytes += size_bytes
        return frame, size_bytes, searching

    def _read(self, read: Read, frame: list[Outgoing]) -> int:
        """Read a piece of a topic, and put into the frame what is to be sent of it; returns its bytes."""
        topic = self.engine.find(read.topic)
        if topic is None:  # it is being deleted
            return 0
        try:
            blocks, reached = topic.read_blocks(read.after, bytes_max=read.bytes_max, origins=read.origins)
        except EngineError as error:
            self._topics.halt(read.topic, str(error))
            return 0
        missing = self._topics.starts.missing(topic)
        size_bytes = 0
        for stored in blocks:
            header = stored.header
            before = missing.before(header.origin, header.origin_first)
            send = self._copier.on_block(read.topic, header.origin, header.origin_last, before)
            if isinstance(send, Gap):
                self._topics.found_gap(read.topic, send)
                return size_bytes
            if send is None:
                continue
            frame.append(Outgoing(read.topic, send.previous, stored.block, send.left_out))
            size_bytes += len(stored.block)
            self.figures.blocks += 1
            self.figures.entries += header.entries
            self.figures.messages += header.messages
        self._copier.on_read(read.topic, reached)
        return size_bytes

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            try:
                await self._topics.save()
            except EngineError as error:
                log.warning("link: marks not saved", cluster=self.engine.cluster, to=self.to, reason=str(error))

    def _set_state(self, state: str, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            self.state, self.detail = state, detail
            if self._on_state is not None:
                self._on_state(self)

    # Figures.

    def backlog_entries(self) -> int:
        """Entries that the destination has not confirmed, of any origin: an upper bound of what is to be copied."""
        return self._topics.backlog_entries()

    def backlog_by_topic(self) -> dict[str, int]:
        """The same by topic, of those that have one."""
        return {name: backlog for name in self._copier.topics if (backlog := self._topics.backlog_of(name))}

    def status(self) -> dict[str, Any]:
        """The figures of this link, as the status page shows them."""
        return link_status(self, self._topics, self._partitions.refused)
