from __future__ import annotations

import struct
from collections.abc import Callable

import google_crc32c
import pytest
from engine_support import make_block
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log import block as blocks
from replicator.engine.log.block import BlockKind, BlockView, build_block, read_header, verify_block
from snapshots.position import Position

ORIGIN_LENGTH_AT, ENTRIES_AT, MESSAGES_AT, FIRST_ENTRY_AT, NAME_AT = 14, 16, 20, 40, 56

payloads = st.lists(st.binary(max_size=50), min_size=1, max_size=30)


def resealed(block: bytes, change: Callable[[bytearray], None]) -> bytes:
    """Return a changed block with right checksums, as a faulty writer makes it, and not a faulty disk."""
    changed = bytearray(block)
    change(changed)
    columns_at = NAME_AT + int.from_bytes(changed[ORIGIN_LENGTH_AT : ORIGIN_LENGTH_AT + 2], "little")
    changed[8:12] = struct.pack("<I", google_crc32c.value(bytes(changed[columns_at:])))
    changed[4:8] = struct.pack("<I", google_crc32c.value(bytes(changed[8:columns_at])))
    return bytes(changed)


@given(payloads, st.data())
def test_a_block_gives_back_what_it_was_made_of(entries: list[bytes], data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 1000), min_size=len(entries), max_size=len(entries)))
    kind = data.draw(st.sampled_from([BlockKind.MESSAGES]))
    first = Position(data.draw(st.integers(1, 2**64 - 1)), data.draw(st.integers(0, 2**31)))
    block = make_block(first, entries, origin="eu-west", incarnation=2**63, kind=kind, batch_sizes=sizes)
    header = verify_block(block)
    assert (header.kind, header.origin, header.incarnation) == (kind, "eu-west", 2**63)
    assert (header.origin_first, header.entries, header.messages) == (first, len(entries), sum(sizes))
    assert header.origin_last == (first.ledger, first.entry + len(entries) - 1)
    view = BlockView(block, header)
    assert [bytes(entry) for entry in view.entries()] == entries
    assert [bytes(view.entry(index)) for index in range(len(view))] == entries
    assert view.batch_sizes.tolist() == sizes


@pytest.mark.parametrize("size", [100, 9_000])
def test_what_is_put_before_a_block_changes_nothing_of_it_and_large_entries_neither(size: int) -> None:
    entries = [bytes([number]) * (size + number) for number in range(7)]
    made = [
        build_block(
            kind=BlockKind.MESSAGES,
            origin="us-east",
            incarnation=1,
            origin_first=Position(3, 10),
            publish_time_ms=5,
            entries=given_as,
            batch_sizes=[1] * len(entries),
            before=before,
        )
        for before, given_as in ((b"", entries), (b"prefix", entries), (b"", [memoryview(each) for each in entries]))
    ]
    assert made[1] == b"prefix" + made[0]
    assert made[2] == made[0]
    header = verify_block(made[0])
    assert [bytes(entry) for entry in BlockView(made[0], header).entries()] == entries


@given(payloads, st.data())
def test_a_slice_is_the_block_that_its_entries_would_have_made(entries: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(entries) - 1))
    stop = data.draw(st.integers(start + 1, len(entries)))
    sizes = list(range(1, len(entries) + 1))
    view = BlockView(make_block(Position(3, 10), entries, batch_sizes=sizes))
    expected = make_block(Position(3, 10 + start), entries[start:stop], batch_sizes=sizes[start:stop])
    assert view.slice(start, stop) == expected
    assert [bytes(entry) for entry in view.entries(start, stop)] == entries[start:stop]


@given(payloads, st.data())
def test_any_flipped_bit_is_found(entries: list[bytes], data: st.DataObject) -> None:
    block = bytearray(make_block(Position(3, 0), entries))
    bit = data.draw(st.integers(0, len(block) * 8 - 1))
    block[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BlockCorrupt):
        verify_block(block)


@given(payloads, st.data())
def test_a_block_that_is_cut_or_has_a_tail_is_refused_by_its_header_alone(
    entries: list[bytes], data: st.DataObject
) -> None:
    block = make_block(Position(3, 0), entries)
    cut = data.draw(st.integers(0, len(block) - 1))
    for wrong in (block[:cut], block + b"\0"):
        with pytest.raises(BlockCorrupt):
            read_header(wrong)


@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    for wrong in (noise, blocks.MAGIC + noise):
        with pytest.raises(BlockCorrupt):
            verify_block(wrong)


@pytest.mark.parametrize("origin", ["", "x" * 65, "us east", "us\0east", "../x", "ü"])
def test_an_origin_that_no_cluster_can_have_is_refused(origin: str) -> None:
    block = make_block(Position(3, 0), [b"entry"], origin="us-east")
    name = origin.encode("latin-1")

    def rename(changed: bytearray) -> None:
        changed[NAME_AT : NAME_AT + len(b"us-east")] = name
        struct.pack_into("<H", changed, ORIGIN_LENGTH_AT, len(name))

    with pytest.raises(BlockCorrupt, match="origin"):
        verify_block(resealed(block, rename))


