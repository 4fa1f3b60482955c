"""A link: copies one cluster's own blocks to another cluster, for as long as the worker runs.

The shell around :class:`replicator.links.copier.Copier`. It belongs to the source's worker, reads its engine, and
pushes. A destination that is away delays only this link (invariant 8); when it is back the link resumes by itself.
Until the destination has confirmed what it was sent, the link holds the source's log back from retention.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_never

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, IncarnationMismatch
from replicator.engine.log.arrow import Outgoing, encode_append
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.partitions import base_name
from replicator.links.copier import Copier
from replicator.links.errors import LinkError, PeerRefused, PeerUnavailable
from replicator.links.partition_teller import PartitionTeller
from replicator.links.transport import SILENCE_SECONDS_MAX, HttpTransport, RemoteHighWater, Reply
from snapshots.position import BEFORE_ALL, Position

RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0
SIGN_OF_LIFE_SECONDS: Final = SILENCE_SECONDS_MAX / 3
CANCEL_AGAIN_SECONDS: Final = 0.1

SETTLE_SECONDS: Final = 5.0
"""How long a topic stays halted after what halted it is over, such as an old copy that was deleted."""
SETTLED_AT_ONCE: Final = 50
"""Topics asked for in one request; their names go into its address."""
DELETED_SHOWN_MAX: Final = 1_000

_RETRY_WHOLE: Final = frozenset(
    {"CopyGap", "StoreFull", "StoreFailed", "TooBusy", "TopicNotFound", "NamespaceNotFound"}
)
"""Refusals that a new connection may heal: it asks again for the high-water mark. Others halt their topic."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class LinkFigures:
    """Counted since the worker started."""

    blocks: int = 0
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    reconnects: int = 0


