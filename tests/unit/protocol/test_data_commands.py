"""Commands that are read and written by hand: what protobuf reads and writes, or nothing."""

from __future__ import annotations

import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandFlow,
    CommandMessage,
    CommandSend,
    CommandSendReceipt,
    MessageIdData,
)
from replicator.protocol.data_commands import SENDS_MAX, MessageHeadWriter, ReceiptWriter, Sends, read_send
from replicator.protocol.errors import BadFrame, FrameTooLarge
from replicator.protocol.frames import Frame, FrameDecoder, encode, encode_head
from replicator.protocol.runs import SendReader
from replicator.protocol.values import message_id
from snapshots.position import BEFORE_ALL, Position

U64 = 2**64 - 1
u64 = st.one_of(st.integers(0, 300), st.integers(0, U64))
partitions = st.integers(-1, 2**31 - 1)
positions = st.one_of(st.just(BEFORE_ALL), st.builds(Position, u64, u64))


@st.composite
def sends(draw: st.DrawFn) -> CommandSend:
    command = CommandSend(producer_id=draw(u64), sequence_id=draw(u64))
    for field, values in {
        "num_messages": st.integers(-(2**31), 2**31 - 1),
        "txnid_least_bits": u64,
        "txnid_most_bits": u64,
        "highest_sequence_id": u64,
        "is_chunk": st.booleans(),
        "marker": st.booleans(),
    }.items():
        if draw(st.booleans()):
            setattr(command, field, draw(values))
    if draw(st.booleans()):
        command.message_id.CopyFrom(MessageIdData(ledgerId=draw(u64), entryId=draw(u64)))
    return command


@given(command=sends(), around=st.tuples(st.binary(max_size=3), st.binary(max_size=3)))
def test_a_send_of_the_usual_form_is_read_as_protobuf_reads_it(
    command: CommandSend, around: tuple[bytes, bytes]
) -> None:
    encoded = BaseCommand(type=BaseCommand.SEND, send=command).SerializeToString()
    found = read_send(around[0] + encoded + around[1], len(around[0]), len(around[0]) + len(encoded))
    if command.HasField("message_id"):
        assert found is None
    else:
        assert found == (command.producer_id, command.sequence_id, command.highest_sequence_id)


