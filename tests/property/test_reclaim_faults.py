"""A reclaim whose peers trim, delete, lose and break while it reads: nothing is lost that anybody has, and each loss is
named.

Engines, HTTP and the reclaim are real. Pages and commits are small, so that every fault strikes between two of them.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import forked_commands
import lived_log
import pytest
from aiohttp import web
from engine_support import TOPIC, DataPlaneServer, eventually, make_block, message, opened
from examples import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paced_support import paced

from replicator.api.guarding import GUARD, ROLE
from replicator.api.verifying import add_verifying
from replicator.backup.errors import WorkerNotAsked
from replicator.backup.reclaiming import Reclaimed, reclaim
from replicator.drills.ports import free_ports
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import BlockCorrupt, TopicNotFound
from replicator.engine.log.block import BlockKind
from replicator.engine.log.link_frame import RECLAIMING_HEADER
from replicator.engine.log.store_tables import BLOCK_KEY, LOCAL_PREFIX
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.restored import restored_mark
from replicator.engine.topic import Topic
from replicator.engine.topics.grants import Grants
from replicator.engine.upkeep.maintenance import HELD_BACK_SECONDS
from replicator.failover.epochs import FIRST, as_json
from replicator.security.guard import Guard, PermissionGuard
from replicator.security.permissions import Permissions
from replicator.topology import Topology, load_topology
from snapshots.position import BEFORE_ALL, Position

OTHER = "persistent://public/default/other"
END = Position(2**62, 0)
FAR = 10**9
NAMES = ("eu-west", "ap-south")
Fault = Callable[["Peer", web.Request], Awaitable[web.StreamResponse | None]]


@dataclass
class Peer:
    """Cluster that has copies and serves them over HTTP. ``faults`` has, by number of the page of blocks, its fault."""

    engine: Engine
    server: DataPlaneServer
    faults: dict[int, Fault] = field(default_factory=dict)
    pages: int = 0
    counted: Fault | None = None
    """Fault of the next question for heads of blocks, by which a dry run counts."""
    gone: bool = False
    held: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The clusters for which it was asked to hold its retention back, with the path."""
    stored: list[StoredBlock] = field(default_factory=list)
    """Its blocks before anything befell them."""
    rows: dict[bytes, bytes] = field(default_factory=dict)
    """The rows of damaged blocks, as they were before."""
    guard: Guard | None = None
    """Permissions of the role "worker", as which everybody asks then."""
    sent_bytes: int = 0
    """Bytes of its answers so far, without their headers."""
    on_request: Callable[[], None] = lambda: None
    answers: asyncio.Event | None = None
    """Event without which no question for high-water marks is answered."""

    def add(self, app: web.Application) -> None:
        add_verifying(app)

        async def state(_: web.Request) -> web.Response:
            return web.json_response({"record": as_json(FIRST)})

        async def place(request: web.Request) -> web.Response:
            topic = await self.engine.topic(request.query["topic"], create=False)
            at = Position.parse(request.query["origin_position"])
            found = self.engine.store.translate(
                topic.topic_id, request.query["origin"], int(request.query["incarnation"]), at
            )
            if found is None:
                raise TopicNotFound("it is not here")
            return web.json_response({"position": str(found)})

        @web.middleware
        async def faulty(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            self.on_request()
            self.held[request.headers.get(RECLAIMING_HEADER, ""), request.path.rsplit("/", 1)[1]] += 1
            if self.guard is not None:
                request[ROLE], request[GUARD] = "worker", self.guard
            if self.answers is not None and request.path.endswith("/high-water"):
                await self.answers.wait()
            if self.gone:
                assert request.transport is not None
                request.transport.abort()
            if request.path.endswith("/blocks"):
                self.pages += 1
                fault = self.faults.pop(self.pages, None)
                if fault is not None and (answer := await fault(self, request)) is not None:
                    return answer
            if request.path.endswith("/block-heads") and self.counted is not None:
                fault, self.counted = self.counted, None
                await fault(self, request)
            sent = await handler(request)
            self.sent_bytes += sent.content_length or 0
            return sent

        app.add_routes([web.get("/failover/v1/state", state), web.get("/replication/v1/place", place)])
        app.middlewares.append(faulty)

    @property
    def topic(self) -> Topic | None:
        return self.engine.find(TOPIC)


# The faults.


def trims(share: float) -> Fault:
    async def fault(peer: Peer, _: web.Request) -> None:
        if (topic := peer.topic) is not None:
            mend(peer)
            await topic.trimming.trim(peer.stored[min(len(peer.stored) - 1, int(share * len(peer.stored)))].last)

    return fault


async def deletes(peer: Peer, _: web.Request) -> None:
    if peer.topic is not None:
        mend(peer)
        await peer.engine.deleting.delete(TOPIC, force=True)


async def is_killed(peer: Peer, request: web.Request) -> web.StreamResponse:
    """Break the connection in the midst of an answer, as a killed peer does."""
    answer = web.StreamResponse(headers={"X-Replicator-End": "true", "X-Replicator-Next": "0:0"})
    answer.content_length = 1_000
    await answer.prepare(request)
    await answer.write(b"\xff\xff\xff\xff")
    peer.gone = True
    assert request.transport is not None
    request.transport.abort()
    return answer


def mend(peer: Peer) -> None:
    """Put the damaged rows back: before blocks are deleted, and before the store is closed, which checks it."""
    store = peer.engine.store
    with store.env.begin(write=True, db=store.tables["blocks"]) as txn:
        for key, row in peer.rows.items():
            if txn.get(key) is not None:
                txn.put(key, row)


def damage(peer: Peer, number: int, *, head: bool) -> None:
    topic = peer.topic
    assert topic is not None
    at = peer.stored[number % len(peer.stored)]
    key = BLOCK_KEY.pack(topic.topic_id, *at.position)
    store = peer.engine.store
    with store.env.begin(write=True, db=store.tables["blocks"]) as txn:
        row = bytearray(txn.get(key))
        peer.rows.setdefault(key, bytes(row))
        row[LOCAL_PREFIX.size + 1 if head else -1] ^= 1
        txn.put(key, bytes(row))


# The clusters.


def blocks_of(topic: Topic) -> list[StoredBlock]:
    found, _ = topic.reading.blocks(BEFORE_ALL, END, bytes_max=1 << 40, verify=False)
    return found


def is_whole(topic: Topic, at: StoredBlock) -> bool:
    before = Position(at.position.ledger, at.position.entry - 1)
    try:
        found, _ = topic.reading.blocks(before, at.last, bytes_max=1)
    except BlockCorrupt:
        return False
    return [bytes(each.block) for each in found] == [bytes(at.block)]


def own(topic: Topic) -> list[StoredBlock]:
    """Return the messages that us-east published, and its markers for others."""
    local = BlockKind.LOCAL_MARKERS
    return [each for each in blocks_of(topic) if each.header.origin == "us-east" and each.header.kind != local]


live = partial(lived_log.live, other="others")


async def give(peer: Peer, blocks: list[StoredBlock], name: str = TOPIC, *, between: int = 0) -> None:
    """Copy us-east's blocks to a peer. After every ``between`` blocks the peer publishes a message itself."""
    topic = await peer.engine.topic(name)
    previous = BEFORE_ALL
    for number, each in enumerate(blocks, 1):
        await topic.writing.copy([CopiedBlock(previous, bytes(each.block))])
        previous = each.header.origin_last
        if between and number % between == 0:
            await topic.publish([message(b"of its own")])
    peer.stored = [StoredBlock(each.position, each.header, bytes(each.block)) for each in blocks_of(topic)]


@dataclass
class Clusters:
    path: Path
    topology: Topology
    peers: list[Peer]

    @property
    def data(self) -> Path:
        return self.topology.cluster("us-east").data

    async def reclaim(self, without: frozenset[str] = frozenset()) -> Reclaimed:
        return await reclaim(self.topology, "us-east", without=without)


@asynccontextmanager
async def clusters(path: Path, settings: EngineSettings | None = None) -> AsyncIterator[Clusters]:
    with (
        patch("replicator.pipeline.data_plane.PAGE_BYTES", 300),
        patch("replicator.api.verifying.PAGE_BYTES", 300),
        patch("replicator.backup.reclaiming.APPENDED_BYTES", 400),
        patch("replicator.backup.reclaim_peers.ANSWER_SECONDS", 0.2),
    ):
        async with AsyncExitStack() as stack:
            peers = []
            for name in NAMES:
                engine = await stack.enter_async_context(opened(path / name, name, settings))
                peer = Peer(engine, DataPlaneServer(engine, {"us-east"}))
                peer.server.also = peer.add
                await peer.server.start()
                stack.callback(mend, peer)
                stack.push_async_callback(peer.server.stop)
                peers.append(peer)
            (port,) = free_ports(1)
            rows = [f"  us-east: {{address: '127.0.0.1:{port}', data: {path / 'us-east'}}}"]
            rows += [
                f"  {name}: {{address: '{peer.server.address}', data: {path / name}}}"
                for name, peer in zip(NAMES, peers, strict=True)
            ]
            file = path / "topology.yaml"
            file.write_text("clusters:\n" + "\n".join(rows) + "\npipeline: {engine: embedded}\n")
            yield Clusters(path, load_topology(file), peers)


def in_directory(main: Callable[[Path], Awaitable[None]]) -> None:
    directory = Path(tempfile.mkdtemp(prefix="reclaim-"))

    async def limited() -> None:
        async with asyncio.timeout(60):
            await main(directory)

    try:
        asyncio.run(limited())
    finally:
        shutil.rmtree(directory)


async def restored_from(found: Clusters, before: list[str], after: list[str], name: str = TOPIC) -> list[StoredBlock]:
    """Publish ``before`` and ``after`` at us-east, and restore it to the time between them.

    Return all blocks that it had published.
    """
    live_path = found.path / "live"
    copied = [0]
    await live(live_path, before, copied, name)
    shutil.copytree(live_path, found.data, dirs_exist_ok=True)
    await live(live_path, after, copied, name)
    async with opened(live_path) as engine:
        return own(await engine.topic(name))


async def check(
    found: Clusters, published: list[StoredBlock], done: Reclaimed, known_upto: Position | None = None
) -> None:
    """Check that each block is there or in a hole, that holes are named, and that none has a block that a peer has
    whole.

    ``known_upto`` is the last position that a peer told anything about; None for the mark of us-east itself.
    """
    whole: set[Position] = set()
    for peer in found.peers:
        if not peer.gone and peer.topic is not None:
            for each in peer.stored:
                damaged = BLOCK_KEY.pack(peer.topic.topic_id, *each.position) in peer.rows
                if each.header.origin == "us-east" and not damaged and is_whole(peer.topic, each):
                    whole.add(each.header.origin_first)
    async with opened(found.data) as engine:
        topic = await engine.topic(TOPIC)
        here = {each.header.origin_first: bytes(each.block) for each in own(topic)}
        holes = topic.origins.left_out("us-east")
        mark = topic.origins.high_water("us-east")
        assert mark is not None
        for block in published:
            at = block.header
            in_hole = any(after < at.origin_first and at.origin_last <= upto for after, upto in holes)
            if at.origin_first in here:
                assert here[at.origin_first] == bytes(block.block)
                assert not in_hole, "what is here is said to be lost"
            elif at.origin_last <= (mark.position if known_upto is None else known_upto):
                assert in_hole, f"{at.origin_first} is lost without a word: {done.lost}"
            if at.origin_first in whole:
                assert at.origin_first in here, f"{at.origin_first} is lost, and a peer has it: {done.lost}"
        stored = restored_mark(engine.store)
        assert stored is not None
        assert stored.settled_at_ms is not None
        assert list(stored.lost) == done.lost
        assert bool(holes) == any("nobody has" in each for each in done.lost), done.lost


async def finished(found: Clusters) -> Reclaimed | None:
    """Return what a reclaim did, or None if a peer went away."""
    try:
        return await found.reclaim()
    except WorkerNotAsked:
        return None


LOST = ["publish", "copy", "publish", "marker", "publish", "local marker", "reopen", "publish", "publish", "copy"]
STEPS = st.lists(
    st.sampled_from(["publish", "publish", "publish", "copy", "marker", "local marker", "reopen"]),
    min_size=1,
    max_size=12,
)
FAULTS = st.dictionaries(
    st.integers(1, 8),
    st.one_of(st.floats(0, 1).map(trims), st.just(deletes), st.just(is_killed)),
    max_size=2,
)
DAMAGE = st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=2)


