"""Reclaiming: a restored cluster takes back what it lost of its own messages, from the clusters that have copies.

It is done once, on the directory of a worker that does not run, before the log goes on: then what was lost still has
its place in it. The worker does not start on a restored store before (:mod:`replicator.engine.restored`).

1. Every other cluster is asked: for the newest failover epoch, and for what it has of this cluster's messages. One that
   does not answer must be named by whoever goes on without it.
2. What is to be taken back is planned (:mod:`.reclaim_plan`), and read from all peers that have it, in the order of
   positions, each block once. What a peer does not give, another may (:mod:`.reclaim_reading`). The peers hold their
   retention back meanwhile: they are asked something every :data:`ASKED_AGAIN_SECONDS`.
3. Blocks are appended at their own positions (:mod:`replicator.engine.log.commit.reclaiming`). A run that is cut off is
   run again: it goes on where the log then ends.
4. A range that nobody gave becomes a hole in the commit of what comes after it. Before that the store's mark names
   it, so that a run that goes on after another knows of it. A topic into whose log nothing can be put back any more is
   named too, and the others go on.
5. The store's mark is settled. What other clusters published comes by their links, once the worker runs.
"""

from __future__ import annotations

import asyncio
import heapq
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from replicator.backup.errors import BackupError, WorkerNotAsked
from replicator.backup.reclaim_plan import OwnLog, PeerCopy, TopicPlan, deleted_on_purpose, holes_of, plan_topic
from replicator.backup.reclaim_reading import Missed, PeerReading
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import NotReclaimed
from replicator.engine.log.block import BlockHeader, BlockView, verify_block
from replicator.engine.restored import MARK, RestoredMark, restored_mark
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC, parse_topic
from replicator.failover.epochs import FIRST, as_json, from_json, precedence
from replicator.failover.service import RECORD
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer
from replicator.pipeline.verify.plane import VerifyPlane
from replicator.security.asking import worker_url
from replicator.topology import Topology
from snapshots.ack_vector import Range, within
from snapshots.markers import FailoverEpoch
from snapshots.position import BEFORE_ALL, Position

APPENDED_BYTES: Final = 8 * 1024 * 1024
"""In one commit."""
ANSWER_SECONDS: Final = 5.0
"""How long a peer is waited for."""

ASKED_AGAIN_SECONDS: Final = 20.0
"""A peer holds its retention back for a minute after each question, and one topic may take longer than that."""
NAMED_MAX: Final = 10
"""Losses of a topic that are named one by one."""

OnTopic = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReclaimedTopic:
    """What came back of one topic."""

    name: str
    messages: int
    after: Position
    upto: Position
    made_anew: bool
    holes: int
    """Ranges of positions that nobody has any more."""


@dataclass(slots=True)
class Reclaimed:
    """What became of a restored store."""

    topics: list[ReclaimedTopic] = field(default_factory=list)
    epoch_before: int = 0
    epoch: int = 0
    lost: list[str] = field(default_factory=list)
    """What is known to be lost, or was not asked for, in words."""
    deleted: list[str] = field(default_factory=list)
    """Topics that were deleted on purpose and that others still have, in words."""
    damaged: bool = False
    """Whether something is lost because a peer's block is damaged."""

    def loses(self, *what: str) -> None:
        """Note losses, each once: a run that goes on after another may find some again."""
        self.lost += [each for each in what if each not in self.lost]


@dataclass(frozen=True, slots=True)
class _Peer:
    name: str
    plane: VerifyPlane
    copies: Mapping[str, PeerCopy]
    record: FailoverEpoch
    deletions: Mapping[str, Mapping[int, Position]]
    """By topic, the lives that the peer was told to be deleted on purpose, each with its last position."""


