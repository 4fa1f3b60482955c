"""Receipts at a producer's channel, with a broker that answers as a test says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from channel_support import Sent
from engine_support import eventually

from replicator.client.settings import ProducerSettings
from replicator.client.wire.connector import BrokerConnector
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandProducerSuccess,
    CommandSendError,
    CommandSendReceipt,
    FeatureFlags,
    MessageIdData,
    ServerError,
)
from replicator.protocol.frames import encode
from replicator.protocol.runs import Sends
from replicator.protocol.server import ServerConnection
from replicator.running.timeouts import timeout
from snapshots.position import BEFORE_ALL, Position

SENDS = 5
T = BaseCommand.Type


def receipt(sequence_id: int, entry: int, sends: int = 1, last: int = 0) -> bytes:
    answer = CommandSendReceipt(
        producer_id=1, sequence_id=sequence_id, message_id=MessageIdData(ledgerId=3, entryId=entry)
    )
    if sends != 1:
        answer.sends, answer.last_sequence_id = sends, last
    return encode(BaseCommand(type=T.SEND_RECEIPT, send_receipt=answer))


class Broker(asyncio.Protocol):
    """Answers the fifth send, with what the test has for all of them."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.state = ServerConnection(0.0, software="a test", features=FeatureFlags(), cluster="us-east")
        self.sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for step in self.state.receive(data, 0.0):
            if isinstance(step, bytes):
                self.transport.write(step)
            elif isinstance(step, Sends):
                self.sent += len(step.entries)
                if self.sent == SENDS:
                    self.transport.write(self.answer)
            elif step.command.type == T.PRODUCER:
                wanted = step.command.producer
                assert wanted.extended
                ready = CommandProducerSuccess(
                    request_id=wanted.request_id, producer_name="p", last_sequence_id=-1, producer_ready=True
                )
                self.transport.write(encode(BaseCommand(type=T.PRODUCER_SUCCESS, producer_success=ready)))


def refusal(sequence_id: int) -> bytes:
    refused = CommandSendError(
        producer_id=1, sequence_id=sequence_id, error=ServerError.NotAllowedError, message="Exceed maximum message size"
    )
    return encode(BaseCommand(type=T.SEND_ERROR, send_error=refused))


def told(answer: bytes, done: Callable[[Sent], bool], *, own_numbers: bool = False) -> Sent:
    """Return what the owner of a channel hears that sent entries 1 to 5, and with ``own_numbers`` 6 after a refusal."""

    async def main() -> Sent:
        loop, sent = asyncio.get_running_loop(), Sent()
        server = await loop.create_server(lambda: Broker(answer), "127.0.0.1", 0)
        url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connector = BrokerConnector(url, connection_timeout_seconds=5, operation_timeout_seconds=5)
        try:
            async with timeout(10):
                channel = await connector.open_producer(ProducerSettings("t", "p"))
                channel.own_numbers = own_numbers
                channel.start(sent)
                for entry_id in range(1, 1 + SENDS):
                    channel.publish(entry_id, b"entry")
                if own_numbers:
                    await eventually(lambda: bool(sent.refusals), "a refusal")
                    channel.publish(6, b"entry")
                await eventually(lambda: done(sent), "the broker's answer")
                return replace(sent, lost=list(sent.lost))
        finally:
            await connector.close()
            server.close()

    return asyncio.run(main())


def test_one_receipt_answers_several_sends_whose_entries_lie_one_behind_the_other() -> None:
    sent = told(receipt(1, 7, 3, 3) + receipt(4, 12) + receipt(5, 14), lambda sent: len(sent.receipts) == SENDS)
    assert sent.receipts == {number: Position(3, entry) for number, entry in enumerate((7, 8, 9, 12, 14), 1)}
    assert not sent.lost


def test_an_answer_to_what_was_answered_before_means_nothing() -> None:
    answer = receipt(1, 7, 2, 2) + receipt(1, 7) + receipt(2, 8) + receipt(3, 9, 3, 5)
    sent = told(answer, lambda sent: len(sent.receipts) == SENDS)
    assert sent.receipts[5] == Position(3, 11)
    assert not sent.lost


def test_a_duplicate_has_no_position() -> None:
    none = CommandSendReceipt(
        producer_id=1, sequence_id=1, message_id=MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    )
    answer = encode(BaseCommand(type=T.SEND_RECEIPT, send_receipt=none)) + receipt(2, 9, 4, 5)
    sent = told(answer, lambda sent: len(sent.receipts) == SENDS)
    assert sent.receipts[1] == BEFORE_ALL


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (receipt(4, 8), "an answer to send 4; expected 2"),
        (receipt(2, 8, 5, 6), "one answer to 5 sends, 2 to 6"),
        (receipt(2, 8, 3, 5), "one answer to 3 sends, 2 to 5"),
        (receipt(2, 8, 2**32 - 1, 5), "one answer to 4294967295 sends, 2 to 5"),
    ],
)
def test_a_receipt_that_does_not_fit_ends_the_connection_behind_those_that_did(wrong: bytes, reason: str) -> None:
    sent = told(receipt(1, 7) + wrong + receipt(2, 8), lambda sent: bool(sent.lost))
    assert sent.receipts == {1: Position(3, 7)}
    assert re.search(re.escape(reason), str(sent.lost[0]))


def test_a_refusal_may_come_before_the_receipts_of_earlier_sends() -> None:
    """Brokers refuse at once, and confirm what they have stored."""
    answer = refusal(3) + receipt(1, 7) + receipt(2, 8) + receipt(4, 9) + receipt(5, 10)
    sent = told(answer, lambda sent: len(sent.receipts) == SENDS - 1)
    assert sent.receipts == {1: Position(3, 7), 2: Position(3, 8), 4: Position(3, 9), 5: Position(3, 10)}
    assert list(sent.refusals) == [3]
    assert not sent.lost


def test_one_receipt_answers_the_sends_around_a_refused_one() -> None:
    sent = told(refusal(3) + receipt(1, 7, 4, 5), lambda sent: len(sent.receipts) == SENDS - 1)
    assert sent.receipts == {
        number: Position(3, entry) for number, entry in zip((1, 2, 4, 5), range(7, 11), strict=True)
    }


def test_invariant_3_nothing_more_is_sent_behind_a_refused_entry_of_another_producer() -> None:
    answer = refusal(3) + receipt(1, 7, 2, 2) + receipt(4, 9, 2, 5)
    sent = told(answer, lambda sent: len(sent.receipts) == SENDS - 1, own_numbers=True)
    assert 6 not in sent.receipts


def test_a_refusal_of_what_was_never_sent_ends_the_connection() -> None:
    sent = told(refusal(9), lambda sent: bool(sent.lost))
    assert re.search("an answer to send 9; expected 1", str(sent.lost[0]))
