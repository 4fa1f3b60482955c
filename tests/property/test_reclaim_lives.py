"""Reclaims of a store that was started on an empty directory and used, by the command's own code: engines, HTTP and the
reclaim are real.
"""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import forked_commands
import pytest
from engine_support import TOPIC, eventually, opened
from test_reclaim_faults import OTHER, Clusters, Fault, clusters, deletes, give, is_killed, live, own, trims

from replicator.backup.dry_run import Counted, plan_reclaim
from replicator.backup.errors import ReclaimPaused, WorkerNotAsked
from replicator.backup.reclaim_reading import Pace
from replicator.backup.reclaiming import Progress, Reclaimed, reclaim
from replicator.backup.topic_lives import answer_later, unasked
from replicator.cli.backup import reclaim as reclaim_command
from replicator.engine.errors import NotReclaimed, StoreUnusable
from replicator.engine.lineage import Deletion
from replicator.engine.log.store_tables import HighWater
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.restored import MARK, RestoredMark, check_settled, restored_mark
from snapshots.position import BEFORE_ALL, Position


async def lost_and_used(
    found: Clusters, earlier: Sequence[str], since: Sequence[str], name: str = TOPIC
) -> tuple[list[StoredBlock], list[StoredBlock]]:
    """Live a life whose directory is lost, and another one on an empty directory. Return what us-east published in
    each."""
    await live(found.path / f"lost-{name[-4:]}", list(earlier), [0], name)
    async with opened(found.path / f"lost-{name[-4:]}") as engine:
        before = own(await engine.topic(name))
    await live(found.data, list(since), [100], name)
    async with opened(found.data) as engine:
        return before, own(await engine.topic(name))


async def lost_in_two_topics(found: Clusters) -> tuple[list[StoredBlock], list[StoredBlock], list[StoredBlock]]:
    """Do the work of :func:`lost_and_used`, and lose another topic, which is not here since. The first peer has copies
    of what was lost. Return also what us-east published in the other topic."""
    before, since = await lost_and_used(found, ["publish"] * 3, ["publish"])
    await live(found.path / "lost-other", ["publish"] * 3, [0], OTHER)
    async with opened(found.path / "lost-other") as engine:
        other = own(await engine.topic(OTHER))
    await give(found.peers[0], before)
    await give(found.peers[0], other, OTHER)
    return before, since, other


async def published(found: Clusters, name: str = TOPIC) -> list[tuple[Position, bytes]]:
    async with opened(found.data) as engine:
        return [(each.position, bytes(each.block)) for each in own(await engine.topic(name))]


def both(before: Sequence[StoredBlock], since: Sequence[StoredBlock]) -> list[tuple[Position, bytes]]:
    return [(each.header.origin_first, bytes(each.block)) for each in [*before, *since]]


def test_what_was_lost_comes_back_below_what_was_confirmed_since(tmp_path: Path) -> None:
    """A reclaim stops when a peer is killed in the midst of an answer, and no worker may use the store after that.

    The next reclaim, with the peer back, puts all lost messages below those that were published since. A third one
    finds nothing to do.
    """

    async def main() -> None:
        async with clusters(tmp_path) as found:
            steps = ["publish", "copy", "publish", "marker", "reopen", *["publish"] * 6]
            before, since = await lost_and_used(found, steps, ["publish", "copy", "publish"])
            one, two = found.peers
            await give(one, before, between=2)
            await give(two, before[:4])
            one.faults = {3: is_killed}
            with pytest.raises(WorkerNotAsked, match="replicator backup reclaim"):
                await found.reclaim()
            async with opened(found.data) as engine:
                with pytest.raises(StoreUnusable, match="has not finished"):
                    check_settled(found.data, "us-east", restored_mark(engine.store))
            one.gone = False
            done = await found.reclaim()
            assert done.lost == []
            assert [(each.name, each.below) for each in done.topics] == [(TOPIC, True)]
            assert await published(found) == both(before, since)
            async with opened(found.data) as engine:
                topic = await engine.topic(TOPIC)
                said = engine.store.meta(f"put back below {topic.topic_id}")
                assert Position.parse(said) >= since[-1].last, "what others mapped before that says nothing of it"
                assert list(topic.origins.earlier_lives().values()) == [before[-1].last]
            again = await found.reclaim()
            assert (again.topics, again.lost, again.deleted) == ([], [], [])

    asyncio.run(main())


