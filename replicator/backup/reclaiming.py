"""Reclaiming: a cluster takes back the messages of its own that it lost, from the clusters that have copies.

A reclaim opens the data directory, so the worker must not run. The worker refuses to start in two cases: on a restored
store before the first reclaim, and after a reclaim that was begun and not finished (:mod:`replicator.engine.restored`).

1. Ask every other cluster for the newest failover epoch and for what it has of this cluster's messages. If a cluster
   does not answer, the reclaim stops, unless the operator excluded that cluster with ``without``
   (:mod:`.reclaim_peers`).
2. Plan what to take back (:mod:`.reclaim_plan`). Read it from all peers that have it, in the order of positions, each
   block once. A range that one peer does not give may come from another (:mod:`.reclaim_reading`). During this the
   peers hold back their retention.
3. Append blocks of a topic's newest life at their own positions (:mod:`replicator.engine.log.commit.reclaiming`). Put
   blocks of earlier lives back below the log (:mod:`.putting_back`). A reclaim that was interrupted or paused is
   started again, and continues from what is stored.
4. A range that no peer gave becomes a hole, in the commit with the block after it. Before that commit, the loss is
   recorded in the store's mark (:class:`~replicator.engine.restored.RestoredMark`), as is all else that a reclaim that
   is started again would not find. Messages that cannot be written at their old positions any more, because the log
   went on, are reported as lost. The reclaim then continues with all other messages.
5. If a peer knows a newer store of this cluster, an operator goes back to this store: give it a new id, by which it
   takes the place of the newer one (:mod:`.going_back`).
6. Settle the store's mark: write into it that the reclaim is finished, so that the worker may start. Messages of other
   clusters come by links once the worker runs.
"""

from __future__ import annotations

import asyncio
import heapq
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from replicator.backup import new_lives
from replicator.backup.copied_cursors import merge_cursors, not_merged
from replicator.backup.directory_peer import Lacks, lacking_at, open_directory
from replicator.backup.errors import ReclaimPaused, WorkerNotAsked
from replicator.backup.going_back import lacking_before, newer_stores
from replicator.backup.putting_back import finish_put_back, states_told, take_into_view
from replicator.backup.reclaim_mark import (
    MET_DAMAGE,
    count_messages,
    count_topics,
    lasting_losses,
    new_mark,
    remember_losses,
    settle,
)
from replicator.backup.reclaim_peers import Peer, ask_peers, check_known, close_all, held_back, rewritten_at
from replicator.backup.reclaim_plan import Lives, TopicPlan, holes_of
from replicator.backup.reclaim_reading import MissedRange, Pace, PeerReading
from replicator.backup.topic_lives import (
    answer_later,
    deleted_lives,
    deletions_told,
    lives_of,
    names_of,
    not_asked,
    out_of_place,
    unasked,
)
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import NotReclaimed
from replicator.engine.log.block import BlockHeader, BlockView, verify_block
from replicator.engine.log.commit.putting_back import put_back_note
from replicator.engine.restored import RestoredMark, restored_mark
from replicator.engine.topic import Topic
from replicator.engine.topic_name import parse_topic
from replicator.failover.service import learn_newest
from replicator.pipeline.errors import PeerUnavailable
from replicator.topology import Topology
from snapshots.ack_vector import Range, within
from snapshots.position import BEFORE_ALL, Position

APPENDED_BYTES: Final = 8 * 1024 * 1024
"""Bytes of blocks that one commit writes."""
NAMED_MAX: Final = 10
"""Losses of a topic that are reported one by one; more of them are only counted."""


@dataclass(frozen=True, slots=True)
class ReclaimedTopic:
    """Messages of one life of a topic that a reclaim took back."""

    name: str
    messages: int
    after: Position
    upto: Position
    made_anew: bool
    holes: int
    """Number of ranges of positions that no peer has any more."""
    below: bool = False
    """Whether the messages were put back below the end of the log, such as those of an earlier life."""
    between: bool = False
    """Whether the messages are of the newest life, and lie between ledgers that the log had."""


