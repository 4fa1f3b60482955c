"""Frames of the binary protocol: any pieces give the same frames, and any damage gives one named error."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.log.entry import varint
from replicator.metadata.metadata_pb2 import KeyValue
from replicator.protocol import frames as frames_module
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CommandFlow,
    CommandGetTopicsOfNamespaceResponse,
    CommandPing,
    CommandProducer,
    CommandSeek,
    CommandSend,
    MessageIdData,
)
from replicator.protocol.errors import BadFrame, FrameTooLarge, ProtocolError, TooManyParts
from replicator.protocol.frames import (
    FIELDS_MAX,
    PARTS_MAX,
    FrameDecoder,
    encode,
    encode_broker_metadata,
    encode_head,
    frame_bytes_max,
    split_broker_metadata,
)
from replicator.protocol.runs import SendReader


def ping() -> BaseCommand:
    return BaseCommand(type=BaseCommand.PING, ping=CommandPing())


def send(sequence: int) -> BaseCommand:
    return BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=sequence))


def flow(permits: int) -> BaseCommand:
    return BaseCommand(type=BaseCommand.FLOW, flow=CommandFlow(consumer_id=7, messagePermits=permits))


frames = st.lists(
    st.one_of(
        st.builds(lambda n: (flow(n), b""), st.integers(0, 2**32 - 1)),
        st.builds(lambda n, rest: (send(n), rest), st.integers(0, 2**63), st.binary(max_size=200)),
        st.just((ping(), b"")),
    ),
    max_size=12,
)


@given(sent=frames, cuts=st.lists(st.integers(0, 400), max_size=40))
def test_frames_come_out_as_they_went_in_whatever_pieces_they_come_in(
    sent: list[tuple[BaseCommand, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode_head(command, len(rest)) + rest for command, rest in sent)
    decoder, got, at = FrameDecoder(), [], 0
    for cut in [*cuts, len(stream)]:
        piece = stream[at : at + cut]
        at += len(piece)
        got += [(frame.command, bytes(frame.rest)) for frame in decoder.receive(piece)]
    assert got == sent
    assert decoder.waits == 0


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_garbage_is_a_protocol_error_or_nothing_and_takes_no_more_memory_than_was_sent(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(bytes_max=1000)
    try:
        for piece in pieces:
            for frame in decoder.receive(piece):
                assert frame.command.IsInitialized()
    except ProtocolError:
        return
    assert decoder.waits <= min(1000, sum(map(len, pieces)))


def test_a_frame_over_the_limit_is_refused_by_its_size_alone() -> None:
    with pytest.raises(FrameTooLarge, match=r"2147483651 bytes is over the limit"):
        list(FrameDecoder().receive(struct.pack(">I", 2**31 - 1)))
    with pytest.raises(FrameTooLarge):
        list(FrameDecoder().receive(struct.pack(">I", frame_bytes_max() - 3)))
    assert list(FrameDecoder().receive(struct.pack(">I", frame_bytes_max() - 4))) == []


def test_a_size_that_comes_byte_by_byte_is_refused_as_well() -> None:
    decoder = FrameDecoder(bytes_max=100)
    size = struct.pack(">I", 5000)
    for byte in size[:3]:
        assert list(decoder.receive(bytes([byte]))) == []
    with pytest.raises(FrameTooLarge):
        list(decoder.receive(size[3:]))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (struct.pack(">I", 3) + b"abc", "no room for a command"),
        (struct.pack(">II", 8, 9) + b"abcd", "command of 9 bytes"),
        (struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff", "cannot be read"),
        (struct.pack(">II", 4, 0), "lacks"),
        (struct.pack(">II", 6, 2) + b"\x08\x01", "unknown type"),
        (encode_head(BaseCommand(type=BaseCommand.FLOW), 0), "lacks"),
    ],
)
def test_a_frame_that_contradicts_itself_is_named(frame: bytes, problem: str) -> None:
    with pytest.raises(BadFrame, match=problem):
        list(FrameDecoder().receive(frame))


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">II", 7, 3) + b"\x08\x06\x32",
        struct.pack(">II", 7, 0) + b"\x08\x06\x32",
        struct.pack(">II", 6, 2) + b"\x08\x06",
        struct.pack(">II", 8, 4) + b"\x08\x06\x32\x00",
    ],
)
@pytest.mark.parametrize("cut", [0, 3, 8, 9])
def test_the_beginning_of_a_send_alone_is_no_send(frame: bytes, cut: int) -> None:
    """A whole command before it is taken, in whatever pieces it comes."""
    good = encode_head(BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=2)), 1) + b"x"
    decoder, got = FrameDecoder(runs=SendReader()), []
    pieces = (good + frame[:cut], frame[cut:])
    with pytest.raises(BadFrame):
        got.extend(each.entries for piece in pieces for each in decoder.receive(piece))
    assert got == [[b"x"]]


def test_a_limit_that_a_frame_raises_holds_for_what_stands_behind_it() -> None:
    """Otherwise a frame above the former limit would be taken before all of it has come."""
    decoder = FrameDecoder(bytes_max=1_000)
    stream = decoder.receive(encode(ping()) + encode_head(flow(1), 5_000) + b"x" * 100)
    assert next(stream).command == ping()
    decoder.bytes_max = 10_000
    assert list(stream) == []
    (frame,) = decoder.receive(b"x" * 4_900)
    assert bytes(frame.rest) == b"x" * 5_000


def test_good_frames_before_a_bad_one_are_good() -> None:
    decoder, got = FrameDecoder(), []
    stream = decoder.receive(encode(ping()) + encode(flow(3)) + struct.pack(">II", 8, 9) + b"abcd")
    with pytest.raises(BadFrame):
        got.extend(frame.command for frame in stream)
    assert got == [ping(), flow(3)]


def test_broker_metadata_stands_before_the_entry_and_only_where_it_is() -> None:
    metadata = BrokerEntryMetadata(broker_timestamp=17, index=4)
    entry = b"\x0e\x01entry"
    assert split_broker_metadata(memoryview(encode_broker_metadata(metadata) + entry)) == (metadata, entry)
    assert split_broker_metadata(memoryview(entry)) == (None, entry)
    with pytest.raises(BadFrame):
        split_broker_metadata(memoryview(struct.pack(">HI", 0x0E02, 500) + b"short"))


def test_numbers_are_those_of_the_public_protocol() -> None:
    """Bytes as other implementations write them: field 1 is the type, and a command's field has the type's number."""
    assert encode(flow(1000)) == bytes.fromhex("0000000d00000009080b5a05080710e807")
    position = MessageIdData(ledgerId=3, entryId=0, batch_index=2)
    assert position.SerializeToString() == bytes.fromhex("080310002002")
    for kind, number in BaseCommand.Type.items():
        fields = [field for field in BaseCommand.DESCRIPTOR.fields if field.number == number]
        assert len(fields) == 1, kind


def producer_with(properties: int) -> bytes:
    many = [KeyValue(key="k", value="v")] * properties
    command = CommandProducer(topic="t", producer_id=1, request_id=7, metadata=many)
    return encode(BaseCommand(type=BaseCommand.PRODUCER, producer=command))


def nested_ids(count: int) -> bytes:
    """Return a SEEK whose message id has another one in it, and so on."""
    message_id = b""
    for _ in range(count):
        message_id = b"\x08\x01\x10\x01\x3a" + varint(len(message_id)) + message_id
    seek = b"\x08\x01\x10\x01\x1a" + varint(len(message_id)) + message_id
    return b"\x08\x1c\xe2\x01" + varint(len(seek)) + seek


@pytest.mark.parametrize("properties", [PARTS_MAX + 1, 100_001])
def test_a_command_with_too_many_properties_is_refused_before_it_is_parsed(
    properties: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To parse 100,000 properties took 50 ms, and the result stayed in memory until the next collection of garbage."""

    def parsed(_: bytes) -> BaseCommand:
        raise AssertionError("it is parsed")

    frame = producer_with(properties)
    monkeypatch.setattr(
        frames_module,
        "BaseCommand",
        SimpleNamespace(DESCRIPTOR=BaseCommand.DESCRIPTOR, Type=BaseCommand.Type, FromString=parsed),
    )
    (refused,) = FrameDecoder(refuses=True).receive(frame)
    assert (refused.request_id, refused.__traceback__) == (7, None)
    assert "PRODUCER has more than 1000 parts" in str(refused)


