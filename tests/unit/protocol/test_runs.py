"""Runs of commands: what protobuf reads one by one, gathered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.log.entry import BATCH_MESSAGES_MAX
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandActiveConsumerChange,
    CommandMessage,
    CommandSendReceipt,
    MessageIdData,
)
from replicator.protocol.data_commands import MessageHeadWriter, ReceiptWriter, SendHeadWriter, Sends, message_additions
from replicator.protocol.errors import BadFrame
from replicator.protocol.forms import Form
from replicator.protocol.frames import FrameDecoder, encode, encode_head
from replicator.protocol.runs import FORM_BYTES_MAX, FORMS_MAX, RUN_MAX, AnswerReader, Messages, Receipts
from replicator.protocol.values import message_id, position_of
from snapshots.position import BEFORE_ALL, Position

U64 = 2**64 - 1
T = BaseCommand.Type
few = st.one_of(st.integers(0, 3), st.sampled_from([127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**28, 2**63, U64]))
u64 = st.one_of(few, st.integers(0, U64))
CHANGE = encode(
    BaseCommand(
        type=T.ACTIVE_CONSUMER_CHANGE,
        active_consumer_change=CommandActiveConsumerChange(consumer_id=7, is_active=True),
    )
)


@st.composite
def messages(draw: st.DrawFn) -> CommandMessage:
    """Draw commands of few shapes, so that some have the form of an earlier one."""
    made = CommandMessage(
        consumer_id=draw(st.integers(1, 2)),
        message_id=MessageIdData(ledgerId=draw(st.integers(1, 2)), entryId=draw(u64)),
    )
    if draw(st.booleans()):
        made.message_id.partition = made.message_id.batch_index = -1
    if draw(st.booleans()):
        made.redelivery_count = draw(st.integers(0, 1))
        made.consumer_epoch = 0
    if draw(st.integers(0, 5)) == 0:
        made.ack_set.extend(draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)))
    if draw(st.integers(0, 3)) == 0:
        made.batch_size = draw(st.integers(1, 300))
    if draw(st.integers(0, 3)) == 0:
        made.origin, made.origin_ledger, made.origin_entry = draw(st.sampled_from(["eu", "us"])), 3, draw(few)
    return made


@st.composite
def receipts(draw: st.DrawFn) -> CommandSendReceipt:
    made = CommandSendReceipt(producer_id=draw(st.integers(1, 2)), sequence_id=draw(u64))
    if draw(st.integers(0, 3)):
        made.message_id.CopyFrom(MessageIdData(ledgerId=draw(few), entryId=draw(u64)))
    if draw(st.booleans()):
        made.highest_sequence_id = draw(st.integers(0, 1))
    if draw(st.integers(0, 5)) == 0:
        made.sends, made.last_sequence_id = draw(st.integers(1, 3)), draw(few)
    return made


def framed(sent: CommandMessage | CommandSendReceipt | None, rest: bytes) -> bytes:
    if sent is None:
        return CHANGE
    if isinstance(sent, CommandMessage):
        return encode_head(BaseCommand(type=T.MESSAGE, message=sent), len(rest)) + rest
    return encode(BaseCommand(type=T.SEND_RECEIPT, send_receipt=sent))


def known(sent: CommandMessage | CommandSendReceipt | None, rest: bytes) -> object:
    """Return the parts of a command that a client must know."""
    if sent is None:
        return "change"
    if isinstance(sent, CommandSendReceipt):
        return (sent.producer_id, sent.sequence_id, position_of(sent.message_id), sent.sends, sent.last_sequence_id)
    origin = (sent.origin, Position(sent.origin_ledger, sent.origin_entry)) if sent.origin else None
    shape = (sent.redelivery_count, tuple(sent.ack_set), sent.consumer_epoch, sent.HasField("consumer_epoch"))
    return (sent.consumer_id, position_of(sent.message_id), shape, sent.batch_size, origin, rest)


def gathered(pieces: Sequence[bytes]) -> list[object]:
    found: list[object] = []
    decoder = FrameDecoder(runs=AnswerReader())
    for piece in pieces:
        for each in decoder.receive(piece):
            if isinstance(each, Messages):
                one = each.command
                shape = (one.redelivery_count, tuple(one.ack_set), one.consumer_epoch, one.HasField("consumer_epoch"))
                origins = each.origin_positions() if one.origin else [None] * len(each.numbers)
                for position, size, origin, rest in zip(
                    each.positions(), each.batch_sizes(), origins, each.rests, strict=True
                ):
                    told = None if origin is None else (one.origin, origin)
                    found.append((one.consumer_id, position, shape, size, told, rest))
            elif isinstance(each, Receipts):
                one_receipt = each.command
                for numbers, position in zip(each.numbers, each.positions(), strict=True):
                    several = (one_receipt.sends, one_receipt.last_sequence_id)
                    found.append((one_receipt.producer_id, numbers[0], position, *several))
            else:
                assert each.command.type == T.ACTIVE_CONSUMER_CHANGE
                found.append("change")
    assert decoder.waits == 0
    return found


@given(
    sent=st.lists(st.tuples(st.one_of(st.none(), messages(), receipts()), st.binary(max_size=20)), max_size=20),
    cuts=st.lists(st.one_of(st.integers(0, 60), st.integers(100, 900)), max_size=40),
)
def test_what_is_gathered_is_what_protobuf_reads_one_by_one_in_its_order(
    sent: list[tuple[CommandMessage | CommandSendReceipt | None, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(framed(*each) for each in sent)
    pieces, at = [], 0
    for cut in [*cuts, len(stream)]:
        pieces.append(stream[at : at + cut])
        at += cut
    assert gathered(pieces) == [known(*each) for each in sent]


@given(
    sent=messages(),
    changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_what_has_the_form_of_another_says_the_same_but_for_its_numbers(
    sent: CommandMessage, changes: list[tuple[int, int]]
) -> None:
    encoded = BaseCommand(type=T.MESSAGE, message=sent).SerializeToString()
    paths = ((9, 2, 2), (9, 100), (9, 103))
    form = Form.of(encoded, paths)
    assert form is not None
    changed = bytearray(encoded)
    for at, byte in changes:
        changed[at % len(changed)] = byte
    numbers = form.numbers(b"\xff" + bytes(changed) + b"\xff", 1)
    if numbers is None:
        return
    sent.message_id.entryId = numbers[0]
    if sent.HasField("batch_size"):
        sent.batch_size = numbers[1] & 0xFFFFFFFF  # as the parser takes one that is too large
    if sent.HasField("origin_entry"):
        sent.origin_entry = numbers[-1]
    assert BaseCommand.FromString(bytes(changed)) == BaseCommand(type=T.MESSAGE, message=sent)


@pytest.mark.parametrize("batch_size", [0, BATCH_MESSAGES_MAX + 1, 2**32 - 1])
@pytest.mark.parametrize("known", [True, False])
def test_an_entry_of_more_messages_than_one_can_have_is_refused_before_anybody_counts_them(
    batch_size: int, known: bool
) -> None:
    def sized(size: int) -> bytes:
        place = MessageIdData(ledgerId=1, entryId=1)
        return framed(CommandMessage(consumer_id=1, message_id=place, batch_size=size, ack_set=[1]), b"x")

    decoder = FrameDecoder(runs=AnswerReader())
    if known:  # by its form; numbers of other lengths have other forms
        like = {0: 1, BATCH_MESSAGES_MAX + 1: BATCH_MESSAGES_MAX, 2**32 - 1: BATCH_MESSAGES_MAX}[batch_size]
        assert len(list(decoder.receive(sized(like)))) == 1
    with pytest.raises(BadFrame, match=f"an entry says that it has {batch_size} messages"):
        list(decoder.receive(sized(batch_size)))


def test_an_origin_that_is_no_text_is_refused() -> None:
    good = framed(CommandMessage(consumer_id=1, message_id=MessageIdData(ledgerId=1, entryId=1), origin="abcd"), b"")
    decoder = FrameDecoder(runs=AnswerReader())
    assert len(list(decoder.receive(good))) == 1
    with pytest.raises(BadFrame, match="origin"):
        list(decoder.receive(good.replace(b"abcd", b"ab\xff\xfe")))


def test_neighbours_are_one_run_up_to_a_limit() -> None:
    def message(entry: int, consumer: int) -> bytes:
        one = CommandMessage(consumer_id=consumer, message_id=MessageIdData(ledgerId=1, entryId=entry))
        return framed(one, b"x")

    stream = b"".join(message(entry, 1) for entry in range(200, 201 + RUN_MAX)) + message(300, 2) + message(301, 2)
    runs = list(FrameDecoder(runs=AnswerReader()).receive(stream))
    assert [len(each.rests) for each in runs] == [RUN_MAX, 1, 2]


def test_few_forms_of_small_commands_are_remembered() -> None:
    reader = AnswerReader()
    decoder = FrameDecoder(runs=reader)
    for consumer in range(10):
        list(
            decoder.receive(
                framed(CommandMessage(consumer_id=consumer, message_id=MessageIdData(ledgerId=1, entryId=1)), b"")
            )
        )
    assert len(reader._forms) == FORMS_MAX
    large = CommandMessage(
        consumer_id=1, message_id=MessageIdData(ledgerId=1, entryId=1), ack_set=[-1] * FORM_BYTES_MAX
    )
    (run,) = decoder.receive(framed(large, b"x"))
    assert run.command == large
    assert all(form.size <= FORM_BYTES_MAX for form, *_ in reader._forms)


def _run(producer_id: int, sequence_ids: Sequence[int]) -> Sends:
    run = Sends(producer_id)
    run.sequence_ids = list(sequence_ids)
    run.highest_sequence_ids = [0] * len(sequence_ids)
    return run


@given(
    producer_id=u64,
    partition=st.integers(-1, 2**31 - 1),
    sent=st.lists(
        st.tuples(u64, st.one_of(st.just(BEFORE_ALL), st.builds(Position, st.integers(1, 2), st.integers(0, 4)))),
        max_size=12,
    ),
)
def test_a_receipt_of_several_sends_says_what_one_for_each_would(
    producer_id: int, partition: int, sent: list[tuple[int, Position]]
) -> None:
    run = _run(producer_id, [sequence_id for sequence_id, _ in sent])
    frames = ReceiptWriter(producer_id, partition, extended=True).write(run, [position for _, position in sent])
    at = 0
    for frame in FrameDecoder().receive(frames):
        receipt = frame.command.send_receipt
        position = position_of(receipt.message_id)
        assert receipt.producer_id == producer_id
        assert receipt.message_id == message_id(position, partition)
        steps = [position, *(Position(position.ledger, position.entry + step) for step in range(1, receipt.sends))]
        assert steps == [position for _, position in sent[at : at + receipt.sends]]
        assert receipt.sequence_id == sent[at][0]
        at += receipt.sends
        assert receipt.sends == 1 or receipt.last_sequence_id == sent[at - 1][0]
    assert at == len(sent)


def test_one_receipt_answers_all_that_lie_one_behind_the_other() -> None:
    run = _run(1, range(5))
    places = [Position(1, 7), Position(1, 8), Position(1, 9), Position(1, 11), Position(2, 12)]
    frames = FrameDecoder().receive(ReceiptWriter(1, -1, extended=True).write(run, places))
    assert [frame.command.send_receipt.sends for frame in frames] == [3, 1, 1]


@given(producer_id=u64, sequence_ids=st.lists(u64, min_size=1), entry_bytes=st.integers(0, 6_000_000))
def test_heads_of_sends_are_read_as_they_were_meant(
    producer_id: int, sequence_ids: list[int], entry_bytes: int
) -> None:
    writer = SendHeadWriter(producer_id)
    for sequence_id in sequence_ids:
        send = BaseCommand(type=T.SEND)
        send.send.producer_id, send.send.sequence_id = producer_id, sequence_id
        assert writer.head(sequence_id, entry_bytes) == encode_head(send, entry_bytes)


@given(
    many=st.lists(
        st.tuples(
            st.builds(Position, st.integers(1, 2), u64),
            st.integers(0, 2),
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
            st.integers(1, 300),
            st.one_of(st.none(), st.text(max_size=200)),
            st.builds(Position, u64, u64),
        ),
        max_size=6,
    )
)
def test_heads_with_our_additions_are_the_bytes_that_protobuf_makes(
    many: list[tuple[Position, int, list[int], int, str | None, Position]],
) -> None:
    writer = MessageHeadWriter(3, -1)
    for position, redeliveries, left, size, origin, origin_position in many:
        wanted = CommandMessage(
            consumer_id=3,
            message_id=message_id(position, -1),
            redelivery_count=redeliveries,
            ack_set=left,
            consumer_epoch=5,
        )
        if size != 1:
            wanted.batch_size = size
        if origin is not None:
            wanted.origin = origin
            wanted.origin_ledger, wanted.origin_entry = origin_position
        head = writer.head(position, redeliveries, 9, left, 5, message_additions(size, origin, origin_position))
        assert head == encode_head(BaseCommand(type=T.MESSAGE, message=wanted), 9)