@dataclass(slots=True)
class Reclaimed:
    """Result of a reclaim."""

    topics: list[ReclaimedTopic] = field(default_factory=list)
    epoch_before: int = 0
    epoch: int = 0
    lost: list[str] = field(default_factory=list)
    """Known losses, and clusters that were not asked, in words."""
    deleted: list[str] = field(default_factory=list)
    """Lives of topics that this cluster deleted on purpose while peers still have copies, in words."""
    begun: list[str] = field(default_factory=list)
    """Topics that began a new life because a later one than theirs was deleted, in words."""
    damaged: bool = False
    """Whether something is lost because a block is damaged at a peer."""

    def loses(self, *what: str) -> None:
        """Record losses, each once. A reclaim that is started again can find a loss a second time."""
        self.lost += [each for each in what if each not in self.lost]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a reclaim."""

    topic: str
    number: int
    """Number of the topic that is being read, counted from 1."""
    topics: int
    messages: int
    """Messages of that topic that came back so far."""
    read_bytes: int
    """Bytes of blocks that were read so far, of all topics."""


OnProgress = Callable[[Progress], None]


async def reclaim(
    topology: Topology,
    name: str,
    *,
    without: frozenset[str] = frozenset(),
    from_directory: Path | None = None,
    pace: Pace | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Reclaimed:
    """Take back the messages of cluster ``name`` that it lost. The clusters in ``without`` are not asked.

    ``from_directory`` has another copy of the cluster's store, which is read like one more peer.

    Raises :class:`StoreUnusable` if the worker runs, and :class:`WorkerNotAsked` if a cluster does not answer. If a
    cluster stops answering later, what came back so far stays. Raises :class:`ReclaimPaused` if ``pace`` is paused.
    """
    check_known(topology, without)
    async with opened(topology, name) as engine:
        return await reclaim_opened(
            engine, topology, without=without, from_directory=from_directory, pace=pace, on_progress=on_progress
        )


async def reclaim_opened(
    engine: Engine,
    topology: Topology,
    *,
    without: frozenset[str] = frozenset(),
    nothing: frozenset[str] = frozenset(),
    from_directory: Path | None = None,
    pace: Pace | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Reclaimed:
    """Do the work of :func:`reclaim` in a store that is open already, and that serves nobody yet. Raises the same
    errors.

    Clusters in ``nothing`` said that they have nothing of this cluster, and are not asked again. Open the store anew
    afterwards, also after an error: what is in memory of its topics is not brought up to date.
    """
    name = engine.cluster
    async with asked(topology, name, without | nothing, from_directory) as peers:
        try:
            async with held_back(engine.supervisor, name, peers):
                run = _Run(engine, topology, peers, without, pace or Pace(), on_progress)
                return await run.reclaim()
        except PeerUnavailable as error:
            raise WorkerNotAsked(
                f"{error}; what came back so far stays. Start that worker and run `replicator backup reclaim`, which "
                "goes on from there, or do so with --without its cluster: what only it has is then lost"
            ) from None


@asynccontextmanager
async def asked(
    topology: Topology, name: str, without: frozenset[str], from_directory: Path | None
) -> AsyncIterator[list[Peer]]:
    """Ask the other clusters, and open the other copy of the store if a directory is given. Close all of them at the
    end."""
    peers = await ask_peers(topology, name, without)
    try:
        async with AsyncExitStack() as stack:
            if from_directory is not None:
                own, settings = topology.cluster(name).data, _settings(topology, name)
                peers.append(await stack.enter_async_context(open_directory(from_directory, own, name, settings)))
            yield peers
    finally:
        close_all(peers)


@asynccontextmanager
async def opened(topology: Topology, name: str) -> AsyncIterator[Engine]:
    """Open the store of cluster ``name``. Raises :class:`StoreUnusable` if its worker runs."""
    engine = await Engine.open(topology.cluster(name).data, cluster=name, settings=_settings(topology, name))
    try:
        yield engine
    finally:
        await engine.close()


def _settings(topology: Topology, name: str) -> EngineSettings:
    return EngineSettings(
        store_bytes_max=topology.store.size_max,
        message_bytes_max=topology.store.message_size_max,
        segments=topology.store.segments(),
        policies=topology.cluster(name).policies.topic_policies(),
        maintained=False,
    )


class _Run:
    """Work of one call of :func:`reclaim`, topic by topic."""

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        peers: Sequence[Peer],
        without: frozenset[str],
        pace: Pace,
        on_progress: OnProgress,
    ) -> None:
        self._engine = engine
        self._rewritten = rewritten_at(topology, engine.cluster)
        self._peers = {peer.name: peer for peer in peers}
        self._newer = newer_stores(engine.origin_stores.line, peers)
        """Stores whose place this one takes at the end."""
        self._without = without
        self._nobody = "nobody that was asked" if without else "nobody"
        self._pace = pace
        self._on_progress = on_progress
        mark = restored_mark(engine.store)
        # Holes that an earlier reclaim wrote are not found again, so take over the losses that it recorded.
        if mark is not None and mark.settled_at_ms is None:
            self._done = Reclaimed(lost=lasting_losses(engine, ()), damaged=bool(engine.store.meta(MET_DAMAGE)))
        else:
            names = topology.names
            remarks = {say(name, engine.cluster) for name in names for say in (unasked, answer_later)}
            self._done = Reclaimed(lost=lasting_losses(engine, remarks))
        self._found_again: list[str] = []
        """Losses that the next reclaim finds again if they still hold, in words."""
        self._number = self._topics = 0
        self._came_back: set[str] = set()
        """Topics that got messages back in this run."""
        self._further: list[str] = []
        """Losses of the plan that is carried out which the next part of it can change, in words."""

    async def reclaim(self) -> Reclaimed:
        try:
            return await self._reclaim()
        except (ReclaimPaused, PeerUnavailable):
            await count_topics(self._engine, self._came_back)
            raise

    async def _reclaim(self) -> Reclaimed:
        engine, done, peers = self._engine, self._done, list(self._peers.values())
        known, newest = await learn_newest(engine, [peer.record for peer in peers])
        done.epoch_before, done.epoch = known.epoch, newest.epoch
        for other in (peer.engine for peer in peers if peer.engine is not None):
            await engine.partitioned.learn_deletions(other.origin_stores.partitioned_deletions(engine.cluster))
        names = names_of(peers)
        self._topics = len(names)
        for self._number, name in enumerate(names, 1):
            lives = lives_of(engine, name, peers, self._rewritten)
            self._note_recoverable_loss(*lives.refused)
            before = len(done.topics)
            for plan in lives.plans:
                self._pace.check()
                await self._begin()
                try:
                    done.topics.append(await self._take_back(plan))
                except NotReclaimed as error:
                    self._note_recoverable_loss(f"{error}; nothing of it comes back, and the other topics go on")
                    break
                finally:
                    done.loses(*self._further)
            else:
                self._note_recoverable_loss(*out_of_place(engine, name, peers, lives))
            came_back = any(each.messages for each in done.topics[before:])
            done.deleted += deleted_lives(engine, name, lives, peers, others_come_back=came_back)
            await engine.origin_stores.learn_own(deletions_told(engine, name, lives, peers))
            await self._finish(engine.find(name))
            await self._merge_cursors(name)
            await self._begin_life(engine.find(name), lives, peers)
        for topic in engine.topics():  # also topics of an earlier reclaim of which no asked peer has copies any more
            await self._finish(topic)
        self._note_recoverable_loss(*not_asked(engine.cluster, self._without))
        await count_topics(engine, self._came_back)
        if self._newer:
            await engine.origin_stores.take_place(self._newer)
        await settle(engine, done.lost, found_again=self._found_again)
        return done

    def _note_recoverable_loss(self, *what: str) -> None:
        """Record losses that the next reclaim finds again, unless somebody has mended their cause."""
        self._done.loses(*what)
        self._found_again += what

    async def _begin(self) -> None:
        """Record in the store that a reclaim is under way, so that no worker starts on a store with only a part of its
        messages."""
        mark = restored_mark(self._engine.store)
        if mark is None or mark.settled_at_ms is not None:
            # A new id makes links announce whole states again.
            begun = replace(mark or new_mark(), restore_id=uuid.uuid4().hex)
            await self._remember_in(begun, self._done.lost)

    async def _remember(self, lost: Sequence[str]) -> None:
        """Record the losses so far in the store, before anything is written that hides them: after that, a reclaim that
        is started again does not find them."""
        mark, lost = restored_mark(self._engine.store) or new_mark(), list(dict.fromkeys(lost))
        if list(mark.lost) != lost:
            await self._remember_in(mark, lost)

    async def _remember_in(self, mark: RestoredMark, lost: Sequence[str]) -> None:
        await remember_losses(self._engine, mark, lost, found_again=self._found_again, damaged=self._done.damaged)

    async def _finish(self, topic: Topic | None) -> None:
        """Do the last steps of putting back (:mod:`.putting_back`) if blocks were put back below the log of
        ``topic``."""
        if topic is not None and put_back_note(self._engine.store, topic.topic_id) is not None:
            planes = [peer.plane for peer in self._peers.values()]
            told = await asyncio.to_thread(states_told, planes, topic.name, self._engine.cluster)
            if (not_taken := await take_into_view(self._engine, topic)) is not None:
                self._done.loses(not_taken)
                await self._remember(self._done.lost)
            await finish_put_back(self._engine, topic, told)

    async def _merge_cursors(self, name: str) -> None:
        """Merge a topic's subscriptions in another copy of the store into its subscriptions here."""
        engine = self._engine
        for peer in self._peers.values():
            topic, other = engine.find(name), None if peer.engine is None else peer.engine.find(name)
            if topic is not None and other is not None:
                await merge_cursors(engine, topic, other, self._begin)
            if other is not None:
                deleted = engine.origin_stores.deleted_lives(name, engine.cluster)
                self._done.loses(*not_merged(topic, other, peer.name, deleted))

    async def _begin_life(self, topic: Topic | None, lives: Lives, peers: Sequence[Peer]) -> None:
        """Begin a new life of ``topic`` if a later one than its own was deleted (:mod:`.new_lives`)."""
        whole = not self._done.lost
        new = None if topic is None else new_lives.new_life(self._engine, topic, peers, lives, whole=whole)
        if isinstance(new, str):
            self._note_recoverable_loss(new)
        elif topic is not None and new is not None:
            await self._begin()
            await new_lives.begin(self._engine, topic, new)
            self._done.begun.append(new_lives.in_words(topic.name, new))

    async def _take_back(self, plan: TopicPlan) -> ReclaimedTopic:
        topic = await _topic(self._engine, plan)
        origin, done = self._engine.cluster, self._done
        readings = [PeerReading(peer, self._peers[peer].plane, origin, plan, self._pace) for peer in plan.sources]
        blocks = _merged([reading.blocks() for reading in readings])
        messages, found, reached = 0, 0, plan.after
        given: dict[int, Position] = {}
        said: dict[tuple[str, Position], Lacks | None] = {}
        self._further = []
        if not plan.below and self._newer:
            done.loses(*await asyncio.to_thread(lacking_before, self._peers.values(), plan, origin))
        while True:
            part: list[tuple[BlockHeader, bytes]] = await asyncio.to_thread(_some, blocks)
            upto = part[-1][0].origin_last if part else plan.upto
            holes = holes_of(plan, {each.name: [missed.range for missed in each.missed] for each in readings})
            passed = [hole for hole in holes if reached < hole[1] <= upto]
            named = [_named(origin, plan, hole, readings, self._nobody) for hole in passed[: max(0, NAMED_MAX - found)]]
            done.loses(*named)
            done.damaged |= any(_is_damaged(hole, readings) for hole in passed)
            found += len(passed)
            given |= {header.origin_last.ledger: header.origin_last for header, _ in part}
            further = []
            if found > NAMED_MAX:
                further.append(f"{plan.name}: {self._nobody} has {found - NAMED_MAX} more such ranges")
            if plan.between:
                ends = list(given.values())
                further += await asyncio.to_thread(lacking_at, self._peers.values(), plan, ends, origin, said)
            await self._remember([*done.lost, *further])
            await self._write(topic, plan, part, passed, upto)
            self._further = further
            came_back = sum(header.messages for header, _ in part)
            await count_messages(self._engine, came_back)
            if came_back:
                self._came_back.add(plan.name)
            messages += came_back
            reached = upto
            self._on_progress(Progress(plan.name, self._number, self._topics, messages, self._pace.read_bytes))
            if not part:
                break
        return ReclaimedTopic(
            plan.name, messages, plan.after, plan.upto, plan.made_anew, found, plan.below, plan.between
        )

    async def _write(
        self,
        topic: Topic,
        plan: TopicPlan,
        part: Sequence[tuple[BlockHeader, bytes]],
        holes: Sequence[Range],
        upto: Position,
    ) -> None:
        writer, numbered = self._engine.writer, topic.policies.effective.deduplication
        if plan.below:
            await writer.put_back(
                topic.tail, plan.incarnation, part, after=plan.after, holes=holes, upto=upto, numbered=numbered
            )
        else:
            await writer.reclaim(topic.tail, topic.log.last, part, holes=holes, upto=upto, numbered=numbered)