def test_a_command_may_have_as_many_properties_as_the_limit_says() -> None:
    (frame,) = FrameDecoder(refuses=True).receive(producer_with(PARTS_MAX))
    assert len(frame.command.producer.metadata) == PARTS_MAX


@pytest.mark.parametrize(
    "command",
    [
        b"\x08\x05" * 500_000,  # the type again and again
        BaseCommand(type=BaseCommand.PRODUCER, producer=CommandProducer()).SerializePartialToString() * 2_000,
        b"\x08\x05\x2a\xa0\xc2\x1e" + b"\x10\x01" * 250_000,  # the producer's id again and again
        b"\x08\x12" + b"\x92\x01\x00" * 300_000,  # many PINGs in one
        b"\xfb\x3f\xfc\x3f" + producer_with(100_001)[8:],  # behind a group, which the parser passes over
        nested_ids(PARTS_MAX + 200),
        b"\x08\x12\x92\x01\x00\x52" + varint(200_000) + b"\x1a\x00" * 100_000,  # a list of ids in a PING
        b"\x08\x0a\x52" + varint(600_000) + b"\x1a\x00" * 300_000,  # a list of ids that is too long
        b"\xf8\x01\x01" * 300_000,  # of a field that is unknown
    ],
)
def test_a_client_may_not_hide_parts_in_fields_that_are_there_again(
    command: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    read_varint = frames_module._varint

    def counted(encoded: bytes, at: int) -> tuple[int, int]:
        nonlocal looked_at
        looked_at += 1
        return read_varint(encoded, at)

    monkeypatch.setattr(frames_module, "_varint", counted)
    got: list[object] = []
    try:
        got += FrameDecoder(refuses=True).receive(struct.pack(">II", len(command) + 4, len(command)) + command)
    except TooManyParts as error:
        got.append(error)
    assert [type(each) for each in got] == [TooManyParts]
    assert looked_at < 4 * FIELDS_MAX


def test_a_server_may_list_any_number_of_topics() -> None:
    listed = CommandGetTopicsOfNamespaceResponse(request_id=1, topics=["persistent://public/default/t"] * 20_000)
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=listed)
    (frame,) = FrameDecoder().receive(encode(command))
    assert len(frame.command.getTopicsOfNamespaceResponse.topics) == 20_000


@given(st.binary(max_size=200))
def test_the_count_of_parts_reads_any_bytes(command: bytes) -> None:
    assert frames_module._too_many_parts(command) is None


def test_a_seek_into_the_largest_batch_is_let_through() -> None:
    seek = CommandSeek(
        consumer_id=1, request_id=1, message_id=MessageIdData(ledgerId=1, entryId=1, ack_set=[-1] * 1_563)
    )
    (frame,) = FrameDecoder(refuses=True).receive(encode(BaseCommand(type=BaseCommand.SEEK, seek=seek)))
    assert len(frame.command.seek.message_id.ack_set) == 1_563


def test_the_request_id_of_a_refused_command_is_one_that_an_answer_can_have() -> None:
    frame = producer_with(PARTS_MAX + 1)
    command = frame[8:].replace(b"\x18\x07", b"\x18" + b"\xff" * 9 + b"\x7f", 1)
    command = command[:3] + varint(len(command) - 5) + command[5:]
    (refused,) = FrameDecoder(refuses=True).receive(struct.pack(">II", len(command) + 4, len(command)) + command)
    assert refused.request_id == 2**64 - 1
