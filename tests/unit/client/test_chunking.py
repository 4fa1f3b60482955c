"""Chunks become the message that was sent, whatever comes twice, late or not at all; the rest is named and let go."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.client.chunking import (
    CHUNKED_MESSAGE_BYTES_MAX,
    MISSED_MAX,
    Assembled,
    Chunk,
    ChunkAction,
    ChunkAssembler,
    DiscardedChunks,
    chunk_of,
    split_payload,
)
from replicator.client.errors import (
    ChunkDuplicated,
    ChunkMissing,
    ChunksExpired,
    ChunksOverflow,
    InvalidMessage,
    MessageTooBig,
)
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import Position

SENT_MS = 1_000_000


def _at(entry: int) -> Position:
    return Position(1, entry)


def _chunk(chunk_id: int, entry: int, *, uuid: str = "p-0", payload: bytes = b"ab", **other: int) -> Chunk:
    chunks = other.get("chunks", 3)
    return Chunk(uuid, chunk_id, chunks, other.get("total_bytes", 2 * chunks), payload, _at(entry))


def _added(assembler: ChunkAssembler, *chunks: Chunk, now_ms: int = SENT_MS) -> list[ChunkAction]:
    return [action for chunk in chunks for action in assembler.add(chunk, now_ms)]


def test_chunks_in_order_become_the_message_with_the_positions_of_all_of_them() -> None:
    assembler = ChunkAssembler()
    actions = _added(assembler, *(_chunk(index, 10 + index, payload=b"%d." % index) for index in range(3)))
    assert actions == [Assembled(b"0.1.2.", (_at(10), _at(11), _at(12)))]
    assert len(assembler) == 0


def test_the_chunks_of_two_messages_may_be_mixed() -> None:
    assembler = ChunkAssembler()
    actions = _added(
        assembler, *(_chunk(index // 2, index, uuid=f"p-{index % 2}", payload=b"%02d" % index) for index in range(6))
    )
    assert actions == [
        Assembled(b"000204", (_at(0), _at(2), _at(4))),
        Assembled(b"010305", (_at(1), _at(3), _at(5))),
    ]


def test_chunks_that_are_delivered_again_begin_the_message_anew_and_nothing_is_acknowledged() -> None:
    assembler = ChunkAssembler()
    actions = _added(assembler, *(_chunk(index, index) for index in (0, 1, 1, 0, 1, 2)))
    assert actions == [Assembled(b"ababab", (_at(0), _at(1), _at(2)))]


def test_chunks_that_the_producer_sent_again_replace_the_ones_before_which_are_acknowledged() -> None:
    assembler = ChunkAssembler()
    (abandoned, assembled) = _added(assembler, _chunk(0, 0), _chunk(1, 1), _chunk(0, 2), _chunk(1, 3), _chunk(2, 4))
    assert isinstance(abandoned, DiscardedChunks)
    assert (abandoned.positions, abandoned.acknowledge) == ((_at(0), _at(1)), True)
    assert isinstance(abandoned.error, ChunkDuplicated)
    assert assembled == Assembled(b"ababab", (_at(2), _at(3), _at(4)))


def test_a_later_chunk_that_the_producer_sent_again_is_acknowledged_and_the_message_goes_on() -> None:
    assembler = ChunkAssembler()
    duplicate, assembled = _added(assembler, _chunk(0, 0), _chunk(1, 1), _chunk(1, 2), _chunk(2, 3))
    assert isinstance(duplicate, DiscardedChunks)
    assert (duplicate.positions, duplicate.acknowledge) == ((_at(2),), True)
    assert assembled == Assembled(b"ababab", (_at(0), _at(1), _at(3)))


@pytest.mark.parametrize(("order", "awaited"), [((1,), 0), ((0, 2), 1), ((2, 0), 0)])
def test_a_missing_chunk_is_named_and_everything_held_of_the_message_may_come_again(
    order: tuple[int, ...], awaited: int
) -> None:
    assembler = ChunkAssembler()
    (abandoned,) = _added(assembler, *(_chunk(index, index) for index in order))
    assert isinstance(abandoned, DiscardedChunks)
    assert isinstance(abandoned.error, ChunkMissing)
    assert f"expected chunk {awaited}" in str(abandoned.error)
    assert not abandoned.acknowledge
    assert abandoned.positions == tuple(_at(index) for index in order if len(order) < 2 or order[0] == 0 or index == 2)


def test_chunks_without_the_first_one_are_acknowledged_once_they_missed_it_for_as_long_as_the_expiry() -> None:
    assembler = ChunkAssembler(expire_after_ms=60_000)
    early = _added(assembler, _chunk(1, 1), _chunk(2, 2), _chunk(1, 1), now_ms=SENT_MS)
    young = _added(assembler, _chunk(1, 1), _chunk(2, 2), now_ms=SENT_MS + 59_999)
    assembler.clear()  # the cluster delivers everything again
    old = _added(assembler, _chunk(1, 1), _chunk(2, 2), now_ms=SENT_MS + 60_000)
    assert [action.acknowledge for action in (*early, *young, *old) if isinstance(action, DiscardedChunks)] == [
        *[False] * 5,
        *[True] * 2,
    ]


def test_invariant_5_a_whole_message_that_is_given_up_for_newer_ones_is_never_acknowledged_away() -> None:
    """Its chunks come again after each time, until there is room for it."""
    assembler = ChunkAssembler(pending_max=1, expire_after_ms=1_000)
    for round_ in range(5):
        now_ms = SENT_MS + 1_000 * round_
        actions = _added(assembler, _chunk(0, 10), _chunk(0, 20, uuid="p-1"), now_ms=now_ms)
        actions += _added(assembler, _chunk(1, 11), now_ms=now_ms + 1)
        assert not any(
            isinstance(each, DiscardedChunks) and each.acknowledge for each in actions if _at(11) in each.positions
        )
    actions = _added(assembler, *(_chunk(index, 10 + index) for index in range(3)), now_ms=SENT_MS + 9_000)
    assert isinstance(actions[-1], Assembled)


def test_a_message_that_became_complete_may_miss_a_chunk_anew() -> None:
    assembler = ChunkAssembler(expire_after_ms=60_000)
    _added(assembler, _chunk(1, 1))
    later = SENT_MS + 60_000
    assert isinstance(_added(assembler, *(_chunk(index, index) for index in range(3)), now_ms=later)[-1], Assembled)
    (abandoned,) = _added(assembler, _chunk(1, 1), now_ms=later)
    assert isinstance(abandoned, DiscardedChunks)
    assert not abandoned.acknowledge


def test_what_is_remembered_of_messages_that_miss_a_chunk_is_bounded_and_the_first_ones_are_let_go_in_time() -> None:
    assembler = ChunkAssembler(expire_after_ms=1_000)
    for number in range(MISSED_MAX + 5):
        _added(assembler, _chunk(1, number, uuid=f"m-{number}"))
    assert len(assembler._missed) == MISSED_MAX
    given_up = _added(assembler, _chunk(1, 0, uuid="m-0"), now_ms=SENT_MS + 1_000)
    assert [action.acknowledge for action in given_up if isinstance(action, DiscardedChunks)] == [True]
    last = _chunk(1, MISSED_MAX + 4, uuid=f"m-{MISSED_MAX + 4}")
    found = [_added(assembler, last, now_ms=SENT_MS + later)[0] for later in (1_999, 2_000, 3_000)]
    assert [action.acknowledge for action in found if isinstance(action, DiscardedChunks)] == [False, False, True]


def test_a_message_that_is_not_complete_in_time_is_acknowledged_away() -> None:
    assembler = ChunkAssembler(expire_after_ms=1_000)
    assert _added(assembler, _chunk(0, 0), _chunk(1, 1)) == []
    assert assembler.deadline_ms == SENT_MS + 1_000
    assert assembler.expire(SENT_MS + 999) == []
    (expired,) = assembler.expire(SENT_MS + 1_000)
    assert (expired.positions, expired.acknowledge) == ((_at(0), _at(1)), True)
    assert isinstance(expired.error, ChunksExpired)
    assert assembler.deadline_ms is None


@pytest.mark.parametrize("acknowledge_oldest", [False, True])
def test_past_its_limit_the_oldest_incomplete_message_is_given_up(acknowledge_oldest: bool) -> None:
    assembler = ChunkAssembler(pending_max=2, acknowledge_oldest=acknowledge_oldest)
    (overflow,) = _added(assembler, *(_chunk(0, index, uuid=f"p-{index}") for index in range(3)))
    assert isinstance(overflow, DiscardedChunks)
    assert isinstance(overflow.error, ChunksOverflow)
    assert (overflow.positions, overflow.acknowledge) == ((_at(0),), acknowledge_oldest)
    assert len(assembler) == 2


def test_without_a_limit_on_messages_their_declared_bytes_are_the_limit() -> None:
    assembler = ChunkAssembler(pending_max=0)
    chunks = [_chunk(0, n, uuid=f"p-{n}", total_bytes=CHUNKED_MESSAGE_BYTES_MAX) for n in range(5)]
    assert _added(assembler, *chunks[:4]) == []
    (overflow,) = _added(assembler, chunks[4])
    assert isinstance(overflow, DiscardedChunks)
    assert overflow.positions == (_at(0),)


@pytest.mark.parametrize(
    ("chunks", "named"),
    [
        ((_chunk(0, 0), _chunk(1, 1, chunks=4)), "contradicts"),
        ((_chunk(0, 0), _chunk(1, 1, payload=b"abcde")), "goes beyond 6"),
        ((_chunk(0, 0), _chunk(1, 1), _chunk(2, 2, payload=b"a")), "ends at 5 bytes of 6"),
    ],
)
def test_chunks_that_do_not_fit_together_are_named_and_never_shown(chunks: tuple[Chunk, ...], named: str) -> None:
    assembler = ChunkAssembler()
    (abandoned,) = _added(assembler, *chunks)
    assert isinstance(abandoned, DiscardedChunks)
    assert named in str(abandoned.error)
    assert abandoned.positions == tuple(chunk.position for chunk in chunks)
    assert len(assembler) == 0


def test_after_a_new_connection_chunks_begin_from_the_first() -> None:
    assembler = ChunkAssembler()
    _added(assembler, _chunk(0, 0), _chunk(1, 1))
    assembler.clear()
    assert _added(assembler, *(_chunk(index, index) for index in range(3))) == [
        Assembled(b"ababab", (_at(0), _at(1), _at(2)))
    ]


def _metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=0, publish_time=5, **fields)  # type: ignore[arg-type]


def test_only_an_entry_of_several_is_a_chunk() -> None:
    assert chunk_of(_metadata(), b"x", _at(0)) is None
    chunk = chunk_of(_metadata(uuid="u", chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=2), b"x", _at(0))
    assert chunk == Chunk("u", 1, 2, 2, b"x", _at(0))


@pytest.mark.parametrize(
    "fields",
    [
        {"uuid": "", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2},
        {"uuid": "u", "chunk_id": 2, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2},
        {"uuid": "u", "chunk_id": -1, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2},
        {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 100_001, "total_chunk_msg_size": 2},
        {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 0},
        {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2**31 - 1},
    ],
)
def test_a_chunk_that_cannot_be_is_refused_with_its_position(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage, match="1:7"):
        chunk_of(_metadata(**fields), b"x", _at(7))


def test_a_payload_that_would_need_too_many_chunks_is_too_big() -> None:
    assert [bytes(piece) for piece in split_payload(b"abcde", 2)] == [b"ab", b"cd", b"e"]
    for chunk_bytes_max in (0, -5):
        with pytest.raises(MessageTooBig):
            split_payload(b"a", chunk_bytes_max)
    with pytest.raises(MessageTooBig, match="100000 chunks"):
        split_payload(bytes(100_001), 1)


@given(seed=st.integers(0, 2**32), pending_max=st.integers(1, 4))
def test_whatever_order_chunks_come_in_only_whole_messages_come_out(seed: int, pending_max: int) -> None:
    source = random.Random(seed)
    payloads = {f"p-{n}": source.randbytes(source.randint(3, 12)) for n in range(4)}
    pieces = {uuid: [bytes(piece) for piece in split_payload(payload, 3)] for uuid, payload in payloads.items()}
    assembler = ChunkAssembler(pending_max=pending_max)
    for entry in range(60):
        uuid = source.choice(list(payloads))
        chunk_id = source.randrange(len(pieces[uuid]))
        chunk = Chunk(uuid, chunk_id, len(pieces[uuid]), len(payloads[uuid]), pieces[uuid][chunk_id], _at(entry))
        for action in assembler.add(chunk, SENT_MS + entry):
            if isinstance(action, Assembled):
                assert action.payload == payloads[uuid]
                assert len(action.positions) == len(pieces[uuid])
                assert list(action.positions) == sorted(action.positions)
        assert len(assembler) <= pending_max