def test_what_peers_trim_meanwhile_is_a_named_loss_in_an_earlier_life_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, since = await lost_and_used(found, ["publish"] * 8, ["publish"])
            one, _ = found.peers
            await give(one, before)
            one.faults = {2: trims(0.7)}
            done = await found.reclaim()
            assert "eu-west trimmed them meanwhile" in str(done.lost)
            back = await published(found)
            assert back == [each for each in both(before, since) if each in back], "the same, without what was trimmed"
            assert back[-1] == both(before, since)[-1]
            async with opened(found.data) as engine:
                topic = await engine.topic(TOPIC)
                (hole,) = topic.origins.left_out("us-east")
                assert all(hole[0] < each[0] <= hole[1] for each in both(before, since) if each not in back)
            again = await found.reclaim(without=frozenset({"ap-south"}))
            remark = unasked("ap-south", "us-east")
            assert again.lost == await lost_by_mark(found) == [*done.lost, remark], "the hole is still there"
            async with opened(found.data) as engine:  # as a worker does whose peer answers later
                mark = restored_mark(engine.store)
                assert mark is not None
                asked = replace(mark, lost=(*done.lost, answer_later("ap-south", "us-east")))
                await engine.remember(MARK, asked.as_json())
            await found.reclaim()
            assert await lost_by_mark(found) == done.lost, "ap-south was asked"

    asyncio.run(main())


