"""Copies of a store whose bodies lie in segments, made while it is written, trimmed and compacted."""

from __future__ import annotations

import asyncio
import io
import random
from pathlib import Path
from typing import Any

import pytest
from engine_support import logged, message, opened
from segment_support import check_places, segments_of, small_segments

from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockView
from replicator.engine.log.copy_stream import encode_damaged, encode_end, encode_piece, read_pieces
from replicator.engine.log.segments.files import listed
from replicator.engine.log.store_check import check_store
from replicator.engine.log.store_copy import DATA_FILE, DamagedBlock, Piece, copy_pieces, is_store_file
from snapshots.position import Position


def written(pieces: list[Piece], directory: Path) -> Path:
    for piece in pieces:
        assert is_store_file(piece.file)
        place = directory / piece.file
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("ab") as file:
            file.write(piece.content or b"")
    return directory


async def restored(directory: Path) -> dict[str, dict[Position, bytes]]:
    """Restore a backup; verify and return every block of it."""
    async with opened(directory, settings=small_segments()) as engine:
        check_places(engine.store)
        found = {
            topic.name.rpartition("/")[2]: {position: entry for _, position, entry in logged(topic)}
            for topic in engine.topics()
        }
        for topic in engine.topics():
            await topic.publish([message(b"it goes on" * 2_000)])
        check_places(engine.store)
        return found


def test_invariant_1_a_copy_is_of_one_moment_while_all_is_written_trimmed_and_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicator.engine.log.writer.COMPACTION_PAUSE_SECONDS", 0.001)
    chance = random.Random(5)
    confirmed: dict[str, dict[Position, bytes]] = {"kept": {}, "trimmed": {}}
    trimming: dict[str, Position] = {}
    """Position up to which each topic was asked to trim."""

    async def publish(engine: Engine, name: str) -> None:
        topic = await engine.topic(name)
        while True:
            entries = [message(chance.randbytes(chance.randrange(1, 9_000))) for _ in range(chance.randrange(1, 4))]
            for position, entry in zip(await topic.publish(entries), entries, strict=True):
                confirmed[name][position] = entry

    async def reclaim(engine: Engine) -> None:
        topic = await engine.topic("trimmed")
        while True:
            trimming["trimmed"] = topic.log.last
            await topic.trimming.trim(topic.log.last)
            passing = await engine.topic("passing")
            await passing.publish([message(chance.randbytes(9_000))])
            await engine.deleting.delete("passing")
            await engine.writer.compact_segments()

    async def main() -> None:
        async with opened(tmp_path / "live", settings=small_segments()) as engine:
            tasks = [asyncio.create_task(publish(engine, name)) for name in confirmed]
            tasks.append(asyncio.create_task(reclaim(engine)))
            for number in range(5):
                while len(confirmed["kept"]) < 60 * (number + 1):  # noqa: ASYNC110 - the writer has no event for it
                    await asyncio.sleep(0.001)
                before = {name: dict(entries) for name, entries in confirmed.items()}
                pieces = await asyncio.to_thread(lambda: list(copy_pieces(engine.store, ())))
                after = {name: dict(entries) for name, entries in confirmed.items()}
                trimmed = trimming["trimmed"]
                found = await restored(written(pieces, tmp_path / f"copy-{number}"))
                assert before["kept"].items() <= found["kept"].items()
                lost = before["trimmed"].keys() - found["trimmed"].keys()
                assert all(position <= trimmed for position in lost)
                for name, entries in after.items():
                    assert all(found[name][at] == entries[at] for at in found[name].keys() & entries.keys())
            done, _ = await asyncio.wait(tasks, timeout=0)
            assert not done, [task.exception() for task in done]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # No copy holds segments any more: they are used again, whatever was written meanwhile.
            segments = len(list(listed(segments_of(tmp_path / "live"))))
            topic = await engine.topic("trimmed")
            for _ in range(100):  # 50 segments and more
                await topic.publish([message(chance.randbytes(9_000)) for _ in range(4)])
                await topic.trimming.trim(topic.log.last)
            assert len(list(listed(segments_of(tmp_path / "live")))) < segments + 10

    asyncio.run(main())