async def reclaim(
    topology: Topology,
    name: str,
    *,
    without: frozenset[str] = frozenset(),
    on_topic: OnTopic = lambda _: None,
) -> Reclaimed:
    """Take back what ``name`` lost. ``without`` are clusters that are not asked.

    Raises :class:`StoreUnusable` while the worker runs, and :class:`WorkerNotAsked` for a cluster that does not answer;
    nothing is changed then.
    """
    cluster = topology.cluster(name)
    if unknown := without - set(topology.names):
        raise BackupError(f"--without: the topology has no cluster {', '.join(sorted(unknown))}")
    settings = EngineSettings(
        store_bytes_max=topology.store.size_max,
        message_bytes_max=topology.store.message_size_max,
        segments=topology.store.segments(),
        policies=cluster.policies.topic_policies(),
        maintained=False,
    )
    engine = await Engine.open(cluster.data, cluster=name, settings=settings)
    peers: list[_Peer] = []
    try:
        for each in topology.clusters:
            if each.name != name and each.name not in without:
                peers.append(await asyncio.to_thread(_ask, each.name, worker_url(each.address), name))
        async with _held_back(engine, peers):
            return await _reclaim_from(engine, topology, peers, without, on_topic)
    except PeerUnavailable as error:
        raise WorkerNotAsked(
            f"{error}; what came back so far stays. Start that worker and run `replicator backup reclaim`, which goes "
            "on from there, or do so with --without its cluster: what only it has is then lost"
        ) from None
    finally:
        for peer in peers:
            peer.plane.close()
        await engine.close()


