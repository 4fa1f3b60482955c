"""Commands of every type with values of every kind, against a served engine: a refusal, or the end of that connection.

What goes wrong inside is a bug: an exception that reaches the event loop, or a call of a client that fails.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from examples import examples
from gateway_support import BareClient, ServedEngine
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicator.engine.log.entry import encode_entry
from replicator.gateway import arriving, connection
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.protocol.commands_pb2 import BaseCommand
from replicator.protocol.frames import encode, encode_head
from replicator.protocol.server import COMMANDS

T = BaseCommand.Type
FIELDS = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields}
TOPICS = (
    "persistent://public/default/fuzz",
    "fuzz-2",
    "persistent://a/b/c-partition-0",
    "non-persistent://a/b/c",
    "",
    "/",
    "ä" * 500,
)
NUMBERS = (0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = ("s", "", "x" * 300, "\0", "(a+)+$", *TOPICS)
BYTES = (b"", b"\0" * 8, b"{", b'{"type":"record","name":"R","fields":[]}', bytes(1000))
REPEATED_MAX = 3
_INTEGERS = {
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
}


def value_of(field: FieldDescriptor, dice: random.Random, depth: int) -> Any:
    if field.type in _INTEGERS:
        least, most = _INTEGERS[field.type]
        return min(max(dice.choice((*NUMBERS, -1, dice.randrange(10))), least), most)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return dice.random() < 0.5
    if field.type == FieldDescriptor.TYPE_STRING:
        return dice.choice(TOPICS if field.name == "topic" else TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return dice.choice(BYTES)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return dice.choice(list(field.enum_type.values_by_number))
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return dice.random()
    raise AssertionError(field.type)


def fill(message: Any, dice: random.Random, depth: int = 0) -> None:
    """Give a message values; ids are small, so that commands meet what others opened."""
    for field in message.DESCRIPTOR.fields:
        needed = field.is_required
        if not needed and (depth > 2 or dice.random() < 0.6):
            continue
        if field.message_type is not None:
            many = dice.randrange(REPEATED_MAX) if field.is_repeated else 1
            for _ in range(many):
                part = getattr(message, field.name)
                fill(part.add() if field.is_repeated else part, dice, depth + 1)
                if not field.is_repeated:
                    part.SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).extend(
                value_of(field, dice, depth) for _ in range(dice.randrange(REPEATED_MAX))
            )
        elif field.name in ("consumer_id", "producer_id", "watcher_id", "request_id") and dice.random() < 0.9:
            setattr(message, field.name, dice.randrange(3))
        else:
            setattr(message, field.name, value_of(field, dice, depth))


def frame(dice: random.Random, kinds: list[int]) -> bytes:
    kind = dice.choice(kinds)
    command = BaseCommand(type=kind)
    part = getattr(command, FIELDS[kind])
    part.SetInParent()
    fill(part, dice)
    if kind != T.SEND:
        return encode(command)
    metadata = MessageMetadata()
    fill(metadata, dice)
    entry = encode_entry(metadata, dice.choice(BYTES)) if dice.random() < 0.8 else dice.choice(BYTES)
    return encode_head(command, len(entry)) + entry


@pytest.fixture
def bugs(gateway: ServedEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that fills with the errors inside the gateway."""
    found: list[str] = []

    class Log:
        def __getattr__(self, name: str) -> Any:
            return lambda event, **about: found.append(f"{event}: {about}") if name in ("error", "exception") else None

    monkeypatch.setattr(connection, "log", Log())
    monkeypatch.setattr(arriving, "log", Log())
    gateway.ask(lambda: gateway.loop.set_exception_handler(lambda loop, context: found.append(str(context))))
    return found


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning", "error::RuntimeWarning")
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_no_command_of_any_values_is_more_than_refused(gateway: ServedEngine, bugs: list[str], seed: int) -> None:
    dice = random.Random(seed)
    kinds = sorted(COMMANDS)
    with BareClient(gateway.port) as good, BareClient(gateway.port) as bad:
        try:
            for _ in range(20):
                bad.socket.sendall(frame(dice, kinds))
        except ConnectionError:
            pass  # one of them was the end of it
        good.ping()
    gateway.ask(lambda: None)
    assert not bugs