def _named(origin: str, plan: TopicPlan, hole: Range, readings: list[PeerReading], nobody: str) -> str:
    why = {f"{each.name} {missed.reason}": None for each in readings for missed in each.missed if _in(missed, hole)}
    return (
        f"{plan.name}: {nobody} has {origin}'s messages after {hole[0]} up to {hole[1]} any more"
        f"{': ' if why else ''}{'; '.join(list(why)[:NAMED_MAX])}"
    )


def _is_damaged(hole: Range, readings: list[PeerReading]) -> bool:
    return any(missed.damaged and _in(missed, hole) for each in readings for missed in each.missed)


def _in(missed: MissedRange, hole: Range) -> bool:
    return bool(within([missed.range], [hole]))


async def _topic(engine: Engine, plan: TopicPlan) -> Topic:
    """Return the topic in the life that ``plan`` wants. Delete the topic in an older life first, and create it if there
    is none."""
    topic = engine.find(plan.name)
    if topic is not None and plan.made_anew:
        await (
            engine.cluster_settings.mark_as_automatic()
        )  # its permissions and policies go with it, and no operator said so
        await engine.deleting.delete(plan.name, force=True, on_purpose=False)
        topic = None
    if topic is None:
        return await engine.making.make_again(parse_topic(plan.name), plan.incarnation)
    return topic


def _merged(streams: list[Iterator[tuple[BlockHeader, bytes]]]) -> Iterator[tuple[BlockHeader, bytes]]:
    """Yield the blocks of all streams in the order of their positions, each entry once."""
    reached = BEFORE_ALL
    for header, block in heapq.merge(*streams, key=lambda each: each[0].origin_first):
        if header.origin_last <= reached:
            continue
        if header.origin_first <= reached:
            content = BlockView(block, header).slice(reached.entry + 1 - header.origin_first.entry, header.entries)
            yield verify_block(content), content
        else:
            yield header, block
        reached = header.origin_last


def _some(blocks: Iterator[tuple[BlockHeader, bytes]]) -> list[tuple[BlockHeader, bytes]]:
    taken: list[tuple[BlockHeader, bytes]] = []
    size = 0
    for header, block in blocks:
        taken.append((header, block))
        size += len(block)
        if size >= APPENDED_BYTES:
            break
    return taken
