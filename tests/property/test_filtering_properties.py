"""Filtered blocks against a plain set of messages. A destination gets exactly the messages that stay, whole, in order
and by identity, and knows exactly which it does not have (invariants 2, 3 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from engine_support import make_block, marker
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.commit.new_blocks import select_new
from replicator.engine.log.compression import compress, decompress
from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry, split_batch
from replicator.engine.log.requests import CopiedBlock, NewHole
from replicator.engine.log.store_tables import HighWater
from replicator.metadata.metadata_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, MessageMetadata, SingleMessageMetadata
from replicator.pipeline.live.filtering import Chain, Masked, filter_block
from snapshots.position import BEFORE_ALL, Position

CODECS = (NONE, LZ4, ZLIB, ZSTD, SNAPPY)
Identity = tuple[Position, int]


@dataclass
class Planned:
    """A block as a link plans it, with what it holds."""

    block: bytes
    sizes: list[int]
    kind: BlockKind

    @property
    def view(self) -> BlockView:
        return BlockView(self.block)


def entry_of(position: Position, size: int, codec: int) -> bytes:
    """Return an encoded entry: a message without a batch if ``size`` is 0, else a batch of ``size`` messages."""
    metadata = MessageMetadata(producer_name="p", sequence_id=position.entry, publish_time=1, compression=codec)
    if not size:
        body = bytearray(_payload(position, 0))
        metadata.partition_key = "k0"
    else:
        metadata.num_messages_in_batch = size
        body = bytearray()
        for index in range(size):
            single = SingleMessageMetadata(
                payload_size=0, partition_key=f"k{index}", sequence_id=position.entry + index
            )
            single.properties.add(key="index", value=str(index))
            append_to_batch(body, single, _payload(position, index))
    if codec != NONE:
        metadata.uncompressed_size = len(body)
    return encode_entry(metadata, compress(body, codec))


def _payload(position: Position, index: int) -> bytes:
    return b"%d:%d:%d" % (*position, index)


@st.composite
def planned(draw: st.DrawFn) -> list[Planned]:
    found: list[Planned] = []
    at = Position(1, 0)
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 4)) == 0:
            at = Position(at.ledger + 1, 0)
        entries = draw(st.integers(1, 5))
        if draw(st.integers(0, 4)) == 0:
            kind, sizes = BlockKind.MARKERS, [0] * entries
            contents = [marker() for _ in sizes]
        else:
            kind = BlockKind.MESSAGES
            batches = draw(st.lists(st.integers(0, 4), min_size=entries, max_size=entries))
            contents = [
                entry_of(Position(at.ledger, at.entry + index), size, draw(st.sampled_from(CODECS)))
                for index, size in enumerate(batches)
            ]
            sizes = [size or 1 for size in batches]
        found.append(Planned(make_block(at, contents, kind=kind, batch_sizes=sizes), sizes, kind))
        at = Position(at.ledger, at.entry + entries)
    return found


def messages_of(block: bytes) -> dict[Identity, bytes]:
    """Return the messages of a block to deliver; the parts of a batch must agree with the messages' own metadata."""
    view = BlockView(block)
    found: dict[Identity, bytes] = {}
    for index, entry in enumerate(view.entries()):
        position = Position(view.header.origin_first.ledger, view.header.origin_first.entry + index)
        metadata, payload = decode_entry(entry)
        if view.header.kind is not BlockKind.MESSAGES:
            continue
        content = memoryview(decompress(payload, metadata.compression, metadata.uncompressed_size))
        if not metadata.HasField("num_messages_in_batch"):
            found[position, 0] = bytes(content)
            continue
        absent = view.absent.get(index, ())
        assert metadata.sequence_id == position.entry
        for number, (single, message) in enumerate(split_batch(metadata, content)):
            assert single.compacted_out == (number in absent)
            if not single.compacted_out:
                found[position, number] = bytes(message)
    return found


def sent(blocks: Sequence[Planned], keeps: Sequence[np.ndarray]) -> list[CopiedBlock]:
    chain, previous, found = Chain("t"), BEFORE_ALL, []
    for each, keep in zip(blocks, keeps, strict=True):
        filtered = filter_block(each.block, each.view, keep.copy(), {}, frozenset())
        found += list(chain.outgoing(previous, False, each.view, filtered))
        previous = each.view.header.origin_last
    return [CopiedBlock(each.previous, each.block, each.left_out) for each in [*found, *chain.end()]]