def _ask(name: str, url: str, restored: str) -> _Peer:
    plane = VerifyPlane(url, wait_seconds=ANSWER_SECONDS, reclaiming=restored)
    try:
        cuts = plane.call("GET", "/replication/v1/cuts")
        if cuts["cluster"] != name:
            raise WorkerNotAsked(f"{url} is cluster {cuts['cluster']!r}, the topology says {name!r}")
        record = from_json(plane.call("GET", "/failover/v1/state")["record"])
        copies = {topic: copy for topic, row in cuts["topics"].items() if (copy := _copy(row, restored)) is not None}
        deletions = {topic: lives for topic, row in cuts["topics"].items() if (lives := _deletions(row, restored))}
        # The log of failovers is not among the topics of users; all of it is kept.
        epochs = plane.call("GET", "/replication/v1/high-water", origin=restored, topic=EPOCHS_TOPIC)["topics"]
        copies |= {
            topic: PeerCopy(int(mark["incarnation"]), Position.parse(mark["position"]), store=mark.get("store"))
            for topic, mark in epochs.items()
        }
    except (PeerUnavailable, UnexpectedAnswer) as error:
        plane.close()
        raise WorkerNotAsked(
            f"{error}; start {name} and run `replicator backup reclaim`, or do so with --without {name}: what only "
            f"{name} has of {restored}'s messages is then lost to it, and the link to {name} stops there (lost-data)"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        plane.close()
        raise WorkerNotAsked(f"worker at {url}: its answer cannot be read: {error!r}") from None
    return _Peer(name, plane, copies, record, deletions)


@asynccontextmanager
async def _held_back(engine: Engine, peers: list[_Peer]) -> AsyncIterator[None]:
    """Keep the peers' retention held back, also while one of them is not read for long."""

    whose = engine.cluster

    def ask() -> None:
        for peer in peers:
            with suppress(PeerUnavailable, UnexpectedAnswer), DataPlane(peer.plane.url, reclaiming=whose) as plane:
                plane.call("GET", "/replication/v1/high-water", origin=whose, topic=EPOCHS_TOPIC)

    async def keep() -> None:
        while True:
            await asyncio.sleep(ASKED_AGAIN_SECONDS)
            await asyncio.to_thread(ask)

    keeping = engine.supervisor.start("reclaim", "holding retention back", keep)
    try:
        yield
    finally:
        await keeping.stop()


def _copy(row: Mapping[str, Any], origin: str) -> PeerCopy | None:
    mark = row["high_water"].get(origin)
    if mark is None:
        return None
    left_out = [(Position.parse(after), Position.parse(upto)) for after, upto in row["left_out"].get(origin, ())]
    trimmed = row["trimmed_of"].get(origin)
    incarnation, position = int(mark[0]), Position.parse(mark[1])
    lineage = row.get("lineage", {}).get(origin, {"stores": {}})  # an earlier version does not say
    return PeerCopy(
        incarnation,
        position,
        BEFORE_ALL if trimmed is None else Position.parse(trimmed),
        left_out,
        store=lineage["stores"].get(str(incarnation)),
        deleted=position <= _deletions(row, origin).get(incarnation, BEFORE_ALL),
    )


def _deletions(row: Mapping[str, Any], origin: str) -> dict[int, Position]:
    deleted = row.get("lineage", {}).get(origin, {}).get("deleted", {})
    return {int(incarnation): Position.parse(position) for incarnation, position in deleted.items()}


async def _reclaim_from(
    engine: Engine, topology: Topology, peers: list[_Peer], without: frozenset[str], on_topic: OnTopic
) -> Reclaimed:
    mark = restored_mark(engine.store)
    # A run that was cut off has written holes, which this one does not find again.
    done = Reclaimed(lost=list(mark.lost) if mark is not None and mark.settled_at_ms is None else [])
    await _learn_epoch(engine, peers, done)
    rewritten = _rewritten(topology, engine.cluster)
    for topic_name in sorted({topic for peer in peers for topic in peer.copies}):
        of_topic = _deleted_left_out(engine, topic_name, peers, done)
        plan = _plan(engine, topic_name, of_topic, rewritten)
        if plan is not None:
            on_topic(topic_name)
            try:
                done.topics.append(await _reclaim_topic(engine, plan, {peer.name: peer for peer in peers}, done))
            except NotReclaimed as error:
                done.loses(f"{error}; nothing of it comes back, and the other topics go on")
                continue
        done.loses(*_out_of_place(engine, topic_name, of_topic))
    done.loses(*(f"{peer} was not asked: what only it has of {engine.cluster}'s messages" for peer in sorted(without)))
    await _settle(engine, done)
    return done


def _deleted_left_out(engine: Engine, name: str, peers: list[_Peer], done: Reclaimed) -> list[_Peer]:
    """Return the peers without those whose copy is of a topic that was deleted on purpose, and note the topic."""
    copies = {peer.name: peer.copies[name] for peer in peers if name in peer.copies}
    own = engine.origin_stores.own_topic(name)
    lives = dict(own.deleted)
    for peer in peers:  # who was told speaks for those who were not
        for incarnation, position in peer.deletions.get(name, {}).items():
            lives[incarnation] = max(position, lives.get(incarnation, BEFORE_ALL))
    deleted = deleted_on_purpose(replace(own, deleted=lives), copies)
    if deleted:
        here = engine.find(name)
        still = here is not None and any(copies[peer].incarnation == here.incarnation for peer in deleted)
        done.deleted.append(
            f"{name} was deleted on purpose ({', '.join(sorted(deleted))} still has a copy): nothing of it comes back"
            + (f"; the backup of {engine.cluster} has it: delete it there again" if still else "")
        )
    return [peer for peer in peers if peer.name not in deleted]


def _out_of_place(engine: Engine, name: str, peers: list[_Peer]) -> list[str]:
    """What peers have that has no place here any more: the log went on after it was lost."""
    topic = engine.find(name)
    if topic is None:
        return []
    holes = topic.origins.left_out(engine.cluster)
    return [
        f"{name}: {peer.name} has messages of {engine.cluster} up to {copy.mark} that were lost here before the log "
        "went on"
        for peer in peers
        if (copy := peer.copies.get(name)) is not None
        and copy.incarnation == topic.incarnation
        and not (copy.mark in topic.log or copy.mark <= topic.log.trimmed)
        and not any(after < copy.mark <= upto for after, upto in holes)
    ]


async def _learn_epoch(engine: Engine, peers: list[_Peer], done: Reclaimed) -> None:
    """So that an old primary knows who serves before its worker starts, whoever answers it then."""
    stored = engine.store.meta(RECORD)
    known = FIRST if stored is None else from_json(stored)
    newest = max([known, *(peer.record for peer in peers)], key=precedence)
    done.epoch_before, done.epoch = known.epoch, newest.epoch
    if precedence(newest) > precedence(known):
        await engine.remember(RECORD, as_json(newest))


def _rewritten(topology: Topology, origin: str) -> frozenset[str]:
    """The clusters to which the origin's messages may come by a link that leaves some out, or changes them."""
    found: set[str] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        for link in topology.links:
            if link.where or link.masks or (link.forward and link.source in found):
                found.add(link.destination)
    return frozenset(found - {origin})


def _plan(engine: Engine, name: str, peers: list[_Peer], rewritten: frozenset[str]) -> TopicPlan | None:
    topic = engine.find(name)
    here = None
    if topic is not None:
        mark = topic.origins.high_water(engine.cluster)
        here = OwnLog(topic.incarnation, BEFORE_ALL if mark is None else mark.position)
    return plan_topic(name, here, {peer.name: peer.copies[name] for peer in peers if name in peer.copies}, rewritten)


async def _reclaim_topic(
    engine: Engine, plan: TopicPlan, peers: Mapping[str, _Peer], done: Reclaimed
) -> ReclaimedTopic:
    topic = await _topic(engine, plan)
    readings = [PeerReading(peer, peers[peer].plane, engine.cluster, plan) for peer in plan.sources]
    blocks = _merged([reading.blocks() for reading in readings])
    messages, found, reached = 0, 0, plan.after
    while True:
        part: list[tuple[BlockHeader, bytes]] = await asyncio.to_thread(_some, blocks)
        upto = part[-1][0].origin_last if part else plan.upto
        holes = holes_of(plan, {each.name: [missed.range for missed in each.missed] for each in readings})
        passed = [hole for hole in holes if reached < hole[1] <= upto]
        named = [_named(engine.cluster, plan, hole, readings) for hole in passed[: max(0, NAMED_MAX - found)]]
        done.loses(*named)
        done.damaged |= any(_is_damaged(hole, readings) for hole in passed)
        if passed:
            await _remember_losses(engine, done)
        await engine.writer.reclaim(
            topic.tail,
            topic.log.last,
            part,
            holes=passed,
            upto=upto,
            numbered=topic.policies.effective.deduplication,
        )
        messages += sum(header.messages for header, _ in part)
        found += len(passed)
        reached = upto
        if not part:
            break
    if found > NAMED_MAX:
        done.loses(f"{plan.name}: nobody has {found - NAMED_MAX} more such ranges")
    return ReclaimedTopic(plan.name, messages, plan.after, plan.upto, plan.made_anew, found)


def _named(origin: str, plan: TopicPlan, hole: Range, readings: list[PeerReading]) -> str:
    why = {f"{each.name} {missed.reason}": None for each in readings for missed in each.missed if _in(missed, hole)}
    return (
        f"{plan.name}: nobody has {origin}'s messages after {hole[0]} up to {hole[1]} any more"
        f"{': ' if why else ''}{'; '.join(list(why)[:NAMED_MAX])}"
    )


def _is_damaged(hole: Range, readings: list[PeerReading]) -> bool:
    return any(missed.damaged and _in(missed, hole) for each in readings for missed in each.missed)


def _in(missed: Missed, hole: Range) -> bool:
    return bool(within([missed.range], [hole]))


async def _topic(engine: Engine, plan: TopicPlan) -> Topic:
    """The topic in the life that is wanted."""
    topic = engine.find(plan.name)
    if topic is not None and plan.made_anew:
        await engine.deleting.delete(plan.name, force=True, on_purpose=False)
        topic = None
    if topic is None:
        return await engine.making.make_again(parse_topic(plan.name), plan.incarnation)
    return topic


def _merged(streams: list[Iterator[tuple[BlockHeader, bytes]]]) -> Iterator[tuple[BlockHeader, bytes]]:
    """The blocks of all, in the order of their positions, each entry once."""
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


async def _remember_losses(engine: Engine, done: Reclaimed) -> None:
    """Name losses in the store before they are written: then the worker starts only when a reclaim came to its end."""
    now_ms = time.time_ns() // 1_000_000
    mark = restored_mark(engine.store) or RestoredMark(uuid.uuid4().hex, "", now_ms, now_ms)
    await engine.remember(MARK, replace(mark, settled_at_ms=None, lost=tuple(done.lost)).as_json())


async def _settle(engine: Engine, done: Reclaimed) -> None:
    now_ms = time.time_ns() // 1_000_000
    mark = restored_mark(engine.store) or RestoredMark(uuid.uuid4().hex, "", now_ms, now_ms)
    messages = mark.reclaimed_messages + sum(topic.messages for topic in done.topics)
    settled = mark.settled(now_ms, messages=messages, topics=len(done.topics), lost=tuple(done.lost))
    await engine.remember(MARK, settled.as_json())