@pytest.mark.timeout(1800)
@settings(max_examples=examples(10), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(STEPS, STEPS, st.floats(0.1, 1), st.integers(0, 3), FAULTS, FAULTS, DAMAGE, DAMAGE)
def test_invariant_5_whatever_peers_do_while_they_are_read_nothing_is_lost_that_one_has_and_all_else_is_named(
    before: list[str],
    after: list[str],
    had: float,
    between: int,
    faults: dict[int, Fault],
    others: dict[int, Fault],
    damaged: list[tuple[int, bool]],
    others_damaged: list[tuple[int, bool]],
) -> None:
    async def main(path: Path) -> None:
        async with clusters(path) as found:
            published = await restored_from(found, ["publish", *before], ["publish", *after])
            one, two = found.peers
            await give(one, published, between=between)
            await give(two, published[: max(1, round(had * len(published)))])
            for peer, each in ((one, damaged), (two, others_damaged)):
                for number, head in each:
                    damage(peer, number, head=head)
            one.faults, two.faults = dict(faults), dict(others)
            while (done := await finished(found)) is None:
                killed = [peer for peer in found.peers if peer.gone]
                assert killed, "the reclaim ended early, and all peers are there"
                for peer in killed:  # it is started again
                    peer.gone = False
            await check(found, published, done)

    in_directory(main)


def test_what_a_peer_trims_between_two_pages_is_a_named_loss(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], LOST)
            for peer in found.peers:
                await give(peer, published)
                peer.faults = {2: trims(0.7)}
            done = await found.reclaim()
            assert "eu-west trimmed them meanwhile" in str(done.lost)
            assert "ap-south trimmed them meanwhile" in str(done.lost)
            assert not done.damaged
            await check(found, published, done)

    asyncio.run(main())


