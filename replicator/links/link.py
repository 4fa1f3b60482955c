"""A link: copies one cluster's blocks to another cluster, for as long as the worker runs.

The shell around :class:`replicator.links.copier.Copier`. It belongs to the source's worker, reads its engine, and
decides what is copied; the transfer is done by that worker (:mod:`replicator.links.frame_sender`) or by Spark
(:mod:`replicator.links.planner`). A destination that is away delays only this link (invariant 8); when it is back the
link resumes by itself. It holds the source's log back from retention until the destination has confirmed it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_never

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.links.errors import (
    CarrierChanged,
    LinkError,
    LinkPaused,
    NotResolved,
    PeerUnavailable,
    RunAwaited,
    RunRefused,
)
from replicator.links.figures import LinkFigures
from replicator.links.frame_sender import FrameSender
from replicator.links.gap_ending import LinkIndex
from replicator.links.gaps import Mark
from replicator.links.json_types import LinkStatus
from replicator.links.lineage_teller import LineageReporter
from replicator.links.link_topics import LinkTopics
from replicator.links.partition_announcer import PartitionAnnouncer
from replicator.links.planner import Planner
from replicator.links.route import Route
from replicator.links.schema_announcer import SchemaAnnouncer
from replicator.links.status import link_status, planned_link, topics_behind
from replicator.links.transfer import SETTLE_SECONDS, Transfer, TransferMethod
from replicator.links.transport import HttpTransport
from replicator.peering.runs import Run, RunAnswer, RunVerdict
from replicator.peering.topic_summary import LaggingTopic
from replicator.running.timeouts import timeout
from replicator.running.together import until_all_end
from replicator.topology import SPARK
from replicator.topology import Link as LinkSpec
from snapshots.position import Position

SETTLED_AT_ONCE: Final = 50
"""Topics per high-water request. Their names go into the URL, which must stay short."""
TWIN_LOOKED_AT_SECONDS: Final = 5.0
"""Time between two announcements of the run to a destination that reported a twin, which may have ended since."""
SAVE_SECONDS: Final = 2.0
"""Time between two saves of the topics' positions."""

log = structlog.get_logger(__name__)