@pytest.mark.parametrize("first_entry", [2**32 - 1, 2**63, 2**64 - 1])
def test_entry_ids_past_the_limit_of_a_ledger_are_refused(first_entry: int) -> None:
    block = make_block(Position(3, 0), [b"a", b"b"])
    with pytest.raises(BlockCorrupt, match="plausible"):
        verify_block(resealed(block, lambda changed: struct.pack_into("<Q", changed, FIRST_ENTRY_AT, first_entry)))


def test_entries_whose_ends_go_back_are_refused() -> None:
    block = make_block(Position(3, 0), [b"aaaa", b"bb", b"c"])
    ends_at = read_header(block).columns_at
    with pytest.raises(BlockCorrupt, match="columns"):
        verify_block(resealed(block, lambda changed: struct.pack_into("<I", changed, ends_at, 7)))


def test_a_sum_of_messages_that_is_not_that_of_the_batches_is_refused() -> None:
    block = make_block(Position(3, 0), [b"a", b"b"], batch_sizes=[2, 3])
    with pytest.raises(BlockCorrupt, match="columns"):
        verify_block(resealed(block, lambda changed: struct.pack_into("<I", changed, MESSAGES_AT, 6)))


def test_an_entry_without_a_message_is_refused_unless_it_is_a_marker() -> None:
    assert verify_block(make_block(Position(3, 0), [b"a"], kind=BlockKind.MARKERS)).messages == 0
    with pytest.raises(BlockCorrupt, match="columns"):
        verify_block(make_block(Position(3, 0), [b"a", b"b"], batch_sizes=[5, 0]))
    with pytest.raises(BlockCorrupt, match="columns"):
        verify_block(make_block(Position(3, 0), [b"a"], kind=BlockKind.MARKERS, batch_sizes=[1]))


def test_invariant_11_a_block_over_the_limit_is_neither_made_nor_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    block = make_block(Position(3, 0), [b"x" * 600, b"y" * 600])
    monkeypatch.setattr(blocks, "BLOCK_BYTES_MAX", 1000)
    with pytest.raises(BlockCorrupt, match="limit"):
        make_block(Position(3, 0), [b"x" * 600, b"y" * 600])
    with pytest.raises(BlockCorrupt):
        verify_block(block)


def test_an_empty_block_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        build_block(
            kind=BlockKind.MESSAGES,
            origin="a",
            incarnation=1,
            origin_first=Position(1, 0),
            publish_time_ms=0,
            entries=[],
            batch_sizes=[],
        )


@given(payloads, st.data())
def test_a_flipped_bit_of_a_header_is_found_without_reading_the_body(entries: list[bytes], data: st.DataObject) -> None:
    """A link passes over blocks by their header alone: a wrong origin must not make it skip what it has to copy."""
    block = bytearray(make_block(Position(3, 0), entries))
    columns_at = read_header(bytes(block)).columns_at
    bit = data.draw(st.integers(0, columns_at * 8 - 1))
    block[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BlockCorrupt):
        read_header(bytes(block))


def for_some(only: frozenset[str] | None, entries: int = 3) -> bytes:
    return build_block(
        kind=BlockKind.MESSAGES,
        origin="us-east",
        incarnation=1,
        origin_first=Position(3, 10),
        publish_time_ms=5,
        entries=[bytes([number]) * 20 for number in range(entries)],
        batch_sizes=[1] * entries,
        only=only,
    )


@given(st.none() | st.frozensets(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True), max_size=20))
def test_a_block_says_for_which_clusters_it_is_and_so_do_its_parts(only: frozenset[str] | None) -> None:
    block = for_some(only)
    header = verify_block(block)
    assert header.only == only
    assert header.is_for("us-east"), "where it was published"
    assert header.is_for("elsewhere") is (only is None or "elsewhere" in only)
    view = BlockView(block, header)
    assert [bytes(entry)[:1] for entry in view.entries()] == [b"\x00", b"\x01", b"\x02"]
    part = view.slice(1, 3)
    assert verify_block(part).only == only
    assert (len(block) == len(for_some(None))) is (only is None)


def test_a_block_for_everybody_is_the_same_bytes_as_ever() -> None:
    assert int.from_bytes(for_some(None)[12:14], "little") == BlockKind.MESSAGES


def test_names_of_clusters_that_there_cannot_be_are_corrupt_and_too_many_are_refused() -> None:
    block = for_some(frozenset({"eu", "ap"}))
    at = block.index(b"ap,eu")
    for wrong in (b"ap eu", b"ap,,u", b",p,eu", b"ap,e\xff"):
        changed = bytearray(block)
        changed[at : at + 5] = wrong
        columns_at = at + 5
        changed[4:8] = struct.pack("<I", google_crc32c.value(bytes(changed[8:columns_at])))
        with pytest.raises(BlockCorrupt):
            read_header(bytes(changed))
    for size in (len(block), at, at - 1, 57):
        with pytest.raises(BlockCorrupt):
            read_header(block[:size] if size < len(block) else block[:-1])
    with pytest.raises(BlockCorrupt, match="their names need more than 4096 bytes"):
        for_some(frozenset(f"cluster-{number}" for number in range(1_000)))
