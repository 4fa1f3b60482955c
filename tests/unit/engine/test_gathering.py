from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from engine_support import TOPIC, make_block, message, opened

from replicator.engine.log.arrow import decode_append, decode_block_list, encode_append_columns, encode_block_list
from replicator.engine.log.gathering import gather_blocks, messages_of
from replicator.engine.log.stored_blocks import StoredBlock
from snapshots.position import BEFORE_ALL, Position

BLOCKS = [make_block(Position(1, 10 * size), [message()] * size, batch_sizes=[7] * size) for size in (1, 2, 5)]


def column(blocks: list[bytes | None]) -> pa.Array:
    content = b"".join(block for block in blocks if block is not None)
    stream = encode_block_list([None if block is None else len(block) for block in blocks], content)
    return decode_block_list(stream.to_pybytes())


def test_a_list_of_blocks_is_read_back_as_it_was_with_what_is_not_there() -> None:
    asked = [BLOCKS[0], None, BLOCKS[2]]
    assert column(asked).to_pylist() == asked
    assert column([None]).to_pylist() == [None]


def test_an_answer_of_another_form_is_refused() -> None:
    with pytest.raises((ValueError, pa.ArrowException)):
        decode_block_list(b"not a stream")
    other = b"".join(encode_append_columns([], [], [], [], pa.array([], pa.large_binary())))
    with pytest.raises(ValueError, match="has columns"):
        decode_block_list(other)


def test_messages_are_counted_as_the_headers_of_blocks_say_also_in_a_slice() -> None:
    blocks = column(list(BLOCKS))
    assert messages_of(blocks).tolist() == [7, 14, 35]
    assert messages_of(blocks.slice(1, 2)).tolist() == [14, 35]


def test_blocks_of_a_column_are_sent_as_any_others() -> None:
    blocks = column(list(BLOCKS))
    stream = encode_append_columns(["a", "b"], [0, 4], [-1, 5], [False, True], blocks.slice(1, 2))
    sent = decode_append(b"".join(stream))
    assert [bytes(each.block) for topic in sent.values() for each in topic] == BLOCKS[1:]
    assert [(each.previous, each.left_out) for topic in sent.values() for each in topic] == [
        (BEFORE_ALL, False),
        (Position(4, 5), True),
    ]


def test_blocks_are_gathered_in_the_order_in_which_they_were_asked_for_as_many_as_fit(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            for number in range(4):
                await topic.publish([message(bytes([number]) * 1000)])
            stored: list[StoredBlock] = topic.reading.blocks(BEFORE_ALL, bytes_max=10**6)[0]
            keys = [(topic.topic_id, each.position.ledger, each.position.entry) for each in stored]
            size = len(stored[0].block)
            nowhere = (topic.topic_id, 1, 1)
            asked = [keys[2], None, keys[0], nowhere]
            sizes, content = gather_blocks(engine.store, asked, bytes_max=10**6)
            assert sizes == [size, None, size, None]
            assert content == bytes(stored[2].block) + bytes(stored[0].block)
            assert gather_blocks(engine.store, keys, bytes_max=2 * size)[0] == [size] * 2
            assert gather_blocks(engine.store, keys, bytes_max=1)[0] == [size], "one in any case"

    asyncio.run(main())