def test_what_one_peer_trims_meanwhile_another_gives(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], LOST)
            for peer in found.peers:
                await give(peer, published)
            found.peers[0].faults = {1: trims(0.7)}
            done = await found.reclaim()
            assert done.lost == []
            await check(found, published, done)

    asyncio.run(main())


@pytest.mark.parametrize("head", [False, True], ids=["its body", "its head"])
def test_a_damaged_block_of_a_peer_is_given_by_another_or_named_and_the_rest_comes_back(
    tmp_path: Path, head: bool
) -> None:
    async def main(path: Path, *, both: bool) -> None:
        async with clusters(path) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 8)
            for peer in found.peers[: 2 if both else 1]:
                await give(peer, published)
            damage(found.peers[0], 4, head=head)
            done = await found.reclaim()
            await check(found, published, done)
            assert done.damaged is not both
            assert len(done.lost) == (0 if both else 1)
            async with opened(found.data) as engine:
                assert len(own(await engine.topic(TOPIC))) == len(published) - (not both)
            if not both:
                assert "damaged block" in done.lost[0]
                assert TOPIC in done.lost[0]

    asyncio.run(main(tmp_path / "both", both=True))
    asyncio.run(main(tmp_path / "one", both=False))


def test_a_peer_that_is_killed_in_an_answer_ends_the_reclaim_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 8)
            peer = found.peers[0]
            await give(peer, published)
            peer.faults = {3: is_killed}
            with pytest.raises(WorkerNotAsked, match="replicator backup reclaim"):
                await found.reclaim()
            async with opened(found.data) as engine:
                assert 1 < len(own(await engine.topic(TOPIC))) < len(published)
            peer.gone = False
            done = await found.reclaim()
            assert done.lost == []
            await check(found, published, done)

    asyncio.run(main())


