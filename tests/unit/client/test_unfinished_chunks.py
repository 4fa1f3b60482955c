"""Messages in chunks that never become complete: a flood of them writes few lines into the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from replicator.client.consuming import entry_opening
from replicator.client.consuming.entry_opening import EntryOpener
from replicator.client.errors import InvalidMessage
from replicator.client.message import Opening
from replicator.client.settings import ConsumerSettings
from replicator.engine.log.entry import encode_entry
from replicator.engine.types import Delivery, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.running.limited_log import LINES_MAX, LimitedLog
from snapshots.position import Position

MESSAGES = 2_000


def first_chunk(number: int) -> Delivery:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=number,
        publish_time=2**41,
        uuid=f"p-{number}",
        num_chunks_from_msg=2,
        chunk_id=0,
        total_chunk_msg_size=2,
    )
    at = Position(1, number)
    return Delivery(at, 0, 1, None, encode_entry(metadata, b"x"), "us-east", at)


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_flood_of_unfinished_chunks_writes_few_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, acknowledged: bool
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(entry_opening, "_LIMITED", LimitedLog(clock=lambda: 0.0))
    given_up: list[Position] = []

    def let_go(positions: Sequence[Position]) -> None:
        given_up.extend(positions)

    async def main() -> None:
        settings = ConsumerSettings(
            "persistent://public/default/t",
            "s",
            "c",
            SubscriptionType.SHARED,
            max_pending_chunked_message=5,
            auto_ack_oldest_chunked_message_on_queue_full=acknowledged,
        )
        opener = EntryOpener(settings, -1, Opening(), acknowledge=let_go, reject=let_go)
        for number in range(MESSAGES):
            try:
                assert list(opener.open(first_chunk(number), None)) == []
            except InvalidMessage:
                assert not acknowledged
        opener.clear()

    asyncio.run(main())
    assert len(given_up) == MESSAGES - 5
    assert 0 < len(caplog.records) <= LINES_MAX
