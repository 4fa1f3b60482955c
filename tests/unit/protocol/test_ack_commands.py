"""Acknowledgements that come together: the commands that protobuf reads one by one, and answers of the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandAckResponse,
    CommandFlow,
    CommandSend,
    KeyLongValue,
    MessageIdData,
)
from replicator.protocol.data_commands import AckResponseWriter, Acks, Sends, read_ack
from replicator.protocol.errors import BadFrame, ProtocolError
from replicator.protocol.frames import FrameDecoder, encode, encode_head
from replicator.protocol.runs import RUN_MAX, SendReader

U64 = 2**64 - 1
T = BaseCommand.Type
u64 = st.one_of(st.integers(0, 300), st.integers(0, U64))
i64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def message_ids(draw: st.DrawFn) -> MessageIdData:
    made = MessageIdData(ledgerId=draw(u64), entryId=draw(u64))
    if draw(st.booleans()):
        made.partition, made.batch_index = draw(st.integers(-1, 5)), draw(st.integers(-1, 5))
    if draw(st.integers(0, 3)) == 0:
        made.ack_set.extend(draw(st.lists(i64, max_size=3)))
        made.batch_size = draw(st.integers(0, 300))
    return made


@st.composite
def acks(draw: st.DrawFn) -> CommandAck:
    made = CommandAck(
        consumer_id=draw(st.integers(1, 2)), ack_type=draw(st.sampled_from(list(CommandAck.AckType.values())))
    )
    made.message_id.extend(draw(st.lists(message_ids(), max_size=3)))
    if draw(st.booleans()):
        made.request_id = draw(u64)
    if draw(st.integers(0, 5)) == 0:
        made.txnid_least_bits, made.txnid_most_bits = draw(u64), draw(u64)
    if draw(st.integers(0, 5)) == 0:
        made.validation_error = CommandAck.ValidationError.DecryptionError
    if draw(st.integers(0, 5)) == 0:
        made.properties.append(KeyLongValue(key="k" * draw(st.integers(0, 200)), value=1))
    return made


@st.composite
def commands(draw: st.DrawFn) -> BaseCommand:
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=draw(st.integers(0, 9))))
    if kind == 1:
        return BaseCommand(type=T.SEND, send=CommandSend(producer_id=1, sequence_id=draw(u64)))
    return BaseCommand(type=T.ACK, ack=draw(acks()))


def frame_of(command: BaseCommand) -> bytes:
    return encode_head(command, 5) + b"entry" if command.type == T.SEND else encode(command)


def taken_apart(decoder: FrameDecoder, stream: bytes, cut_at: int) -> tuple[list[object], str]:
    """Return the commands that a decoder found, one by one, and the error at which it stopped."""
    found: list[object] = []
    try:
        for part in (stream[:cut_at], stream[cut_at:]):
            for step in decoder.receive(part):
                found += _single(step)
    except ProtocolError as error:
        return found, str(error)
    return found, ""


def _single(step: Any) -> list[object]:
    if isinstance(step, Acks):
        assert all(each.consumer_id == step.consumer_id for each in step.commands)
        assert 0 < len(step.commands) <= RUN_MAX
        return [each.SerializeToString(deterministic=True) for each in step.commands]
    if isinstance(step, Sends):
        return list(zip(step.sequence_ids, step.entries, strict=True))
    command = step.command
    if command.type == T.SEND:
        return [(command.send.sequence_id, bytes(step.rest))]
    if command.type == T.ACK:
        return [command.ack.SerializeToString(deterministic=True)]
    return [command.SerializeToString(deterministic=True)]


@given(sent=st.lists(commands(), max_size=12), data=st.data())
def test_gathered_acknowledgements_are_those_that_protobuf_reads_in_the_same_order(
    sent: list[BaseCommand], data: st.DataObject
) -> None:
    stream = b"".join(map(frame_of, sent))
    cut_at = data.draw(st.integers(0, len(stream)))
    by_hand = taken_apart(FrameDecoder(runs=SendReader()), stream, cut_at)
    assert by_hand == taken_apart(FrameDecoder(), stream, cut_at)


@given(sent=st.lists(commands(), min_size=1, max_size=4), data=st.data())
def test_damaged_acknowledgements_are_refused_as_protobuf_refuses_them(
    sent: list[BaseCommand], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(map(frame_of, sent)))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] = data.draw(st.integers(0, 255))
    by_hand = taken_apart(FrameDecoder(runs=SendReader()), bytes(stream), 0)
    assert by_hand == taken_apart(FrameDecoder(), bytes(stream), 0)


@given(command=acks(), before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_an_acknowledgement_is_read_in_place_or_left_to_protobuf(
    command: CommandAck, before: bytes, after: bytes
) -> None:
    encoded = BaseCommand(type=T.ACK, ack=command).SerializeToString()
    found = read_ack(before + encoded + after, len(before), len(before) + len(encoded))
    assert found == (command if command.ByteSize() <= 127 else None)


def test_an_acknowledgement_without_what_it_must_have_closes_the_connection() -> None:
    lacking = BaseCommand(type=T.ACK, ack=CommandAck(consumer_id=1)).SerializePartialToString()
    stream = (len(lacking) + 4).to_bytes(4, "big") + len(lacking).to_bytes(4, "big") + lacking
    with pytest.raises(BadFrame):
        list(FrameDecoder(runs=SendReader()).receive(stream))


@given(consumer_id=u64, request_ids=st.lists(u64, max_size=4))
def test_answers_have_the_bytes_that_protobuf_writes(consumer_id: int, request_ids: list[int]) -> None:
    expected = [
        encode(
            BaseCommand(
                type=T.ACK_RESPONSE,
                ackResponse=CommandAckResponse(consumer_id=consumer_id, request_id=request_id),
            )
        )
        for request_id in request_ids
    ]
    assert AckResponseWriter(consumer_id).write(request_ids) == b"".join(expected)