def test_a_loss_of_a_run_that_was_cut_off_is_named_by_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 16)
            peer = found.peers[0]
            await give(peer, published)
            peer.faults = {2: trims(0.3), 5: is_killed}
            with pytest.raises(WorkerNotAsked):
                await found.reclaim()
            async with opened(found.data) as engine:
                mark = restored_mark(engine.store)
                assert mark is not None
                assert mark.settled_at_ms is None, "the worker does not start yet"
            peer.gone = False
            done = await found.reclaim()
            assert len(done.lost) == 1
            await check(found, published, done)

    asyncio.run(main())


def test_a_damaged_block_that_a_run_met_before_it_was_cut_off_counts_for_the_status_of_the_next_one(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 16)
            peer = found.peers[0]
            await give(peer, published)
            damage(peer, 3, head=False)
            peer.faults = {9: is_killed}
            with pytest.raises(WorkerNotAsked):
                await found.reclaim()
            async with opened(found.data) as engine:
                mark = restored_mark(engine.store)
                assert mark is not None
                assert "damaged block" in str(mark.lost)
            peer.gone = False
            done = await found.reclaim()
            assert done.damaged
            await check(found, published, done)
            assert not (await found.reclaim()).damaged, "it is told once"

    asyncio.run(main())


@pytest.mark.parametrize("head", [None, False, True], ids=["whole", "damaged bodies", "damaged heads"])
def test_invariant_11_no_more_than_the_limit_leaves_the_peers_though_blocks_are_damaged_there(
    tmp_path: Path, head: bool | None
) -> None:
    """The limit counts all that peers send: also answers with heads, and pages that are thrown away in part."""
    rate, at_once_max = 500, 6_000

    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 24)
            for peer in found.peers:
                await give(peer, published)
                if head is not None:
                    for number in range(2, 24, 5):
                        damage(peer, number, head=head)
            pace, clock = paced(rate)
            asked: list[tuple[float, int]] = []
            for peer in found.peers:
                peer.on_request = lambda: asked.append((clock.now(), sum(each.sent_bytes for each in found.peers)))
            done = await reclaim(found.topology, "us-east", pace=pace)
            assert done.damaged is (head is not None)
            at, before = next((at, sent) for at, sent in reversed(asked) if at == 0)  # the last one before a wait
            for now, sent in asked:
                assert sent - before <= rate * (now - at) + at_once_max
            assert sum(each.sent_bytes for each in found.peers) > before + 3 * at_once_max

    asyncio.run(main())