class Link(TopicListener[Topic]):
    """Link of ``engine``'s cluster to the worker of cluster ``to`` at ``address``.

    It copies the topics and origins of ``route``; without it, the cluster's own messages of all topics.
    ``index`` is told how far the topics are copied. ``on_lost_copy`` is called with a topic whose copy at the
    destination shrank. ``on_state`` is called when the link's state changes: to ``connecting``, ``copying``, ``idle``,
    ``paused`` or ``failed``; with Spark also to ``waiting`` or ``backfilling``. ``run`` is the present start of this
    worker, which is announced to the destination. Without it, the destination cannot notice that two workers use copies
    of one store.
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
        run: Run | None = None,
    ) -> None:
        self.engine = engine
        self.to = to
        self.address = address
        self.route = route or Route.single(LinkSpec(engine.cluster, to))
        self.run = run
        self.run_answer: RunAnswer | None = None
        """Last answer of the destination to this worker's run; None before the first answer, and from an earlier
        version."""
        self.backfill_progress: tuple[int, int] | None = None
        """Bytes in all and bytes left, as the backfill that has the link last said; None without one."""
        self._topics = LinkTopics(engine, self.route, index, on_lost_copy)
        self._copier = self._topics.copier
        self._nudged = asyncio.Event()
        self._pause_changed = asyncio.Event()
        self._changed_hands = asyncio.Event()
        self._stopping = False
        self._copying = engine.supervisor.task("link", f"link {self.key}", self._run)
        self._saving = engine.supervisor.task("link marks", f"link {self.key} marks", self._save_often)
        self._transport: HttpTransport | None = None
        self._settling = asyncio.Lock()
        self._partitions = PartitionAnnouncer(engine, to, self._topics.carried.covers)
        self._schemas = SchemaAnnouncer(engine, to, self._topics.carried.covers)
        self._lineage = LineageReporter(engine, self._topics)
        self._transfer = Transfer(
            engine,
            self._topics,
            self._partitions,
            self._schemas,
            self.route.link.rate_bytes,
            lambda: None if on_state is None else on_state(self),
        )
        tracing = engine.tracing
        self._frames = FrameSender(self._transfer, None if tracing is None else tracing.link(self.key, to))
        self.planner = Planner(self.key, self._transfer, self._changed_hands.set)
        engine.add_listener(self)
        engine.schemas.listeners.append(self._schema_registered)
        engine.origin_stores.listeners.append(self._lineage.deleted)
        engine.origin_stores.copy_listeners.append(self._lineage.noted)

    def carries(self, topic: str) -> bool:
        """Return whether this link now carries topics of that full name."""
        return self._topics.carried.covers(topic)

    @property
    def spec(self) -> LinkSpec:
        """Return the link as it stands in the topology."""
        return self.route.link

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def state(self) -> str:
        return self._transfer.state

    @property
    def detail(self) -> str:
        return self._transfer.detail

    @property
    def figures(self) -> LinkFigures:
        return self._transfer.figures

    def start(self) -> None:
        self._stopping = False
        self._copying.start()
        self._saving.start()

    async def stop(self) -> None:
        """Stop copying; returns when the link's tasks have ended."""
        self._stopping = True
        self.planner.stop()
        await asyncio.gather(self._copying.stop(), self._saving.stop())
        with contextlib.suppress(EngineError):
            await self._topics.save(everything=True)

    def detach(self) -> None:
        """Detach the link, which has stopped for good. The engine holds nothing back for it and tells it nothing
        more."""
        self.engine.remove_listener(self)
        self.engine.schemas.listeners.remove(self._schema_registered)
        self.engine.origin_stores.listeners.remove(self._lineage.deleted)
        self.engine.origin_stores.copy_listeners.remove(self._lineage.noted)
        self._topics.detach()

    def nudge(self) -> None:
        """Try again at once if the link waits before its next try. Call this when the destination's own link was
        heard of."""
        self._nudged.set()

    def update_index(self) -> None:
        """Write the positions of all topics to the index again, after the index lost something."""
        self._topics.update_index(self._copier.topics)

    def carrier_heartbeat(self, carrier: str) -> bool:
        """Note that ``carrier`` is alive. Return whether it carries this link."""
        return self.planner.heard(carrier)

    def acknowledged(self) -> dict[str, Position]:
        """Return, by topic, the position up to which the destination has the log. Topics that stopped at a gap are left
        out."""
        copies = self._topics.copier.topics.items()
        return {name: copy.acknowledged for name, copy in copies if copy.gap is None}

    # For operators.

    @property
    def paused(self) -> bool:
        return self._topics.memory.paused

    async def pause(self) -> None:
        """Stop copying, and hold back what is not copied, until :meth:`resume`. The pause survives a restart."""
        self._topics.audit("pause")
        await self._topics.memory.set_paused(True)
        self._pause_changed.set()

    def pause_put_back(self) -> None:
        """Pause or resume as the store says, after settings of an earlier store were put back into it."""
        self._topics.memory.paused = self._topics.memory.stored_pause()
        self._pause_changed.set()

    async def resume(self) -> None:
        self._topics.audit("resume")
        await self._topics.memory.set_paused(False)
        self._pause_changed.set()
        self._nudged.set()

    async def resolve(self, topic_name: str, policy: str) -> None:
        """End the gap of a topic by ``keep-both``, ``skip-and-record`` or ``copy-anew``, and go on copying the topic.

        Raises :class:`NotResolved` if the topic has no gap, if the policy cannot end it, or if the link is not
        connected.
        """
        gap = self._topics.gap_of(topic_name)
        if gap is None:
            raise NotResolved(
                f"link {self.key} has no gap in {topic_name!r}; `replicator links list` shows those it has"
            )
        if not gap.allows(policy, asked=True):
            raise NotResolved(
                f"{policy} cannot end the gap in {topic_name!r}, which is {gap.kind}. Its cause, and what ends it: "
                f"{gap.detail}"
            )
        if self._transport is None or not self._copier.connected:
            raise NotResolved(f"link {self.key} is not connected ({self.state} {self.detail}): try again when it is")
        self._topics.audit("resolve", topic=topic_name, policy=policy, kind=gap.kind)
        try:
            await self._settle_topics(self._transport, [topic_name], policy, asked=True)
        except LinkError as error:
            raise NotResolved(f"link {self.key} could not end the gap in {topic_name!r}: {error}; try again") from None
        gap = self._topics.gap_of(topic_name)
        if gap is not None:
            why_it_stays = self._copier.topics[topic_name].halted
            raise NotResolved(
                f"the gap in {topic_name!r} is still there, so the link does not copy this topic: {why_it_stays}"
            )

    def copied_anew(self, topic_name: str) -> Mapping[str, Mark] | None:
        """Return what is here in full of a topic whose copy the destination is asked to delete now; None otherwise."""
        return self._topics.ending.copied_anew.get(topic_name)

    def try_again(self, topic_name: str) -> None:
        """Try again to copy a topic that was halted here, as the reason may be gone."""
        self._topics.try_again(topic_name)

    # Events of the engine.

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        if self._topics.moved(topic, blocks):
            self._method.wake()

    def on_deletion_refused(self, topic: Topic) -> None:
        self._topics.stayed(topic)

    def on_log_deleted(self, topic: Topic) -> None:
        self._topics.deleted(topic)

    def on_partitions(self, topic_name: str, partitions: int) -> None:
        self._partitions.changed(topic_name)
        self._method.wake()

    def on_inherited_policies(self, topic: Topic) -> None:
        """Look again at the topic: the policies of its namespace say to which clusters it is copied."""
        self._topics.look_again(topic.name)

    def on_namespace_policies(self, namespace: str) -> None:
        for name in self.engine.catalog.partitioned_topics(namespace):
            self._partitions.changed(name)
        self._schemas.announce_all_again()
        self._method.wake()

    def on_topic_deleted(self, topic_name: str) -> None:
        self._partitions.forget(topic_name)

    def _schema_registered(self, topic_name: str) -> None:
        self._schemas.changed(topic_name)
        self._method.wake()

    # The connection.

    async def _run(self) -> None:
        """Run :meth:`_connect_and_copy`. If it ends, a new run starts from the beginning: nothing in flight counts."""
        self._copier.on_disconnected()
        self._set_state("connecting", "")
        try:
            await self._connect_and_copy()
        finally:
            if not self._stopping:
                self._set_state("connecting", "its task ended; it starts again")

    async def _connect_and_copy(self) -> None:
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
                        store=self.engine.origin_stores.store,
                        run_id="" if self.run is None else self.run.id,
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

    def _pause_seconds(self, retry_state: RetryCallState) -> float:
        return self._transfer.pause_seconds(None if retry_state.outcome is None else retry_state.outcome.exception())

    async def _sleep_unless_nudged(self, seconds: float) -> None:
        self._nudged.clear()
        with contextlib.suppress(TimeoutError):
            async with timeout(seconds):
                await self._nudged.wait()

    def _note_failure(self, retry_state: RetryCallState) -> None:
        self._copier.on_disconnected()
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        if isinstance(error, LinkPaused):
            self._set_state("paused", "")
            return
        if isinstance(error, CarrierChanged):
            self._transfer.failures = 0
            return
        self.figures.reconnects += 1
        if not isinstance(error, LinkError):
            log.error("link failed", cluster=self.engine.cluster, to=self.to, exc_info=error)
        elif str(error) != self.detail:
            log.warning("link lost", cluster=self.engine.cluster, to=self.to, reason=str(error))
        self._set_state("connecting" if isinstance(error, PeerUnavailable) else "failed", str(error))

    async def _connect(self, transport: HttpTransport) -> None:
        await self._tell_run(transport)
        there = await self._lineage.ask_marks(transport)
        await transport.open()
        self._topics.on_connected(there)
        await self._topics.on_restore(transport.restore_id)
        self._transport = transport
        self._lineage.on_connected(there, transport.store_id)
        self._partitions.on_connected()
        self._schemas.on_connected()
        log.info("link connected", cluster=self.engine.cluster, to=self.to)
        self._set_state("idle", "")

    async def _copy(self, transport: HttpTransport) -> None:
        """Send and receive until one of them fails."""
        method = self._method
        await until_all_end(
            *method.loops(transport),
            self._settle_often(transport),
            self._lineage.tell(transport),
            self._notice_pause(),
            self._notice_other(method),
            self._answer_questions(transport),
            self._topics.watch_created_topics(transport.made),
            names=f"link {self.key}",
        )

    async def _tell_run(self, transport: HttpTransport, question: str = "") -> None:
        """Announce this worker's run to the destination.

        Raises :class:`RunAwaited` if the destination is still asking another run of the store, and :class:`RunRefused`
        if it serves another run.
        """
        if self.run is None:
            return
        answer = self.run_answer = await transport.announce_run(self.run, question)
        if answer is None:
            transport.run_id = ""  # a destination of an earlier version does not know the question
        elif answer.standing is RunVerdict.ASKING:
            raise RunAwaited(answer.reason)
        elif answer.standing is not RunVerdict.SERVED:
            raise RunRefused(answer.reason)

    async def _answer_questions(self, transport: HttpTransport) -> None:
        """Announce the run each time the destination asks, and every few seconds while the destination reports a
        twin."""
        while True:
            twins = self.run_answer is not None and bool(self.run_answer.twins)
            question = ""
            with contextlib.suppress(TimeoutError):
                async with timeout(TWIN_LOOKED_AT_SECONDS if twins else None):
                    question = await transport.question()
            await self._tell_run(transport, question)

    async def _notice_pause(self) -> None:
        while not self.paused:
            self._pause_changed.clear()
            await self._pause_changed.wait()
        raise LinkPaused(f"link {self.key} is paused: `replicator links resume` lets it go on")

    @property
    def _method(self) -> TransferMethod:
        """Transfer method that carries now. Spark may also carry a link of the embedded engine, while it is
        backfilled."""
        return self.planner if self.route.engine == SPARK or self.planner.backfilling else self._frames

    async def _notice_other(self, method: TransferMethod) -> None:
        while self._method is method:
            self._changed_hands.clear()
            await self._changed_hands.wait()
        raise CarrierChanged(
            f"link {self.key} is copied by another program from now on (Spark, a backfill or this worker): nothing to "
            "do"
        )

    async def _settle_often(self, transport: HttpTransport) -> None:
        """Now and then ask the destination about topics that wait for it, such as one that is to be deleted there."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with timeout(SETTLE_SECONDS):
                    await self._topics.ask_again.wait()
            self._topics.ask_again.clear()
            names = self._topics.to_settle()
            for first in range(0, len(names), SETTLED_AT_ONCE):
                await self._settle_topics(transport, names[first : first + SETTLED_AT_ONCE], self.spec.on_gap)

    async def _settle_topics(
        self, transport: HttpTransport, names: Sequence[str], policy: str, *, asked: bool = False
    ) -> None:
        """Look again at topics that wait, and end their gaps where ``policy`` does, for which an operator may have
        ``asked``."""
        async with self._settling:
            self._topics.note_question(names)
            there = await self._lineage.ask_marks(transport, names)
            for name in names:
                await self._topics.settle(name, there.get(name, {}), policy, transport, asked=asked)
            self._method.wake()

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await self._topics.backlogs.count_all()
            try:
                await self._topics.save()
            except EngineError as error:
                log.warning("link: marks not saved", cluster=self.engine.cluster, to=self.to, reason=str(error))

    def _set_state(self, state: str, detail: str) -> None:
        self._transfer.set_state(state, detail)

    # Figures.

    def backlog_entries(self) -> int:
        """Return how many entries of all origins the destination has not confirmed: at most so many are left to copy.

        If hundreds of topics move at once, the figure is up to :data:`SAVE_SECONDS` old.
        """
        return self._topics.backlogs.total()

    async def backlog_by_topic(self) -> dict[str, int]:
        """Return, by topic, how many entries the destination has not confirmed; topics without a backlog are left
        out."""
        return await self._topics.backlogs.of_all()

    async def behind(self, limit: int) -> list[LaggingTopic]:
        """Return the topics that are most behind; see :func:`~replicator.links.status.topics_behind`."""
        return await topics_behind(self.engine, self._topics, self.key, self.engine.writer.wall_clock_ms(), limit)

    def planned(self) -> dict[str, Any]:
        """Return the link as its carriers need it."""
        return planned_link(self.route, self.address, self._transfer)

    def status(self) -> LinkStatus:
        """Return the figures of this link that the status page shows."""
        return link_status(self.route, self.address, self._transfer, self.planner.carriers, self.backfill_progress)
