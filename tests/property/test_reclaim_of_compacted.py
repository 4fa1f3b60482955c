"""Reclaims of a topic that was compacted and trimmed: what peers have comes back, and the view keeps what only it has.

Invariants (DESIGN §3): 2 and 12. Engines, HTTP and the reclaim are real.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from compaction_support import Keyed, keyed, keyed_batch, messages_in
from engine_support import TOPIC, opened
from examples import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_reclaim_after_snapshot import own_in
from test_reclaim_faults import Clusters, clusters, give, in_directory
from test_reclaim_keeps_what_is_here import give_life
from test_reclaim_lives import published

from replicator.backup import reclaiming
from replicator.backup.dry_run import plan_reclaim
from replicator.engine.compaction import compaction
from replicator.engine.compaction.compactor import Compactor
from replicator.engine.errors import StoreFull
from replicator.engine.lineage import CopyWriter
from snapshots.position import BEFORE_ALL, Position

OWN = "us-east"
GONE = b""
"""Payload of a tombstone."""


async def publish(path: Path, *messages: Keyed) -> None:
    """Publish each message in a block of its own, in a new ledger."""
    async with opened(path) as engine:
        topic = await engine.topic(TOPIC)
        for key, payload in messages:
            await topic.publish([keyed(key, payload)])


async def compact_and_trim(path: Path) -> None:
    """Compact the topic, delete all of its log that may go, and publish the key "since"."""
    async with opened(path) as engine:
        topic = await engine.topic(TOPIC)
        await topic.compaction.run()
        await topic.trimming.trim(topic.log.last)
        await topic.publish([keyed("since", b"s")])
        assert topic.log.trimmed > BEFORE_ALL


async def view_of(found: Clusters) -> dict[str | None, bytes]:
    """Return what a subscription that reads compacted gets: the newest payload of each key, or the tombstone."""
    async with opened(found.data) as engine:
        topic = await engine.topic(TOPIC)
        read = messages_in(topic.compaction.read(BEFORE_ALL, None, 10**6, 1 << 30))
        assert [position for _, _, position, _ in read] == sorted(position for _, _, position, _ in read)
        return {key: payload for key, payload, _, _ in read}


async def snapshot_put_back(found: Clusters, before: Sequence[Keyed], lost: Sequence[Keyed]) -> None:
    """Publish ``before``, then ``lost``; the first peer has both. Put the disk back to the place between them."""
    await publish(found.data, *before)
    shutil.copytree(found.data, found.path / "snapshot")
    await publish(found.data, *lost)
    await give(found.peers[0], await own_in(found.data))
    shutil.rmtree(found.data)
    shutil.move(found.path / "snapshot", found.data)


def lost_positions(found: Clusters) -> list[Position]:
    return [each.header.origin_first for each in found.peers[0].stored][-len(LOST) :]


BEFORE: list[Keyed] = [("a", b"1"), ("b", b"1"), ("d", b"1")]
LOST: list[Keyed] = [("a", b"2"), ("b", b"2"), ("c", b"2"), ("d", GONE)]


def test_what_was_lost_within_a_life_comes_back_into_the_log_and_into_the_view(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            await snapshot_put_back(found, BEFORE, LOST)
            await publish(found.data, ("b", b"3"))
            await compact_and_trim(found.data)
            assert await view_of(found) == {"a": b"1", "b": b"3", "d": b"1", "since": b"s"}
            plan = await plan_reclaim(found.topology, "us-east")
            assert (len(plan.topics), plan.lost) == (1, ())
            done = await found.reclaim()
            assert done.lost == []
            assert [(each.between, each.messages) for each in done.topics] == [(True, len(LOST))]
            assert [at for at, _ in await published(found)][: len(LOST)] == lost_positions(found)
            assert await view_of(found) == {"a": b"2", "b": b"3", "c": b"2", "since": b"s"}
            again = await found.reclaim()
            assert (again.topics, again.lost) == ([], [])

    asyncio.run(main())


def test_what_comes_back_above_the_place_up_to_which_the_view_stands_is_read_from_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            await snapshot_put_back(found, BEFORE, LOST)
            await compact_and_trim(found.data)
            async with opened(found.data) as engine:
                before = (await engine.topic(TOPIC)).compaction.state
            assert (await found.reclaim()).lost == []
            async with opened(found.data) as engine:
                assert (await engine.topic(TOPIC)).compaction.state == before, "no pass is needed"
            newest = {key: payload for key, payload in (await view_of(found)).items() if payload}
            assert newest == {"a": b"2", "b": b"2", "c": b"2", "since": b"s"}

    asyncio.run(main())


def test_an_earlier_life_comes_back_below_and_the_view_keeps_the_newer_message_of_a_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            await publish(found.data, ("a", b"1"), ("c", b"1"))
            earlier = await own_in(found.data)
            await give(found.peers[0], earlier)
            shutil.rmtree(found.data)
            await publish(found.data, ("a", b"2"), ("b", b"2"))
            await compact_and_trim(found.data)
            done = await found.reclaim()
            assert done.lost == []
            assert [(each.below, each.messages) for each in done.topics] == [(True, 2)]
            assert [at for at, _ in await published(found)][:2] == [each.position for each in earlier]
            assert await view_of(found) == {"a": b"2", "b": b"2", "c": b"1", "since": b"s"}

    asyncio.run(main())


def test_a_later_life_comes_back_into_a_compacted_topic_of_an_earlier_one_and_a_new_life_begins(tmp_path: Path) -> None:
    """A volume was not mounted for a while, and is back."""

    async def main() -> None:
        async with clusters(tmp_path) as found:
            await publish(found.data, ("a", b"1"), ("b", b"1"))
            await compact_and_trim(found.data)
            shutil.move(found.data, tmp_path / "volume")
            await publish(found.data, ("a", b"2"), ("c", b"2"))
            later = await own_in(found.data)
            incarnation = later[0].header.incarnation
            await give_life(found.peers[0], later, incarnation)
            async with opened(found.data) as engine:
                line = engine.origin_stores.line
            writer = CopyWriter(TOPIC, OWN, incarnation, line.store)
            await found.peers[0].engine.origin_stores.take(OWN, {OWN: line}, [writer], [])
            shutil.rmtree(found.data)
            shutil.move(tmp_path / "volume", found.data)
            done = await found.reclaim()
            assert (done.lost, len(done.begun)) == ([], 1)
            assert [at for at, _ in await published(found)][-2:] == [each.position for each in later]
            assert await view_of(found) == {"a": b"2", "b": b"1", "c": b"2", "since": b"s"}

    asyncio.run(main())


def test_a_batch_of_which_the_view_has_a_part_gives_the_view_what_is_still_the_newest(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            async with opened(found.data) as engine:
                topic = await engine.topic(TOPIC)
                await topic.publish([keyed_batch([("a", b"1"), ("b", b"1"), ("c", b"1")])])
            shutil.copytree(found.data, tmp_path / "snapshot")
            await publish(found.data, ("b", b"2"))
            await give(found.peers[0], await own_in(found.data))
            shutil.rmtree(found.data)
            shutil.move(tmp_path / "snapshot", found.data)
            await publish(found.data, ("a", b"3"))
            await compact_and_trim(found.data)
            assert (await found.reclaim()).lost == []
            assert await view_of(found) == {"a": b"3", "b": b"2", "c": b"1", "since": b"s"}

    asyncio.run(main())


@pytest.mark.parametrize("step", ["the view", "the last step"])
def test_a_reclaim_that_is_cut_off_near_its_end_is_run_again_and_the_view_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            await snapshot_put_back(found, BEFORE, LOST)
            await publish(found.data, ("b", b"3"))
            await compact_and_trim(found.data)

            async def cut_off(*_: object) -> None:
                raise StoreFull("cut off")

            def cut_off_later(*_: object) -> None:
                raise StoreFull("cut off")

            with monkeypatch.context() as patched:
                if step == "the view":
                    patched.setattr(Compactor, "retained", cut_off_later)
                else:
                    patched.setattr(reclaiming, "finish_put_back", cut_off)
                with pytest.raises(StoreFull):
                    await found.reclaim()
            assert (await found.reclaim()).lost == []
            assert await view_of(found) == {"a": b"2", "b": b"3", "c": b"2", "since": b"s"}

    asyncio.run(main())


def test_a_view_with_too_many_keys_stays_as_it_is_and_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            await snapshot_put_back(found, BEFORE, LOST)
            await publish(found.data, ("b", b"3"))
            await compact_and_trim(found.data)
            monkeypatch.setattr(compaction, "Compactor", lambda: Compactor(keys_max=2))
            (named,) = (await found.reclaim()).lost
            assert "subscriptions that read compacted do not get what came back" in named
            assert await view_of(found) == {"a": b"1", "b": b"3", "d": b"1", "since": b"s"}
            assert {*lost_positions(found)} <= {at for at, _ in await published(found)}, "others do get it"

    asyncio.run(main())


KEYED = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([b"1", b"2", GONE])), min_size=1, max_size=8)


@pytest.mark.timeout(1800)
@settings(max_examples=examples(8), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(KEYED, KEYED, KEYED, st.integers(1, 3), st.integers(1, 100))
def test_the_view_has_the_newest_message_of_each_key_of_all_that_was_ever_published(
    before: list[Keyed], lost: list[Keyed], since: list[Keyed], passes: int, step: int
) -> None:
    """A key that only a trimmed message had deleted can come back, with the newest message that was lost."""

    async def main(path: Path) -> None:
        async with clusters(path) as found:
            await snapshot_put_back(found, before, lost)
            for number in range(passes):
                await publish(found.data, *since[number::passes])
                await compact_and_trim(found.data)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(compaction, "STEP_BYTES", step)
                patched.setattr(compaction, "STEP_ENTRIES", 2)
                assert (await found.reclaim()).lost == []
            ordered = [each for number in range(passes) for each in since[number::passes]]
            newest: dict[str | None, bytes] = dict([*before, *lost, *ordered])
            expected = {key: payload for key, payload in newest.items() if payload} | {"since": b"s"}
            deleted_since = {key: payload for key, payload in dict(lost).items() if payload and not newest[key]}
            view = await view_of(found)
            may = {key for key, payload in deleted_since.items() if view.get(key) == payload}
            assert {key: payload for key, payload in view.items() if key not in may and payload} == expected

    in_directory(main)
