"""Copies of a store while its writer writes."""

from __future__ import annotations

import asyncio
import io
from itertools import pairwise
from pathlib import Path

import pytest
from engine_support import TOPIC, message, opened

from replicator.engine.errors import StoreCopyFailed, StoreUnusable
from replicator.engine.log.copy_stream import (
    copy_head,
    encode_end,
    encode_head,
    encode_piece,
    read_head,
    read_pieces,
)
from replicator.engine.log.store import Store
from replicator.engine.log.store_copy import PIECE_BYTES, CopyLimits, Piece, copy_pieces, is_store_file
from replicator.engine.log.store_files import RESTORING
from snapshots.position import BEFORE_ALL, Position

END = Position(2**62, 0)


def written(pieces: list[Piece], directory: Path) -> Path:
    for name in {piece.file for piece in pieces}:
        assert is_store_file(name)
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"".join(piece.content or b"" for piece in pieces if piece.file == name))
    return directory


def entries_in(directory: Path) -> int:
    store = Store(directory, cluster="us-east", size_max=1 << 30)
    try:
        topic = store.topic(TOPIC)
        assert topic is not None
        blocks, after, count = True, BEFORE_ALL, 0
        while blocks:
            found, after = store.read_blocks(topic.topic_id, after, END, bytes_max=1 << 20)
            blocks, count = bool(found), count + sum(each.header.entries for each in found)
        return count
    finally:
        store.close()


def test_invariant_1_a_copy_has_all_that_was_confirmed_before_it_began_and_opens(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "live") as engine:
            topic = await engine.topic(TOPIC)
            confirmed, stop = 0, False

            async def publish() -> None:
                nonlocal confirmed
                while not stop:
                    await topic.publish([message(b"%d" % number * 300) for number in range(50)])
                    confirmed += 50

            publishing = asyncio.create_task(publish())
            for number in range(4):
                while confirmed < 1000 * (number + 1):  # noqa: ASYNC110 - the writer has no event for it
                    await asyncio.sleep(0.001)
                before = confirmed
                pieces = await asyncio.to_thread(lambda: list(copy_pieces(engine.store, ())))
                copied = await asyncio.to_thread(entries_in, written(pieces, tmp_path / f"copy-{number}"))
                assert before <= copied <= confirmed + 50
            stop = True
            await publishing

    asyncio.run(main())


def test_what_did_not_change_is_the_same_pieces_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "live") as engine:
            topic = await engine.topic(TOPIC)
            for number in range(40):
                await topic.publish([message(bytes([number]) * 1_000_000)])
            first = list(copy_pieces(engine.store, ()))
            known = {piece.digest for piece in first}
            await topic.publish([message(b"one more")])
            second = list(copy_pieces(engine.store, known))
            assert all(len(piece.content or b"") in (0, piece.size) for piece in second)
            assert sum(piece.content is not None for piece in second) <= 4 < len(second)
            assert {piece.digest for piece in second if piece.content is None} <= known
            for piece, following in pairwise(second):
                assert piece.size == PIECE_BYTES or piece.file != following.file

    asyncio.run(main())


def test_invariant_11_a_copy_that_takes_too_long_or_fills_the_store_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "live") as engine:
            topic = await engine.topic(TOPIC)
            for _ in range(5):
                await topic.publish([message(b"x" * 1_000_000)])
            with pytest.raises(StoreCopyFailed, match="took more than 0 s"):
                list(copy_pieces(engine.store, (), CopyLimits(seconds_max=0)))
            copying = copy_pieces(engine.store, (), CopyLimits(room_left_min=1.01))
            next(copying)
            await topic.publish([message(b"y" * 3_000_000)])
            with pytest.raises(StoreCopyFailed, match="raise store"):
                list(copying)
            assert len(list(copy_pieces(engine.store, ()))) >= 5, "and the next one is made"

    asyncio.run(main())


def test_a_copy_that_nobody_reads_to_its_end_holds_no_pages_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "live") as engine:
            topic = await engine.topic(TOPIC)
            for _ in range(5):
                await topic.publish([message(b"x" * 1_000_000)])
            copying = copy_pieces(engine.store, ())
            next(copying)
            assert "\n" in engine.store.env.readers().strip(), "a reader is open"
            await asyncio.to_thread(copying.close)
            before = engine.store.size_bytes()
            for number in range(300):
                await engine.remember("again", "z" * 100_000 + str(number))
            assert engine.store.size_bytes() - before < 3_000_000, "pages that are freed are used again"

    asyncio.run(main())


def test_a_stream_that_is_cut_off_anywhere_is_no_copy(tmp_path: Path) -> None:
    async def main() -> bytes:
        async with opened(tmp_path / "live") as engine:
            await (await engine.topic(TOPIC)).publish([message()])
            marks = {TOPIC: {"eu-west": Position(3, 4)}}
            head = copy_head(engine.store, {TOPIC: (1, Position(2, 3))}, version="1", made_at_ms=5, marks=marks)
            pieces = list(copy_pieces(engine.store, ()))
            known = Piece(pieces[0].file, pieces[0].digest, pieces[0].size, None)
            return b"".join([encode_head(head), *map(encode_piece, [*pieces, known]), encode_end()])

    stream = asyncio.run(main())
    reading = io.BytesIO(stream)
    head = read_head(reading.read)
    assert head["topics"] == {TOPIC: {"incarnation": 1, "lac": "2:3", "marks": {"eu-west": "3:4"}}}
    pieces = list(read_pieces(reading.read))
    assert pieces[-1].content is None
    assert (pieces[0].content or b"")[:1] is not None
    for end in (0, 3, 40, len(stream) // 2, len(stream) - 1):
        cut = io.BytesIO(stream[:end])
        with pytest.raises(StoreCopyFailed, match="cut off"):
            assert [read_head(cut.read), *read_pieces(cut.read)]
    with pytest.raises(StoreCopyFailed, match="why"):
        list(read_pieces(io.BytesIO(encode_end("why")).read))
    with pytest.raises(StoreCopyFailed, match="over the limit"):
        list(read_pieces(io.BytesIO(b"C\xff\xff\xff\xff").read))


def test_no_store_is_opened_where_a_restore_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / RESTORING).mkdir()
    with pytest.raises(StoreUnusable, match="replicator backup restore"):
        Store(tmp_path, cluster="us-east", size_max=1 << 20)
    assert [each.name for each in tmp_path.iterdir()] == [RESTORING]
