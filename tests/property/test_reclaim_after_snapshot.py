"""A log that went on in the same life after its directory was put back to an earlier state, as by a snapshot of the
disk: a reclaim puts what peers have between its ledgers.

Invariants (DESIGN §3): 5, 10, 12 and 13. Engines, HTTP and the reclaim are real; peers trim, break and lose blocks.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine_support import TOPIC, message, opened
from examples import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_reclaim_faults import (
    DAMAGE,
    FAULTS,
    STEPS,
    Clusters,
    Fault,
    blocks_of,
    check,
    clusters,
    damage,
    finished,
    give,
    in_directory,
    live,
    own,
)
from test_reclaim_lives import both, published

from replicator.backup.dry_run import plan_reclaim
from replicator.engine.lineage import CopyWriter, Deletion, Judgement, RemoteCopy, judge
from replicator.engine.log.store_check import row_findings
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.types import Ack, InitialPosition, SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position


@dataclass
class Runs:
    """Blocks of us-east: those before the snapshot and after it, which peers have, and those since it was put back."""

    shared: list[StoredBlock]
    lost: list[StoredBlock]
    since: list[StoredBlock]

    @property
    def at_peers(self) -> list[StoredBlock]:
        return [*self.shared, *self.lost]


async def own_in(path: Path) -> list[StoredBlock]:
    async with opened(path) as engine:
        return own(await engine.topic(TOPIC))


async def put_back_and_used(found: Clusters, before: list[str], after: list[str], since: list[str]) -> Runs:
    """Live, take a snapshot, live on; put the snapshot back into us-east's directory, and live on there."""
    live_path, copied = found.path / "live", [0]
    await live(live_path, before, copied)
    shutil.copytree(live_path, found.data, dirs_exist_ok=True)
    copied_then = list(copied)
    await live(live_path, after, copied)
    shared = await own_in(found.data)
    lost = (await own_in(live_path))[len(shared) :]
    await live(found.data, since, copied_then)
    return Runs(shared, lost, (await own_in(found.data))[len(shared) :])