def test_a_topic_that_went_on_after_it_was_rolled_back_comes_back_as_the_others_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            copied = [0]
            await live(found.path / "live", ["publish"], copied)
            await live(found.path / "live", ["publish"], copied, OTHER)
            shutil.copytree(found.path / "live", found.data)
            for name in (TOPIC, OTHER):
                await live(found.path / "live", ["publish"] * 3, copied, name)
            async with opened(found.path / "live") as engine:
                for name in (TOPIC, OTHER):
                    await give(found.peers[0], own(await engine.topic(name)), name)
            block = make_block(Position(1, 0), [message()], origin="others")
            async with opened(found.data) as engine:  # it was started once, and a link brought something
                await (await engine.topic(OTHER)).writing.copy([CopiedBlock(BEFORE_ALL, block)])
            done = await found.reclaim()
            assert done.lost == []
            found_again = [(each.name, each.messages, each.between) for each in done.topics]
            assert found_again == [(TOPIC, 6, False), (OTHER, 6, True)]

    asyncio.run(main())


def test_retention_waits_while_a_reclaim_asks_and_for_a_minute_after_its_last_request(tmp_path: Path) -> None:
    now = [1_000.0]
    keeps_nothing = EngineSettings(policies=TopicPolicies(retention=Retention(0, 0)), maintained=False)

    async def main() -> None:
        async with clusters(tmp_path, keeps_nothing) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 8)
            passes: list[int] = []

            async def retains(peer: Peer, _: web.Request) -> None:
                await peer.engine.maintenance.run_once()
                assert peer.topic is not None
                passes.append(peer.topic.log.messages)

            for peer in found.peers:
                peer.engine.maintenance._monotonic = lambda: now[0]
                await give(peer, published)
                peer.faults = dict.fromkeys(range(1, 6), retains)
            done = await found.reclaim()
            assert done.lost == []
            assert passes, "retention ran between the pages"
            await check(found, published, done)
            (peer, _) = found.peers
            assert {whose for whose, _ in peer.held} == {"us-east"}
            topic = peer.topic
            assert topic is not None
            now[0] += HELD_BACK_SECONDS - 0.1
            await peer.engine.maintenance.run_once()
            assert topic.log.trimmed == BEFORE_ALL
            now[0] += 0.2
            await peer.engine.maintenance.run_once()
            assert topic.log.trimmed > BEFORE_ALL

    asyncio.run(main())


