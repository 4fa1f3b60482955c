"""Values become payloads and values again; what does not fit names its field."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from replicator.client.errors import InvalidConfiguration, SchemaError
from replicator.client.message import Message, Opening, OutgoingMessage, messages_of
from replicator.client.producing.framing import EntryFramer, single_entry
from replicator.client.schema import BytesSchema, JsonSchema, Schema, StringSchema
from replicator.engine.types import Delivery
from snapshots.position import Position


@dataclass
class Line:
    article: str
    count: int


@dataclass
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)
    note: str | None = None


class Payment(BaseModel):
    number: int
    amount: float = 0.0


class Shipment:
    number: int
    street: str = "unknown"

    def __init__(self, number: int, street: str = "unknown") -> None:
        self.number = number
        self.street = street


def _message(payload: bytes, schema: Schema | None) -> Message:
    entry = single_entry(OutgoingMessage(payload), 0, EntryFramer("p"), 0, None).entry
    assert isinstance(entry, bytes)
    delivery = Delivery(Position(4, 7), 0, 1, None, entry, "eu", Position(4, 7))
    (message,) = messages_of(delivery, "persistent://public/default/t", -1, None, Opening(schema=schema))
    return message


@pytest.mark.parametrize(
    ("schema", "value", "payload"),
    [
        (BytesSchema(), b"\x00\xff", b"\x00\xff"),
        (StringSchema(), "grün", "grün".encode()),
        (
            JsonSchema(Order),
            Order(3, [Line("a", 2)]),
            {"number": 3, "lines": [{"article": "a", "count": 2}], "note": None},
        ),
        (JsonSchema(Payment), Payment(number=3, amount=1.5), {"number": 3, "amount": 1.5}),
    ],
)
def test_a_value_survives_its_payload(schema: Schema, value: Any, payload: Any) -> None:
    encoded = schema.encode(value)
    assert (encoded if isinstance(payload, bytes) else json.loads(encoded)) == payload
    assert schema.decode(encoded) == value
    assert _message(encoded, schema).value() == value


def test_a_class_with_annotated_attributes_is_a_record() -> None:
    schema = JsonSchema(Shipment)
    assert json.loads(schema.encode(Shipment(5))) == {"number": 5, "street": "unknown"}
    back = schema.decode(b'{"number": 6, "street": "x"}')
    assert (type(back), back.number, back.street) == (Shipment, 6, "x")
    assert schema.decode(b'{"number": 6}').street == "unknown"


def test_without_a_schema_the_value_is_the_payload() -> None:
    assert _message(b"\xff", None).value() == b"\xff"


@pytest.mark.parametrize(
    ("schema", "value", "named"),
    [
        (BytesSchema(), "text", "it must be bytes"),
        (StringSchema(), b"bytes", "it must be str"),
        (StringSchema(), "\ud800", "UTF-8"),
        (JsonSchema(Order), {"number": 1}, "it must be Order"),
        (JsonSchema(Order), Order("x"), "Order: field number"),  # type: ignore[arg-type]
        (JsonSchema(Order), Order(1, [Line("a", "b")]), "field lines.0.count"),  # type: ignore[arg-type]
        (JsonSchema(Payment), Payment.model_construct(number="x"), "Payment: field number"),
        (JsonSchema(Shipment), Shipment("x"), "Shipment: field number"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_does_not_fit_names_its_field(schema: Schema, value: Any, named: str) -> None:
    with pytest.raises(SchemaError, match=named):
        schema.encode(value)


@pytest.mark.parametrize(
    ("schema", "payload", "named"),
    [
        (StringSchema(), b"ab\xff", "not UTF-8 at byte 2"),
        (JsonSchema(Order), b"not json", "Order: field \\(the whole\\)"),
        (JsonSchema(Order), b"{}", "field number"),
        (JsonSchema(Payment), b'{"number": 1, "amount": "x"}', "field amount"),
    ],
)
def test_a_payload_that_does_not_fit_names_topic_message_and_field(schema: Schema, payload: bytes, named: str) -> None:
    message = _message(payload, schema)
    assert message.data() == payload, "the payload itself can be had"
    with pytest.raises(SchemaError, match=rf"message 4:7:.* of persistent://public/default/t does not fit .*{named}"):
        message.value()


@pytest.mark.parametrize("record_cls", [object, 5, "Order"])
def test_a_class_that_cannot_be_described_is_refused(record_cls: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="JsonSchema"):
        JsonSchema(record_cls)