def test_a_loss_whose_cause_was_mended_is_not_named_by_the_next_reclaim(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, _ = await lost_and_used(found, ["publish"] * 3, ["publish"])
            await give(found.peers[0], before)
            with patch("replicator.engine.log.commit.putting_back.PutBackWriter._check", refuses):
                done = await found.reclaim()
            assert done.lost == await lost_by_mark(found)
            assert "nothing of it comes back" in str(done.lost)
            assert (await found.reclaim()).lost == await lost_by_mark(found) == []

    asyncio.run(main())


def test_a_loss_that_was_mended_after_a_pause_is_not_named_by_the_reclaim_that_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, since, _ = await lost_in_two_topics(found)

            def pauses(progress: Progress) -> None:
                assert progress.topic == OTHER
                raise ReclaimPaused("after a part of the second topic")

            with (
                patch("replicator.engine.log.commit.putting_back.PutBackWriter._check", refuses),
                pytest.raises(ReclaimPaused),
            ):
                await reclaim(found.topology, "us-east", on_progress=pauses)
            async with opened(found.data) as engine:
                mark = restored_mark(engine.store)
                assert mark is not None
                assert "nothing of it comes back" in str(mark.lost)
            done, _ = await in_small_steps(found)
            assert done.lost == await lost_by_mark(found) == []
            assert await published(found) == both(before, since)

    asyncio.run(main())


def refuses(*_: object) -> None:
    raise NotReclaimed("refused for now")


def test_a_dry_run_says_what_would_come_back_from_whom_and_what_is_missing_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, since = await lost_and_used(found, ["publish"] * 4, ["publish"])
            one, two = found.peers
            await give(one, before)
            await give(two, before)
            assert one.topic is not None
            assert two.topic is not None
            await one.topic.trimming.trim(one.stored[1].last)
            await two.topic.trimming.trim(two.stored[2].last)
            plan = await plan_reclaim(found.topology, "us-east")
            (topic,) = plan.topics
            assert (topic.name, topic.below, topic.upto) == (TOPIC, True, before[-1].last)
            assert set(topic.sources) == {"eu-west", "ap-south"}
            ((_, missing),) = topic.holes
            assert missing == before[1].last
            assert plan.counts == (Counted(4, {"ap-south": 2, "eu-west": 4}),), "each message once, without markers"
            assert await published(found) == both([], since), "nothing was changed"
            asked = ("backup", "reclaim", "-f", "topology.yaml", "-c", "us-east", "--dry-run", "--without", "ap-south")
            said = await asyncio.to_thread(forked_commands.run, *asked, cwd=tmp_path)
            assert said.returncode == 0, said.stderr
            assert f"{TOPIC} (an earlier life, below what is here): 4 messages after " in said.stdout
            assert f"from eu-west (up to {before[-1].last}, 4 messages); missing after " in said.stdout
            assert "nobody can count its messages" in said.stdout
            assert "lost: ap-south was not asked" in said.stdout

    asyncio.run(main())


@pytest.mark.parametrize("befalls", [trims(0.4), deletes], ids=["trims", "deletes"])
def test_a_dry_run_says_what_a_reclaim_then_does_whatever_befalls_a_peer_while_it_counts(
    tmp_path: Path, befalls: Fault
) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, _ = await lost_and_used(found, ["publish"] * 6, ["publish"])
            one, two = found.peers
            await give(one, before)
            await give(two, before[:4])
            one.counted, two.counted = befalls, trims(0.6)
            plan = await plan_reclaim(found.topology, "us-east")
            assert (one.counted, two.counted) == (None, None)
            done = await found.reclaim()
            assert [each.messages for each in done.topics] == [each.messages for each in plan.counts]
            assert plan.counts[0].messages
            ((after, upto),) = plan.topics[0].holes
            assert f"after {after} up to {upto} any more" in str(done.lost)
            assert set(plan.topics[0].sources) == {
                each.engine.cluster for each in found.peers if each.topic is not None
            }

    asyncio.run(main())


def test_a_dry_run_gives_no_count_that_may_be_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.backup.dry_run.COUNTS_MAX", 1)

    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, _ = await lost_and_used(found, ["publish"] * 6, ["publish"])
            one, _ = found.peers
            await give(one, before)
            one.counted = trims(0.4)
            plan = await plan_reclaim(found.topology, "us-east")
            assert plan.topics[0].holes, "what is missing is said all the same"
            assert plan.counts == (Counted(),)

    asyncio.run(main())


def test_a_dry_run_makes_no_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            await live(found.path / "lost", ["publish"], [0])
            async with opened(found.path / "lost") as engine:
                await give(found.peers[0], own(await engine.topic(TOPIC)))
            plan = await plan_reclaim(found.topology, "us-east")
            assert [(each.name, each.made_anew) for each in plan.topics] == [(TOPIC, True)]
            assert not found.data.exists()

    asyncio.run(main())


def test_a_reclaim_that_is_paused_leaves_a_store_on_which_no_worker_starts_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, since = await lost_and_used(found, ["publish"] * 8, ["publish"])
            await give(found.peers[0], before)
            runs = 0
            while True:
                runs, pace = runs + 1, Pace()
                told: list[Progress] = []

                def progressed(progress: Progress, pace: Pace = pace, told: list[Progress] = told) -> None:
                    told.append(progress)
                    pace.pause()

                try:
                    await reclaim(found.topology, "us-east", pace=pace, on_progress=progressed)
                except ReclaimPaused:
                    assert told[0].topic == TOPIC
                    async with opened(found.data) as engine:
                        with pytest.raises(StoreUnusable, match="goes on where it was"):
                            check_settled(found.data, "us-east", restored_mark(engine.store))
                else:
                    break
            assert runs > 1
            assert await published(found) == both(before, since)
            async with opened(found.data) as engine:
                mark = restored_mark(engine.store)
                assert mark is not None
                counted = mark.reclaimed_messages, mark.reclaimed_topics
                assert counted == (sum(each.header.messages for each in before), 1), "of all runs together"

    asyncio.run(main())


async def in_small_steps(found: Clusters, from_directory: Path | None = None) -> tuple[Reclaimed, int]:
    """Reclaim, paused after each part that was written. Return the result of the last run, and the number of runs."""

    def pauses(_: Progress) -> None:
        raise ReclaimPaused("after a part")

    for runs in range(1, 100):
        try:
            done = await reclaim(found.topology, "us-east", from_directory=from_directory, on_progress=pauses)
        except ReclaimPaused:
            continue
        return done, runs
    raise AssertionError("it does not come to an end")


async def lost_by_mark(found: Clusters) -> list[str]:
    async with opened(found.data) as engine:
        mark = restored_mark(engine.store)
        assert mark is not None
        assert mark.settled_at_ms is not None
        return list(mark.lost)


def test_what_peers_lack_of_an_older_store_is_named_also_if_the_reclaim_is_paused_after_it_was_found(
    tmp_path: Path,
) -> None:
    """An operator goes back to an older store, from whose copy another one went on."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            peer, newer = found.peers[0], tmp_path / "newer"
            for name in (TOPIC, OTHER):
                await live(found.data, ["publish"], [0], name)
            shutil.copytree(found.data, newer)
            only_here: dict[str, Position] = {}
            for name in (TOPIC, OTHER):
                await live(found.data, ["publish"], [0], name)
                async with opened(found.data) as engine:
                    only_here[name] = own(await engine.topic(name))[-1].last
            for name in (TOPIC, OTHER):
                await live(newer, ["publish"] * 2, [0], name)
                async with opened(newer) as engine:
                    await give(peer, own(await engine.topic(name)), name)
            async with opened(newer) as engine:  # a store of its own, as an empty one is that a reclaim filled
                await engine.origin_stores.take_place([])
            done, runs = await in_small_steps(found, newer)
            assert runs > 1
            lacks = [f"{name}: eu-west lacks messages of us-east up to {at} that" for name, at in only_here.items()]
            assert [each for each in lacks if not any(lost.startswith(each) for lost in done.lost)] == []
            assert await lost_by_mark(found) == done.lost

    asyncio.run(main())


def test_what_peers_lack_between_the_ledgers_of_a_log_is_named_also_if_the_reclaim_is_paused(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            aside = tmp_path / "aside"
            await live(found.data, ["publish"], [0])
            shutil.copytree(found.data, aside)
            await live(aside, ["publish", "publish", "reopen", "publish"], [0])
            async with opened(aside) as engine:
                there = own(await engine.topic(TOPIC))
            await live(found.data, ["publish"], [0])
            async with opened(found.data) as engine:
                await give(found.peers[0], own(await engine.topic(TOPIC)))
            done, runs = await in_small_steps(found, aside)
            assert runs > 1
            lacks = f"{TOPIC}: eu-west lacks what came back after {there[0].last} up to"
            assert [each for each in done.lost if each.startswith(lacks)]
            assert any(f" up to {there[-1].last}, and no link brings it there" in each for each in done.lost), done.lost
            assert await lost_by_mark(found) == done.lost

    asyncio.run(main())


def test_losses_that_are_only_counted_are_counted_also_if_the_reclaim_is_paused(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, _ = await lost_and_used(found, ["publish"] * 8, ["publish"])
            one, _ = found.peers
            await give(one, before)
            assert one.topic is not None
            await one.topic.trimming.trim(one.stored[2].last)
            with patch("replicator.backup.reclaiming.NAMED_MAX", 0):
                done, runs = await in_small_steps(found)
            assert runs > 1
            assert done.lost == [f"{TOPIC}: nobody has 1 more such ranges"]
            assert await lost_by_mark(found) == done.lost

    asyncio.run(main())


def test_a_topic_of_the_newest_life_and_one_of_an_earlier_life_come_back_in_one_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, since, other = await lost_in_two_topics(found)
            done = await found.reclaim()
            assert {(each.name, each.made_anew, each.below) for each in done.topics} == {
                (TOPIC, False, True),
                (OTHER, True, False),
            }
            assert await published(found) == both(before, since)
            assert await published(found, OTHER) == both(other, [])

    asyncio.run(main())


def test_ctrl_c_pauses_the_command_with_status_3_and_it_goes_on(tmp_path: Path) -> None:
    """The command reads a byte a second, so that it still waits when it is asked to stop."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, since = await lost_and_used(found, ["publish"] * 4, ["publish"])
            await give(found.peers[0], before)
            asked = ("backup", "reclaim", "-f", "topology.yaml", "-c", "us-east")
            files = {"stdout": tmp_path / "said", "stderr": tmp_path / "told"}
            slow = forked_commands.start((*asked, "--bytes-per-second", "1"), cwd=tmp_path, **files)
            await eventually(lambda: found.peers[0].pages > 0, "a page was read", 60)
            slow.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(slow.wait, 30) == 3
            told = files["stderr"].read_text()
            assert "pausing" in told
            assert "goes on from there" in told
            assert "Traceback" not in told
            done = await asyncio.to_thread(forked_commands.run, *asked, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert await published(found) == both(before, since)

    asyncio.run(main())


class Terminal(io.StringIO):
    def __init__(self, *, is_one: bool = True) -> None:
        super().__init__()
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one


@pytest.mark.parametrize(
    ("is_terminal", "pause_seconds"), [(True, 0.0), (True, 1e9), (False, 0.0)], ids=["shown", "too soon", "a file"]
)
def test_a_reclaim_shows_at_a_terminal_every_few_seconds_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, pause_seconds: float
) -> None:
    monkeypatch.setattr("replicator.cli.backup.PROGRESS_SECONDS", pause_seconds)
    monkeypatch.setattr("sys.stderr", terminal := Terminal(is_one=is_terminal))

    async def main() -> None:
        async with clusters(tmp_path) as found:
            before, _, other = await lost_in_two_topics(found)
            shown = await asyncio.to_thread(reclaim_command, tmp_path / "topology.yaml", "us-east")
            assert shown.status == 0
            lines = re.findall(
                r"topic (\d) of (\d): (\d+) messages of (\S+); read \d+ MB in all\n", terminal.getvalue()
            )
            if not is_terminal or pause_seconds:
                assert not lines
                return
            assert [(number, topics) for number, topics, *_ in lines] == sorted((number, "2") for number, *_ in lines)
            counts = {name: [int(messages) for *_, messages, each in lines if each == name] for name in (TOPIC, OTHER)}
            for name, blocks in ((TOPIC, before), (OTHER, other)):
                assert len(counts[name]) > 1, "more than one part came back"
                assert counts[name] == sorted(counts[name])
                assert counts[name][-1] == sum(each.header.messages for each in blocks)

    asyncio.run(main())


def test_lives_that_different_peers_have_come_back_in_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            lives = []
            for peer, name in zip(found.peers, ("first", "second"), strict=True):
                await live(found.path / name, ["publish", "reopen", "publish"], [0])
                async with opened(found.path / name) as engine:
                    lives.append(own(await engine.topic(TOPIC)))
                await give(peer, lives[-1])
            await live(found.data, ["publish"], [100])
            async with opened(found.data) as engine:
                since = own(await engine.topic(TOPIC))
            done = await found.reclaim()
            assert done.lost == []
            assert [each.below for each in done.topics] == [True, True]
            assert await published(found) == both([*lives[0], *lives[1]], since)

    asyncio.run(main())


def test_two_lives_that_one_peer_keeps_come_back_below_the_third(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            peer, lives = found.peers[0], []
            for name in ("first", "second"):
                await live(found.path / name, ["publish", "reopen", "publish"], [0])
                async with opened(found.path / name) as engine:
                    topic = await engine.topic(TOPIC)
                    lives.append(own(topic))
                    incarnation = topic.incarnation
                copy = await peer.engine.topic(TOPIC)
                if (mark := copy.origins.high_water("us-east")) is not None:  # an operator decided to keep both
                    later = {"us-east": HighWater(incarnation, mark.position)}
                    await peer.engine.writer.keep_both(copy.tail, later)
                previous = BEFORE_ALL if mark is None else mark.position
                for each in lives[-1]:
                    await copy.writing.copy([CopiedBlock(previous, bytes(each.block))])
                    previous = each.header.origin_last
            await live(found.data, ["publish"], [100])
            async with opened(found.data) as engine:
                since = own(await engine.topic(TOPIC))
            plan = await plan_reclaim(found.topology, "us-east")
            assert [each.below for each in plan.topics] == [True, True]
            assert (await found.reclaim()).lost == []
            assert await published(found) == both([*lives[0], *lives[1]], since)
            shutil.rmtree(found.data)  # once more, onto an empty directory
            assert [each.below for each in (await found.reclaim()).topics] == [False, True]
            assert await published(found) == both(*lives)

    asyncio.run(main())


def test_a_life_that_was_deleted_on_purpose_is_named_by_its_last_position_where_another_life_comes_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            peer = found.peers[0]
            deleted, _ = await lost_and_used(found, ["publish"] * 3, ["publish"] * 2)
            await give(peer, deleted)
            async with opened(found.data) as engine:
                kept = own(topic := await engine.topic(TOPIC))
                life, line = topic.incarnation, engine.origin_stores.line
            assert peer.topic is not None
            mark = peer.topic.origins.high_water("us-east")
            assert mark is not None
            gone = Deletion(TOPIC, "us-east", mark.incarnation, deleted[-1].last, 1)
            await peer.engine.origin_stores.take("us-east", {"us-east": line}, [], [gone])
            await peer.engine.writer.keep_both(peer.topic.tail, {"us-east": HighWater(life, mark.position)})
            previous = mark.position
            for each in kept:
                await peer.topic.writing.copy([CopiedBlock(previous, bytes(each.block))])
                previous = each.header.origin_last
            shutil.rmtree(found.data)
            text = f"{TOPIC} was deleted on purpose up to {deleted[-1].last} (eu-west still has a copy): nothing of "
            plan = await plan_reclaim(found.topology, "us-east")
            done = await found.reclaim()
            assert plan.deleted == tuple(done.deleted) == (f"{text}that life comes back; other lives of it do",)
            assert await published(found) == both([], kept)
            again = await found.reclaim()
            assert again.deleted == [f"{text}that life comes back"], "this time no other life comes back"

    asyncio.run(main())


def test_topics_of_several_reclaims_are_counted_once_each(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            one, _ = found.peers
            before, _ = await lost_and_used(found, ["publish"] * 3, ["publish"])
            other, _ = await lost_and_used(found, ["publish"] * 2, ["publish"], OTHER)

            async def counts() -> tuple[int, int]:
                await found.reclaim()
                async with opened(found.data) as engine:
                    mark = restored_mark(engine.store)
                    assert mark is not None
                    return mark.reclaimed_messages, mark.reclaimed_topics

            await give(one, before[:2])
            one_each = before[0].header.messages
            assert await counts() == (2 * one_each, 1)
            assert await counts() == (2 * one_each, 1), "one that brings nothing changes nothing"
            await give(one, other, OTHER)
            assert await counts() == (4 * one_each, 2)
            two = found.peers[1]
            await give(two, before)
            assert await counts() == (5 * one_each, 2), "a topic that it counted already"
            async with opened(found.data) as engine:
                await engine.remember(MARK, RestoredMark("1", "backup", 1, 1).as_json())
            assert await counts() == (0, 0), "what came back before a restore does not count after it"

    asyncio.run(main())