def test_the_command_ends_with_3_where_a_peer_is_killed_and_with_4_where_a_damaged_block_is_lost(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 8)
            peer = found.peers[0]
            await give(peer, published)
            damage(peer, 4, head=False)
            peer.faults = {1: is_killed}
            asked = ("backup", "reclaim", "-f", "topology.yaml", "-c", "us-east")
            done = await asyncio.to_thread(forked_commands.run, *asked, cwd=tmp_path)
            assert done.returncode == 3, done.stderr
            assert "Traceback" not in done.stderr
            peer.gone = False
            done = await asyncio.to_thread(forked_commands.run, *asked, cwd=tmp_path)
            assert done.returncode == 4, done.stderr
            assert f"took back {2 * (len(published) - 2)} messages" in done.stdout
            assert f"lost: {TOPIC}: nobody has us-east's messages after" in done.stdout

    asyncio.run(main())


def test_the_command_names_no_topic_of_which_only_markers_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], ["marker", "marker"])
            await give(found.peers[0], published)
            asked = ("backup", "reclaim", "-f", "topology.yaml", "-c", "us-east")
            for command in ((*asked, "--dry-run"), asked):
                done = await asyncio.to_thread(forked_commands.run, *command, cwd=tmp_path)
                assert done.returncode == 0, done.stderr
                assert TOPIC not in done.stdout
                assert "the other clusters have nothing of us-east's messages that it lacks" in done.stdout
            async with opened(found.data) as engine:
                here = own(await engine.topic(TOPIC))
            assert [bytes(each.block) for each in here] == [bytes(each.block) for each in published], "they are back"
            assert len(here) == 3

    asyncio.run(main())


@pytest.mark.parametrize("head", [False, True], ids=["its body", "its head"])
def test_a_restore_names_the_block_that_is_damaged_at_a_peer_and_takes_the_rest_and_another_peer_gives_it(
    tmp_path: Path, head: bool
) -> None:
    async def main(path: Path, *, both: bool) -> None:
        async with clusters(path) as found:

            async def backup(verb: str) -> subprocess.CompletedProcess[str]:
                given = ("backup", verb, "-f", "topology.yaml", "-c", "us-east", "--at", "backups")
                more = ("--offline",) if verb == "create" else ()
                return await asyncio.to_thread(forked_commands.run, *given, *more, cwd=path)

            published = await restored_from(found, ["publish"], ["publish"] * 8)
            made = await backup("create")
            assert made.returncode == 0, made.stderr
            shutil.rmtree(found.data)  # the disk is lost, and the backup is older than what peers have
            for peer in found.peers[: 2 if both else 1]:
                await give(peer, published)
            damage(found.peers[0], 4, head=head)
            done = await backup("restore")
            assert done.returncode == (0 if both else 4), done.stderr
            assert f"took back {2 * (len(published) - (1 if both else 2))} messages of {TOPIC}" in done.stdout
            bad = published[4].header
            before = Position(bad.origin_first.ledger, bad.origin_first.entry - 1)
            named = (
                f"lost: {TOPIC}: nobody has us-east's messages after {before} up to {bad.origin_last} any more: eu-west"
            )
            assert (named in done.stdout) is not both
            assert ("damaged block" in done.stdout) is not both
            async with opened(found.data) as engine:
                here = [bytes(each.block) for each in own(await engine.topic(TOPIC))]
            left = [each for number, each in enumerate(published) if both or number != 4]
            assert here == [bytes(each.block) for each in left]

    asyncio.run(main(tmp_path / "both", both=True))
    asyncio.run(main(tmp_path / "one", both=False))