@pytest.mark.timeout(1800)
@settings(max_examples=examples(5), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(STEPS, STEPS, STEPS, st.floats(0.1, 1), st.integers(0, 3), FAULTS, FAULTS, DAMAGE, DAMAGE)
def test_invariant_12_nothing_is_lost_that_a_peer_has_of_a_log_that_went_on_since(
    before: list[str],
    after: list[str],
    since: list[str],
    had: float,
    between: int,
    faults: dict[int, Fault],
    others: dict[int, Fault],
    damaged: list[tuple[int, bool]],
    others_damaged: list[tuple[int, bool]],
) -> None:
    async def main(path: Path) -> None:
        async with clusters(path) as found:
            runs = await put_back_and_used(found, ["publish", *before], ["publish", *after], since)
            one, two = found.peers
            await give(one, runs.at_peers, between=between)
            await give(two, runs.at_peers[: max(1, round(had * len(runs.at_peers)))])
            for peer, each in ((one, damaged), (two, others_damaged)):
                for number, head in each:
                    damage(peer, number, head=head)
            one.faults, two.faults = dict(faults), dict(others)
            while (done := await finished(found)) is None:
                killed = [peer for peer in found.peers if peer.gone]
                assert killed, "the reclaim ended early, and all peers are there"
                for peer in killed:
                    peer.gone = False
            known_upto = max((each.upto for each in done.topics), default=BEFORE_ALL)
            await check(found, runs.at_peers, done, known_upto)
            async with opened(found.data) as engine:
                topic = await engine.topic(TOPIC)
                here = own(topic)
                assert here == sorted(here, key=lambda each: each.position)
                kept = {(each.position, bytes(each.block)) for each in here}
                assert {(each.position, bytes(each.block)) for each in [*runs.shared, *runs.since]} <= kept
                assert list(row_findings(engine.store)) == []
                assert known_upto == BEFORE_ALL or known_upto in topic.log, "links find the peer's mark"
                last = topic.log.last
                (new,) = await topic.publish([message(b"new")])
                assert new > last, "invariant 10"
            again = await found.reclaim()
            found_anew = [each for each in again.lost if "nobody" in each and each not in done.lost]
            assert (again.topics, found_anew) == ([], []), again

    in_directory(main)


def test_a_topic_that_only_got_messages_of_others_since_takes_back_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            runs = await put_back_and_used(found, ["publish"], ["publish", "reopen", "publish"], ["copy"])
            await give(found.peers[0], runs.at_peers)
            done = await found.reclaim()
            assert done.lost == []
            assert [(each.between, each.messages) for each in done.topics] == [(True, 4)]
            assert await published(found) == both(runs.at_peers, [])

    asyncio.run(main())


def test_runs_of_two_snapshots_that_were_put_back_come_back_from_different_peers(tmp_path: Path) -> None:
    """The second peer has later messages, and never had those of the first run. It is named."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            one, two = found.peers
            await live(found.data, ["publish"], [0])
            shutil.copytree(found.data, tmp_path / "snapshot")
            shared = await own_in(found.data)
            lost = []
            for peer in (one, two):
                await live(found.data, ["publish", "reopen", "publish"], [0])
                run = (await own_in(found.data))[len(shared) :]
                await give(peer, [*shared, *run])
                lost += run
                shutil.rmtree(found.data)
                shutil.copytree(tmp_path / "snapshot", found.data)
            await live(found.data, ["publish"], [0])
            since = (await own_in(found.data))[len(shared) :]
            plan = await plan_reclaim(found.topology, "us-east")
            assert [(each.between, sorted(each.sources)) for each in plan.topics] == [(True, ["ap-south", "eu-west"])]
            (named,) = (await found.reclaim()).lost
            assert f"{TOPIC}: ap-south lacks what came back after {shared[-1].last}" in named
            assert await published(found) == both([*shared, *lost], since)

    asyncio.run(main())


def test_a_snapshot_that_is_older_than_a_reclaim_takes_back_again_what_that_reclaim_had_put_back(
    tmp_path: Path,
) -> None:
    """The peer's last message is here, so that no link would halt."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            peer = found.peers[0]
            runs = await put_back_and_used(found, ["publish"], ["publish"], ["publish"])
            await give(peer, runs.at_peers)
            shutil.copytree(found.data, tmp_path / "snapshot")
            assert (await found.reclaim()).lost == []
            previous = runs.at_peers[-1].last
            topic = await peer.engine.topic(TOPIC)
            for each in runs.since:
                await topic.writing.copy([CopiedBlock(previous, bytes(each.block))])
                previous = each.last
            peer.stored = blocks_of(topic)
            shutil.rmtree(found.data)
            shutil.move(tmp_path / "snapshot", found.data)
            done = await found.reclaim()
            assert [each.between for each in done.topics] == [True]
            assert await published(found) == both(runs.at_peers, runs.since)

    asyncio.run(main())


def test_what_comes_back_between_is_not_brought_to_a_peer_that_has_later_messages_and_that_is_named(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            one, two = found.peers
            runs = await put_back_and_used(found, ["publish"], ["publish"] * 2, ["publish"])
            await give(one, runs.at_peers)
            await give(two, [*runs.shared, *runs.since])
            done = await found.reclaim()
            (lost,) = done.lost
            assert f"{TOPIC}: ap-south lacks what came back after" in lost
            assert await published(found) == both(runs.at_peers, runs.since)

    asyncio.run(main())


def test_invariant_13_the_place_of_a_ledger_that_was_lost_is_not_taken_for_trimmed(tmp_path: Path) -> None:
    """Everything here is consumed and trimmed since, so the lost positions lie below the trimmed place."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            runs = await put_back_and_used(found, ["publish"], ["publish"] * 2, ["publish"] * 2)
            await give(found.peers[0], runs.at_peers)
            async with opened(found.data) as engine:
                topic = await engine.topic(TOPIC)
                await topic.trimming.trim(topic.log.last)
                mark = runs.lost[-1].last
                assert mark < topic.log.trimmed
                assert not topic.log.had(mark), "a link must stop here"
            done = await found.reclaim()
            assert done.lost == []
            back = dict(await published(found))
            assert [each.position for each in runs.lost] == [at for at in back if at <= mark], "and nothing else"

    asyncio.run(main())


def test_invariant_12_a_deletion_that_only_one_peer_was_told_is_known_after_a_reclaim(tmp_path: Path) -> None:
    """Otherwise the link to the other peer would for ever advise a reclaim that takes nothing back."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            runs = await put_back_and_used(found, ["publish"], ["publish"], ["publish"])
            async with opened(found.data) as engine:
                incarnation, line = (await engine.topic(TOPIC)).incarnation, engine.origin_stores.line
            writer = CopyWriter(TOPIC, "us-east", incarnation, line.store)
            gone = Deletion(TOPIC, "us-east", incarnation, runs.lost[-1].last, 1)
            for peer, told in zip(found.peers, ([], [gone]), strict=True):
                await give(peer, runs.at_peers)
                await peer.engine.origin_stores.take("us-east", {"us-east": line}, [writer], told)
            other = RemoteCopy(incarnation, runs.lost[-1].last, line.store)
            async with opened(found.data) as engine:
                assert judge(other, engine.origin_stores.own_topic(TOPIC)) is Judgement.ABOVE_THE_END
            done = await found.reclaim()
            assert (done.topics, len(done.deleted)) == ([], 1)
            async with opened(found.data) as engine:
                assert judge(other, engine.origin_stores.own_topic(TOPIC)) is Judgement.DELETED_ON_PURPOSE
            assert await published(found) == both(runs.shared, runs.since), "what goes on stays"

    asyncio.run(main())


SUBSCRIBED = "made before", "made since at the first", "made since at the latest"


def test_invariant_5_a_subscription_that_nobody_else_knows_receives_what_comes_back_behind_its_start(
    tmp_path: Path,
) -> None:
    async def subscribe(path: Path, name: str, initial: InitialPosition) -> None:
        async with opened(path) as engine:
            topic = await engine.topic(TOPIC)
            options = SubscribeOptions(SubscriptionType.SHARED, "c", initial=initial)
            consumer = await topic.subscribe(name, options, lambda _: None)
            cursor = topic.subscriptions[name].cursor
            left = list(topic.log.messages_after(cursor.mark_delete, cursor.state.individually_deleted))
            await consumer.acknowledge([Ack(each) for each in left])
            consumer.close()

    async def left_of(found: Clusters) -> dict[str, list[Position]]:
        async with opened(found.data) as engine:
            topic = await engine.topic(TOPIC)
            cursors = {name: topic.subscriptions[name].cursor.state for name in SUBSCRIBED}
            return {
                name: list(topic.log.messages_after(state.mark_delete, state.individually_deleted))
                for name, state in cursors.items()
            }

    async def main() -> None:
        async with clusters(tmp_path) as found:
            live_path = tmp_path / "live"
            await live(live_path, ["publish"], [0])
            await subscribe(live_path, SUBSCRIBED[0], InitialPosition.EARLIEST)
            shutil.copytree(live_path, found.data)
            shared = await own_in(found.data)
            await live(live_path, ["publish"], [0])
            lost = (await own_in(live_path))[len(shared) :]
            await live(found.data, ["publish"], [0])
            await subscribe(found.data, SUBSCRIBED[0], InitialPosition.EARLIEST)
            await subscribe(found.data, SUBSCRIBED[1], InitialPosition.EARLIEST)
            await subscribe(found.data, SUBSCRIBED[2], InitialPosition.LATEST)
            assert await left_of(found) == {name: [] for name in SUBSCRIBED}
            await give(found.peers[0], [*shared, *lost])
            assert (await found.reclaim()).lost == []
            at = lost[0].position
            back = [at, Position(at.ledger, at.entry + 1)]
            assert await left_of(found) == {SUBSCRIBED[0]: back, SUBSCRIBED[1]: back, SUBSCRIBED[2]: []}

    asyncio.run(main())