@given(planned(), st.data(), st.integers(0, 20), st.integers(0, 20))
def test_a_destination_has_what_stays_and_knows_what_it_does_not_have(
    blocks: list[Planned], data: st.DataObject, broke_at: int, again_from: int
) -> None:
    keeps = [
        np.array(data.draw(st.lists(st.booleans(), min_size=sum(each.sizes), max_size=sum(each.sizes))), dtype=bool)
        for each in blocks
    ]
    stay: dict[Identity, bytes] = {}
    gone: set[Identity] = set()
    for each, keep in zip(blocks, keeps, strict=True):
        for (identity, content), kept in zip(messages_of(each.block).items(), keep, strict=True):
            if kept:
                stay[identity] = content
            else:
                gone.add(identity)
    outgoing = sent(blocks, keeps)
    # The connection broke, and all of the segment is sent again.
    high_water: dict[str, HighWater] = {}
    here: dict[Identity, bytes] = {}
    missing: set[Identity] = set()
    entries = {position for position, _ in [*stay, *gone]}
    for copied in [*outgoing[: broke_at % (len(outgoing) + 1)], *outgoing]:
        for new in select_new([copied], cluster="here", topic="t", high_water=high_water):
            hole = (new.after, new.note.upto) if isinstance(new, NewHole) else new.hole
            if hole is not None:
                missing |= {each for each in gone if hole[0] < each[0] <= hole[1]}
                assert not any(hole[0] < position <= hole[1] for position in {each[0] for each in stay})
            if isinstance(new, NewHole):
                high_water[new.note.origin] = HighWater(new.note.incarnation, new.note.upto)
                continue
            header = new.header
            high_water[header.origin] = HighWater(header.incarnation, header.origin_last)
            arrived = messages_of(bytes(new.block))
            assert not arrived.keys() & here.keys()
            assert list(here) + list(arrived) == sorted([*here, *arrived])
            here |= arrived
            lacking = BlockView(new.block).absent
            first = header.origin_first
            missing |= {
                (Position(first.ledger, first.entry + entry), number)
                for entry, each in lacking.items()
                for number in each
            }
    assert here == stay
    assert missing == gone
    assert high_water["us-east"].position == blocks[-1].view.header.origin_last, "also if the last were left out"
    assert entries == {position for position, _ in [*here, *missing]}


@given(planned())
def test_what_loses_nothing_is_the_same_bytes(blocks: list[Planned]) -> None:
    for each in blocks:
        keep = np.ones(sum(each.sizes), dtype=bool)
        filtered = filter_block(each.block, each.view, keep, {}, frozenset())
        assert [piece.block for piece in filtered.pieces] == [each.block]
        assert filtered.pieces[0].block is each.block


@given(planned(), st.data())
def test_filtering_twice_leaves_out_what_either_does(blocks: list[Planned], data: st.DataObject) -> None:
    """A link does so when it forwards what another has filtered."""
    for each in blocks:
        total = sum(each.sizes)
        flags = st.lists(st.booleans(), min_size=total, max_size=total)
        one, other = (np.array(data.draw(flags), dtype=bool) for _ in range(2))
        both = filter_block(each.block, each.view, one & other, {}, frozenset())
        found: dict[Identity, bytes] = {}
        for piece in filter_block(each.block, each.view, one.copy(), {}, frozenset()).pieces:
            view = BlockView(piece.block)
            offset = view.header.origin_first.entry - each.view.header.origin_first.entry
            start = sum(each.sizes[:offset])
            keep = other[start : start + view.header.messages].copy()
            for again in filter_block(piece.block, view, keep, {}, frozenset()).pieces:
                found |= messages_of(bytes(again.block))
        expected: dict[Identity, bytes] = {}
        for piece in both.pieces:
            expected |= messages_of(bytes(piece.block))
        assert found == expected


@given(planned(), st.data())
def test_masking_changes_what_is_masked_and_nothing_else(blocks: list[Planned], data: st.DataObject) -> None:
    for each in blocks:
        if each.kind is not BlockKind.MESSAGES:
            continue
        total = sum(each.sizes)
        chosen = data.draw(st.sets(st.integers(0, total - 1)))
        keep = np.ones(total, dtype=bool)
        fields = frozenset({"payload", "key"})
        masked = {number: Masked(b"masked %d" % number, None) for number in chosen}
        filtered = filter_block(each.block, each.view, keep, masked, fields)
        (piece,) = filtered.pieces
        before, after = messages_of(each.block), messages_of(bytes(piece.block))
        assert list(after) == list(before)
        for number, (identity, content) in enumerate(after.items()):
            assert content == (b"masked %d" % number if number in chosen else before[identity])
        assert BlockView(piece.block).header.origin_first == each.view.header.origin_first