def test_a_peer_that_is_not_read_for_long_is_asked_to_hold_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.backup.reclaim_peers.ASKED_AGAIN_SECONDS", 0.05)

    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 4)
            one, idle = found.peers
            await give(one, published)
            asked = "us-east", "high-water"

            async def takes_long(*_: object) -> None:
                before = idle.held[asked]
                await eventually(lambda: idle.held[asked] > before + 2, "the other one was asked again and again")

            one.faults = {1: takes_long}
            assert (await found.reclaim()).lost == []

    asyncio.run(main())


def test_a_peer_that_does_not_answer_delays_no_question_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.backup.reclaim_peers.ASKED_AGAIN_SECONDS", 0.05)

    async def main() -> None:
        async with clusters(tmp_path) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 4)
            silent, other = found.peers
            await give(other, published)
            asked = "us-east", "high-water"

            async def takes_long(*_: object) -> None:
                silent.answers = answers = asyncio.Event()
                before = silent.held[asked]
                await eventually(lambda: silent.held[asked] > before, "the silent one was asked")
                before = other.held[asked]
                await eventually(lambda: other.held[asked] > before + 2, "the other one was asked again and again")
                silent.answers = None
                answers.set()

            other.faults = {1: takes_long}
            assert (await found.reclaim()).lost == []

    asyncio.run(main())


def test_a_role_that_may_replicate_some_topics_holds_their_retention_back_and_no_other(tmp_path: Path) -> None:
    """docs/security.md allows a worker such a role. It may not read the log of failovers."""
    apart = "persistent://public/apart/orders"
    keeps_nothing = EngineSettings(policies=TopicPolicies(retention=Retention(0, 0)), maintained=False)
    roles = {"public/default": {"worker": frozenset({"replicate"})}, "public/apart": {"worker": frozenset({"consume"})}}
    guard = PermissionGuard(lambda: Permissions(lambda name: Grants(), roles), lambda: ())
    now = [1_000.0]

    async def main() -> None:
        async with clusters(tmp_path, keeps_nothing) as found:
            published = await restored_from(found, ["publish"], ["publish"] * 8)
            passes: list[int] = []

            async def retains(peer: Peer, _: web.Request) -> None:
                await peer.engine.maintenance.run_once()
                passes.append(1)

            for peer in found.peers:
                peer.guard = guard
                peer.engine.maintenance._monotonic = lambda: now[0]
                other = await peer.engine.topic(apart)
                for _ in range(3):
                    await other.publish([message()])
                await give(peer, published)
                peer.faults = dict.fromkeys(range(1, 6), retains)
            done = await found.reclaim()
            assert done.lost == []
            assert passes, "retention ran between the pages"
            await check(found, published, done)
            peer = found.peers[0]
            topic, other = await peer.engine.topic(TOPIC), await peer.engine.topic(apart)
            await peer.engine.maintenance.run_once()
            assert other.log.trimmed > BEFORE_ALL
            assert topic.log.trimmed == BEFORE_ALL
            assert not peer.engine.maintenance.holds_back(other)
            now[0] += HELD_BACK_SECONDS
            await peer.engine.maintenance.run_once()
            assert topic.log.trimmed > BEFORE_ALL

    asyncio.run(main())


def test_a_store_that_is_nearly_full_does_not_hold_its_retention_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west", EngineSettings(maintained=False)) as engine:
            topic = await engine.topic(TOPIC)
            with patch.object(engine.store, "pressure", lambda: 0.95):
                await engine.maintenance.hold_back("us-east")
                assert not engine.maintenance.holds_back(topic)
            await engine.maintenance.hold_back("us-east")
            assert engine.maintenance.holds_back(topic)
            with patch.object(engine.store, "pressure", lambda: 0.95):
                assert not engine.maintenance.holds_back(topic)

    asyncio.run(main())