def test_what_was_deleted_from_segments_is_in_no_piece(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "live", settings=small_segments()) as engine:
            kept, secret = await engine.topic("kept"), await engine.topic("secret")
            for number in range(30):
                await kept.publish([message(b"%d" % number * 1_000)])
                await secret.publish([message(b"do not tell" * 200)])
            there = b"".join(each.read_bytes() for each in segments_of(tmp_path / "live").iterdir())
            assert there.count(b"do not tell") == 30 * 200
            expected = {position: entry for _, position, entry in logged(kept)}
            await engine.deleting.delete("secret")
            await engine.deleting.sweeper.swept()
            pieces = list(copy_pieces(engine.store, ()))
            assert len({piece.file for piece in pieces}) > 1
            assert not [piece for piece in pieces if b"do not tell" in (piece.content or b"")]
        found = await restored(written(pieces, tmp_path / "copy"))
        assert found == {"kept": expected}

    asyncio.run(main())


def test_invariant_2_a_copy_names_each_block_that_is_damaged_and_has_all_others(tmp_path: Path) -> None:
    """One segment is gone, in another one a byte has flipped, a third one was swapped for other bytes."""

    async def publish() -> dict[Position, bytes]:
        async with opened(tmp_path / "live", settings=small_segments()) as engine:
            topic = await engine.topic("a")
            for _ in range(40):
                await topic.publish([message(random.Random(3).randbytes(9_000)) for _ in range(2)])
            return {position: entry for _, position, entry in logged(topic)}

    async def copied() -> tuple[list[Piece], list[DamagedBlock], list[tuple[int, Position]]]:
        async with opened(tmp_path / "live", settings=small_segments()) as engine:
            told: list[tuple[int, Position]] = []
            engine.store.on_damaged = lambda topic_id, position: told.append((topic_id, position))
            found = list(copy_pieces(engine.store, ()))
            damaged = [each for each in found if isinstance(each, DamagedBlock)]
            return [each for each in found if isinstance(each, Piece)], damaged, told

    async def read(directory: Path, expected: dict[Position, bytes], damaged: list[DamagedBlock]) -> None:
        async with opened(directory, settings=small_segments()) as engine:
            check_places(engine.store)
            (record,) = engine.store.topics()
            refused = {(each.first, each.last) for each in damaged}
            for position, entry in expected.items():
                before = Position(position.ledger, position.entry - 1)
                if any(first <= position <= last for first, last in refused):
                    with pytest.raises(BlockCorrupt):
                        engine.store.read_blocks(record.topic_id, before, position, bytes_max=0)
                else:
                    ((block,), _) = engine.store.read_blocks(record.topic_id, before, position, bytes_max=0)
                    assert bytes(BlockView(block.block).entry(position.entry - block.position.entry)) == entry
            assert [each.first for each in check_store(engine.store).damaged] == [each.first for each in damaged]

    expected = asyncio.run(publish())
    whole = asyncio.run(copied())
    assert whole[1:] == ([], [])
    gone, flipped, swapped, *rest = sorted(segments_of(tmp_path / "live").iterdir())
    assert rest
    gone.unlink()
    content = bytearray(flipped.read_bytes())
    content[5_000] ^= 4
    flipped.write_bytes(content)
    swapped.write_bytes(b"of somebody else " * (swapped.stat().st_size // 17))
    pieces, damaged, told = asyncio.run(copied())
    assert {each.topic for each in damaged} == {"persistent://public/default/a"}
    assert [position for _, position in told] == [each.first for each in damaged], "a running worker mends them"
    assert 2 < len(damaged) < 40
    assert not [piece for piece in pieces if b"of somebody else" in (piece.content or b"")]
    asyncio.run(read(written(pieces, tmp_path / "copy"), expected, damaged))
    stream = io.BytesIO(b"".join([*map(encode_damaged, damaged), *map(encode_piece, pieces), encode_end()]))
    assert list(read_pieces(stream.read)) == [*damaged, *pieces]


def test_a_copy_that_is_under_way_keeps_what_it_reads_though_it_is_trimmed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "live", settings=small_segments()) as engine:
            topic = await engine.topic("a")

            async def publish() -> None:
                for _ in range(20):
                    await topic.publish([message(random.Random(1).randbytes(9_000))])

            await publish()
            expected = {position: entry for _, position, entry in logged(topic)}
            copying: Any = copy_pieces(engine.store, ())
            pieces = [next(copying)]
            for _ in range(3):
                await publish()
                await topic.trimming.trim(topic.log.last)
            pieces += copying
            assert pieces[0].file == DATA_FILE
            assert (await restored(written(pieces, tmp_path / "copy")))["a"] == expected
            await publish()
            await topic.trimming.trim(topic.log.last)
            engine.store.segments.wait_for_deleted()
            assert len(list(listed(segments_of(tmp_path / "live")))) <= 4, "they are given back after it"

    asyncio.run(main())