@given(
    fields=st.binary(max_size=40),
    prefix=st.sampled_from([b"", b"\x08\x01\x10\x02", b"\x08\x80\x01\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]),
)
def test_what_is_read_by_hand_protobuf_reads_the_same(fields: bytes, prefix: bytes) -> None:
    inside = prefix + fields
    encoded = b"\x08\x06\x32" + bytes([len(inside)]) + inside
    found = read_send(encoded + b"\x01\x02\x03", 0, len(encoded))
    if found is None:
        return
    command = BaseCommand.FromString(encoded)
    assert command.IsInitialized()
    assert found == (command.send.producer_id, command.send.sequence_id, command.send.highest_sequence_id)


def test_a_send_without_what_it_must_have_or_cut_short_is_left_to_protobuf() -> None:
    for inside in (b"\x08\x01", b"\x10\x01", b"\x08\x01\x10", b"\x08\x01\x10\x80", b"\x08\x01\x10\x02\x00\x01", b""):
        assert read_send(b"\x08\x06\x32" + bytes([len(inside)]) + inside + b"\x01\x01", 0, 4 + len(inside)) is None
    too_long = b"\x08\x01\x10" + b"\xff" * 10 + b"\x01"
    assert read_send(b"\x08\x06\x32" + bytes([len(too_long)]) + too_long, 0, 4 + len(too_long)) is None


@given(
    producer_id=u64,
    partition=partitions,
    sent=st.lists(st.tuples(u64, u64, positions), min_size=1, max_size=20),
)
def test_receipts_are_the_bytes_that_protobuf_makes(
    producer_id: int, partition: int, sent: list[tuple[int, int, Position]]
) -> None:
    run, expected = Sends(producer_id), b""
    run.sequence_ids = [sequence_id for sequence_id, _, _ in sent]
    run.highest_sequence_ids = [highest for _, highest, _ in sent]
    for sequence_id, highest, position in sent:
        receipt = CommandSendReceipt(
            producer_id=producer_id,
            sequence_id=sequence_id,
            message_id=message_id(position, partition),
            highest_sequence_id=highest,
        )
        expected += encode(BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=receipt))
    assert ReceiptWriter(producer_id, partition).write(run, [position for _, _, position in sent]) == expected


@given(
    consumer_id=u64,
    partition=partitions,
    messages=st.lists(
        st.tuples(
            st.builds(Position, u64, u64),
            st.integers(0, 2**32 - 1),
            st.integers(0, 6_000_000),
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
            st.one_of(st.none(), u64),
        ),
        max_size=5,
    ),
)
def test_heads_of_messages_are_the_bytes_that_protobuf_makes(
    consumer_id: int, partition: int, messages: list[tuple[Position, int, int, list[int], int | None]]
) -> None:
    writer = MessageHeadWriter(consumer_id, partition)
    for position, redeliveries, entry_bytes, ack_set, epoch in messages:
        message = CommandMessage(
            consumer_id=consumer_id,
            message_id=message_id(position, partition),
            redelivery_count=redeliveries,
            ack_set=ack_set,
            consumer_epoch=epoch,
        )
        expected = encode_head(BaseCommand(type=BaseCommand.MESSAGE, message=message), entry_bytes)
        assert writer.head(position, redeliveries, entry_bytes, ack_set, epoch) == expected


FLOW = encode(BaseCommand(type=BaseCommand.FLOW, flow=CommandFlow(consumer_id=7, messagePermits=1)))


def frame_of(command: CommandSend, entry: bytes) -> bytes:
    return encode_head(BaseCommand(type=BaseCommand.SEND, send=command), len(entry)) + entry


def taken(decoder: FrameDecoder, pieces: list[bytes]) -> list[object]:
    """Return the decoder's output for the pieces, one item per command."""
    found: list[object] = []
    for piece in pieces:
        for each in decoder.receive(piece):
            if isinstance(each, Sends):
                found += zip(
                    [each.producer_id] * len(each.entries),
                    each.sequence_ids,
                    each.highest_sequence_ids,
                    each.entries,
                    strict=True,
                )
            else:
                assert each.command.type == BaseCommand.FLOW
                found.append("flow")
    return found


@given(
    sent=st.lists(
        st.one_of(st.none(), st.tuples(sends(), st.one_of(st.binary(max_size=50), st.just(bytes(9_000))))), max_size=12
    ),
    cuts=st.lists(st.one_of(st.integers(0, 60), st.integers(4_000, 20_000)), max_size=40),
)
def test_sends_come_out_in_their_order_whatever_pieces_they_come_in(
    sent: list[tuple[CommandSend, bytes] | None], cuts: list[int]
) -> None:
    stream = b"".join(FLOW if each is None else frame_of(*each) for each in sent)
    pieces, at = [], 0
    for cut in [*cuts, len(stream)]:
        pieces.append(stream[at : at + cut])
        at += cut
    decoder = FrameDecoder(runs=SendReader())
    assert taken(decoder, pieces) == [
        "flow" if each is None else (each[0].producer_id, each[0].sequence_id, each[0].highest_sequence_id, each[1])
        for each in sent
    ]
    assert decoder.waits == 0


def test_sends_of_one_producer_are_handed_on_together_up_to_a_limit() -> None:
    one, other = (CommandSend(producer_id=number, sequence_id=5) for number in (1, 2))
    stream = frame_of(one, b"x") * (SENDS_MAX + 1) + frame_of(other, b"y") + FLOW + frame_of(other, b"z")
    found = list(FrameDecoder(runs=SendReader()).receive(stream))
    assert [len(each.entries) if isinstance(each, Sends) else "flow" for each in found] == [SENDS_MAX, 1, 1, "flow", 1]


def test_what_was_sent_before_an_error_is_handed_on_first() -> None:
    good = frame_of(CommandSend(producer_id=1, sequence_id=5), b"x")
    for bad, error in ((struct.pack(">II", 3, 0), BadFrame), (struct.pack(">II", 2**31, 8), FrameTooLarge)):
        found = []
        with pytest.raises(error):
            found.extend(FrameDecoder(runs=SendReader()).receive(good + bad))
        assert found == [] or isinstance(found[0], Sends)
        decoder = FrameDecoder(runs=SendReader()).receive(good + bad)
        assert isinstance(next(decoder), Sends)
        with pytest.raises(error):
            next(decoder)


def test_a_command_that_is_larger_than_its_frame_is_refused_though_it_begins_as_a_send() -> None:
    command = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=5)).SerializeToString()
    frame = struct.pack(">II", 4 + len(command), len(command) + 1) + command
    with pytest.raises(BadFrame):
        list(FrameDecoder(runs=SendReader()).receive(frame + b"\x00" * 8))


def test_without_sends_a_decoder_gives_frames() -> None:
    (frame,) = FrameDecoder().receive(frame_of(CommandSend(producer_id=1, sequence_id=5), b"x"))
    assert isinstance(frame, Frame)
    assert bytes(frame.rest) == b"x"


def test_many_small_pieces_of_a_frame_cost_no_memory_each() -> None:
    decoder = FrameDecoder(runs=SendReader())
    stream = frame_of(CommandSend(producer_id=1, sequence_id=5), bytes(100_000))
    for at in range(len(stream) - 1):
        assert list(decoder.receive(stream[at : at + 1])) == []
    assert len(decoder._begun) < 100
    (sends_,) = decoder.receive(stream[-1:])
    assert isinstance(sends_, Sends)
    assert sends_.entries == [bytes(100_000)]


def test_protobuf_refuses_what_the_hand_left_to_it() -> None:
    with pytest.raises(DecodeError):
        BaseCommand.FromString(b"\x08\x06\x32\x02\x00\x01")