class Link:
    """Copies from ``engine`` to the worker of cluster ``to`` at ``address``.

    ``on_state`` is told the link's state when it changes: ``connecting``, ``copying``, ``idle`` or ``failed``.
    """

    def __init__(
        self, engine: Engine, to: str, address: str, *, on_state: Callable[[Link], None] | None = None
    ) -> None:
        self.engine = engine
        self.to = to
        self.address = address
        self.state = "connecting"
        self.detail = ""
        self.figures = LinkFigures()
        self._on_state = on_state
        self._copier = Copier()
        self._work = asyncio.Event()
        self._sent = asyncio.Event()
        self._nudged = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._holder = f"link to {to}"
        self._partitions = PartitionTeller(engine, to, self._carries_name)
        self._unsettled: dict[str, None] = {}
        """Topics that wait until the destination's copy is a beginning of what is here, or is deleted."""
        self._ask_again = asyncio.Event()
        self._deleted: dict[str, None] = {}
        """Topics that were deleted here and of which the destination has a copy, the newest last."""
        self._reads: dict[str, Position] = {}
        """How far topics were read since the last frame was sent."""
        self._reads_in_flight: deque[dict[str, Position]] = deque()
        """The same for each frame that is sent and not acknowledged."""
        for topic in engine.topics():
            if self._carries(topic):
                topic.held_back[self._holder] = BEFORE_ALL
                self._copier.topic_moved(topic.name, topic.last_add_confirmed)
        engine.add_listener(self)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"link to {self.to}")

    async def stop(self) -> None:
        """Stop copying; returns when the link's task has ended.

        A task group in which a child has just failed drops a cancellation of its own task (Python before 3.13), and the
        link would reconnect: so it is cancelled until it ends.
        """
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CANCEL_AGAIN_SECONDS)

    def let_go(self) -> None:
        """The link is stopped for good: nothing is held back for it, and the engine tells it nothing more."""
        self.engine.remove_listener(self)
        for topic in self.engine.topics():
            topic.held_back.pop(self._holder, None)

    def nudge(self) -> None:
        """The destination was heard of, by its own link to us: if we are waiting to try again, try now."""
        self._nudged.set()

    # What the engine tells.

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        if self._carries(topic):
            topic.held_back.setdefault(self._holder, BEFORE_ALL)
            self._copier.topic_moved(topic.name, topic.last_add_confirmed)
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
        copy = self._copier.topic_gone(topic.name)
        self._unsettled.pop(topic.name, None)
        if copy is not None and copy.sent != BEFORE_ALL:
            self._note_deleted(topic.name)

    def on_partitions(self, topic_name: str, partitions: int) -> None:
        self._partitions.changed(topic_name)
        self._work.set()

    def on_namespace_policies(self, namespace: str) -> None:
        """They say which clusters the namespace is copied to: what is copied from now on waits until the destination
        has said how much of it is there."""
        for name in self.engine.catalog.topics(namespace):
            topic = self.engine.find(name)
            if topic is None or self._carries(topic) is (name in self._copier.topics):
                continue
            if self._carries(topic):
                topic.held_back[self._holder] = BEFORE_ALL
                self._copier.on_halted(name, "the destination is being asked what it has of the topic")
                self._copier.topic_moved(name, topic.last_add_confirmed)
                self._unsettled[name] = None
                self._ask_again.set()
            else:
                topic.held_back.pop(self._holder, None)
                self._copier.topic_gone(name)
                self._unsettled.pop(name, None)
        for name in self.engine.catalog.partitioned_topics(namespace):
            self._partitions.changed(name)
        self._work.set()

    def on_topic_created(self, topic_name: str) -> None:
        """A topic is copied from its first entry on."""

    def on_topic_deleted(self, topic_name: str) -> None:
        self._partitions.forget(topic_name)

    def _carries(self, topic: Topic) -> bool:
        clusters = topic.namespace.policies.replication_clusters
        return clusters is None or self.to in clusters

    def _carries_name(self, name: str) -> bool:
        clusters = self.engine.catalog.policies_of(parse_topic(name).full_namespace).replication_clusters
        return clusters is None or self.to in clusters

    def _note_deleted(self, name: str) -> None:
        self._deleted.pop(name, None)
        self._deleted[name] = None
        if len(self._deleted) > DELETED_SHOWN_MAX:
            del self._deleted[next(iter(self._deleted))]

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
                    async with HttpTransport(self.engine.cluster, self.to, self.address) as transport:
                        await self._connect(transport)
                        await self._copy(transport)

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
        self.figures.reconnects += 1
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        if not isinstance(error, LinkError):
            log.error("link failed", cluster=self.engine.cluster, to=self.to, exc_info=error)
        elif str(error) != self.detail:
            log.warning("link lost", cluster=self.engine.cluster, to=self.to, reason=str(error))
        self._set_state("connecting" if isinstance(error, PeerUnavailable) else "failed", str(error))

    async def _connect(self, transport: HttpTransport) -> None:
        high_water = await transport.high_water()
        await transport.open(encode_append(()))
        await transport.receive()
        self._copier.on_connected({topic: row.position for topic, row in high_water.items()})
        self._reads = {}
        self._reads_in_flight.clear()
        self._unsettled.clear()
        self._partitions.on_connected()
        for each in self.engine.topics():
            if self._carries(each):
                each.held_back[self._holder] = BEFORE_ALL  # the destination may have lost what it had
        for topic, row in high_water.items():
            self._settle_lineage(topic, row)
        self._release({topic: row.position for topic, row in high_water.items()})
        log.info("link connected", cluster=self.engine.cluster, to=self.to)
        self._set_state("idle", "")

    def _settle_lineage(self, name: str, row: RemoteHighWater) -> None:
        """Halt a topic whose copy at the destination is not a beginning of what is here, until it is.

        Going on would splice two histories, and let a subscription that consumed all of this one pass for one that
        consumed what only the destination has (invariant 5). What was trimmed here was once in the log.
        """
        topic = self.engine.find(name)
        if topic is None:
            self._note_deleted(name)
        elif not self._carries(topic):
            return
        elif (reason := self._other_lineage(topic, row)) is not None:
            self._unsettled[name] = None
            self._halt(name, reason)

    def _other_lineage(self, topic: Topic, row: RemoteHighWater) -> str | None:
        """Why the destination's copy is not a beginning of what is here; None if it is."""
        if topic.incarnation != row.incarnation:
            return (
                f"the destination has incarnation {row.incarnation}, here is {topic.incarnation}: the topic was "
                f"deleted and made anew here; to copy the new one, delete the old one at {self.to}"
            )
        if row.position not in topic.log and row.position > topic.log.trimmed:
            return (
                f"the destination has messages of {self.engine.cluster} up to {row.position}, which is not in the log "
                f"here (it ends at {topic.last_add_confirmed}): this cluster lost data, as after a restore from an old "
                "copy; consume what is missing at the destination, or bring the newer data back"
            )
        return None

    async def _settle_again(self, transport: HttpTransport) -> None:
        """Now and then ask the destination about topics that wait for it, such as one that is to be deleted there."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._ask_again.wait()
            self._ask_again.clear()
            names = list(self._unsettled)
            for first in range(0, len(names), SETTLED_AT_ONCE):
                asked = names[first : first + SETTLED_AT_ONCE]
                self._settled(asked, await transport.high_water(asked))

    def _settled(self, asked: Sequence[str], high_water: Mapping[str, RemoteHighWater]) -> None:
        for name in asked:
            topic, row = self.engine.find(name), high_water.get(name)
            if topic is None or name not in self._unsettled:
                continue
            if row is not None and (reason := self._other_lineage(topic, row)) is not None:
                self._copier.on_halted(name, reason)
                continue
            del self._unsettled[name]
            self._copier.on_resumed(name, BEFORE_ALL if row is None else row.position)
            log.info("link copies a topic again", cluster=self.engine.cluster, to=self.to, topic=name)
            self._work.set()

    async def _copy(self, transport: HttpTransport) -> None:
        """Send and receive until one of them fails."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(transport))
                group.create_task(self._receive(transport))
                group.create_task(self._notice_end(transport))
                group.create_task(self._settle_again(transport))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _send(self, transport: HttpTransport) -> None:
        while True:
            self._work.clear()
            await self._partitions.tell(transport)  # before there are blocks of them in a frame
            frame, size_bytes, searching = self._next_frame()
            if searching and not frame:
                await asyncio.sleep(0)
                continue
            if frame:
                self._set_state("copying", "")
                await self._tell_of_first_blocks(frame, transport)
                self._note_sent(size_bytes)
                await transport.send(encode_append(frame))
                continue
            if not self._copier.in_flight:
                self._release(self._reads)
                self._reads = {}
                self._set_state("idle", "")
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_SECONDS):
                    await self._work.wait()
            except TimeoutError:
                self._note_sent(0)
                await transport.send(encode_append(()))

    async def _tell_of_first_blocks(self, frame: Sequence[Outgoing], transport: HttpTransport) -> None:
        """A topic that begins anew at the destination may have been deleted there with the number of partitions."""
        for each in frame:
            if each.previous == BEFORE_ALL and parse_topic(each.topic).partition >= 0:
                self._partitions.changed(base_name(each.topic))
        await self._partitions.tell(transport)

    def _note_sent(self, size_bytes: int) -> None:
        self._copier.on_sent(size_bytes)
        self._reads_in_flight.append(self._reads)
        self._reads = {}
        self._sent.set()

    async def _receive(self, transport: HttpTransport) -> None:
        while True:
            while not self._copier.in_flight and not transport.at_end:
                self._sent.clear()
                await self._sent.wait()
            self._settle(await transport.receive())

    async def _notice_end(self, transport: HttpTransport) -> None:
        """Wake the receiver when the destination ends the connection, so that an idle link learns of it at once."""
        await transport.ended()
        self._sent.set()

    def _settle(self, reply: Reply) -> None:
        self._copier.on_acknowledged()
        self._failures = self._failures if reply.refused else 0
        for topic, (code, message) in reply.refused.items():
            if code in _RETRY_WHOLE:
                raise PeerRefused(code, message)
            if topic not in self._copier.topics:  # it was deleted meanwhile
                continue
            if code == IncarnationMismatch.code:
                self._unsettled[topic] = None
                self._ask_again.set()
            self._halt(topic, f"{code}: {message}")
        self._release(self._reads_in_flight.popleft())
        self._work.set()

    def _release(self, reached: Mapping[str, Position]) -> None:
        """The destination has what it is to have of these topics, up to there; what is halted may be sent again."""
        for name, position in reached.items():
            topic, copy = self.engine.find(name), self._copier.topics.get(name)
            if topic is not None and copy is not None and copy.halted is None:
                topic.held_back[self._holder] = position

    def _next_frame(self) -> tuple[list[Outgoing], int, bool]:
        """Blocks of as many topics as are behind, up to about one frame's size; their bytes; whether to ask again.

        Stops after a read that found nothing to copy, so that the event loop gets its turn.
        """
        frame: list[Outgoing] = []
        size_bytes = 0
        searching = False
        while (read := self._copier.next_read(size_bytes)) is not None:
            topic = self.engine.find(read.topic)
            if topic is None:  # it is being deleted
                continue
            try:
                blocks, reached = topic.read_blocks(read.after, bytes_max=read.bytes_max, origin=self.engine.cluster)
            except EngineError as error:
                self._halt(read.topic, str(error))
                continue
            for stored in blocks:
                previous = self._copier.on_block(read.topic, stored.header.origin_last)
                frame.append(Outgoing(read.topic, previous, stored.block))
                size_bytes += len(stored.block)
                self.figures.blocks += 1
                self.figures.entries += stored.header.entries
                self.figures.messages += stored.header.messages
            self._copier.on_read(read.topic, reached)
            self._reads[read.topic] = reached
            if not blocks:
                searching = True
                break
        self.figures.bytes += size_bytes
        return frame, size_bytes, searching

    def _halt(self, topic: str, reason: str) -> None:
        log.error("link halted a topic", cluster=self.engine.cluster, to=self.to, topic=topic, reason=reason)
        self._copier.on_halted(topic, reason)

    def _set_state(self, state: str, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            self.state, self.detail = state, detail
            if self._on_state is not None:
                self._on_state(self)

    # Figures.

    def backlog_entries(self) -> int:
        """Entries not yet read for this link, of any origin: an upper bound of what is to be copied."""
        total = 0
        for name, copy in self._copier.topics.items():
            topic = self.engine.find(name)
            if topic is not None and self._copier.connected:
                total += topic.log.entries_between(copy.read, copy.last)
        return total

    def sent(self) -> dict[str, Position]:
        """By topic, the origin position up to which was sent on this connection."""
        return {name: copy.sent for name, copy in self._copier.topics.items() if copy.sent != BEFORE_ALL}

    def status(self) -> dict[str, Any]:
        """The figures of this link, as the status page shows them."""
        figures = self.figures
        return {
            "to": self.to,
            "address": self.address,
            "state": self.state,
            "detail": self.detail,
            "topics": len(self._copier.topics),
            "halted": {
                **self._partitions.refused,
                **{name: copy.halted for name, copy in self._copier.topics.items() if copy.halted is not None},
            },
            "deleted_here": list(self._deleted),
            "backlog_entries": self.backlog_entries(),
            "in_flight_frames": self._copier.in_flight,
            "blocks": figures.blocks,
            "entries": figures.entries,
            "messages": figures.messages,
            "bytes": figures.bytes,
            "reconnects": figures.reconnects,
        }
