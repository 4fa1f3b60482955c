"""Compatibility of schemas by every strategy, and versions that are the same wherever they are made."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import IncompatibleSchema
from replicator.engine.policies import SchemaStrategy
from replicator.engine.schemas import avro
from replicator.engine.schemas.compatibility import check, check_consumer
from replicator.engine.schemas.schema import SCHEMA_BYTES_MAX, SchemaType, TopicSchema


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    """Fields as ``(name, type)`` or ``(name, type, default)``."""
    made = [{"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})} for each in fields]
    return {"type": "record", "name": name, "fields": made}


def schema(definition: Any, kind: SchemaType = SchemaType.AVRO, **properties: str) -> TopicSchema:
    return TopicSchema(kind, json.dumps(definition).encode(), properties)


OLD = record(("a", "int"))
WITH_DEFAULT = record(("a", "int"), ("b", "string", ""))
WITHOUT_DEFAULT = record(("a", "int"), ("b", "string"))


@pytest.mark.parametrize(
    ("reader", "writer", "readable"),
    [
        ("long", "int", True),
        ("int", "long", False),
        ("double", "float", True),
        ("string", "bytes", True),
        ("boolean", "int", False),
        (["null", "int"], "int", True),
        ("int", ["null", "int"], False),
        (["null", "long"], ["null", "int"], True),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        ({"type": {"type": "string"}}, "string", True),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, False),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            False,
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            True,
        ),
        (OLD, WITH_DEFAULT, True),
        (WITH_DEFAULT, OLD, True),
        (WITHOUT_DEFAULT, OLD, False),
        (record(("a", "int"), name="x.R"), record(("a", "int"), name="y.R"), True),
        ({**OLD, "name": "S"}, OLD, True),
        (record(("in", record(("x", "int"), name="J"))), record(("in", record(("x", "int"), name="I"))), True),
        ({"type": "fixed", "name": "G", "size": 4}, {"type": "fixed", "name": "F", "size": 4}, False),
        ({"type": "fixed", "name": "G", "size": 4, "aliases": ["F"]}, {"type": "fixed", "name": "F", "size": 4}, True),
        ({"type": "record", "name": "R", "fields": [{"name": "z", "type": "int", "aliases": ["a"]}]}, OLD, True),
        (record(("next", ["null", "R"])), record(("next", ["null", "R"])), True),
        (record(("in", record(("x", "long"), name="I"))), record(("in", record(("x", "int"), name="I"))), True),
        (record(("in", record(("x", "int"), name="I"))), record(("in", record(("x", "long"), name="I"))), False),
    ],
)
def test_what_reads_what(reader: Any, writer: Any, readable: bool) -> None:
    assert (avro.problem(reader, writer) is None) is readable


def test_what_cannot_be_read_is_named_with_its_place() -> None:
    ours, theirs = record(("in", record(("x", "int"), name="I"))), record(("in", record(("x", "string"), name="I")))
    assert avro.problem(ours, theirs) == "in.x: int does not read string"


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.sampled_from(["int", "string", "record", "R", "enum", "x"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size"]), inner),
    ),
    max_leaves=12,
)


@given(json_values, json_values)
def test_whatever_is_sent_as_a_schema_is_compared_or_refused_by_name(reader: Any, writer: Any) -> None:
    with contextlib.suppress(IncompatibleSchema):
        avro.problem(reader, writer)


def test_schemas_without_end_are_refused() -> None:
    deep: Any = "int"
    for _ in range(2_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(IncompatibleSchema, match="deep"):
        avro.problem(deep, deep)
    wide: Any = "int"
    for _ in range(12):
        wide = {"type": "array", "items": [wide, "string", "null", "boolean"]}
    wider = json.loads(json.dumps(wide).replace('"int"', '"float"'))
    avro.problem(wide, wider)


@pytest.mark.parametrize(
    ("strategy", "allowed", "refused"),
    [
        (SchemaStrategy.BACKWARD, [WITH_DEFAULT, record()], [WITHOUT_DEFAULT]),
        (SchemaStrategy.FORWARD, [WITH_DEFAULT, WITHOUT_DEFAULT], [record()]),
        (SchemaStrategy.FULL, [WITH_DEFAULT], [WITHOUT_DEFAULT, record()]),
        (SchemaStrategy.ALWAYS_COMPATIBLE, [WITHOUT_DEFAULT, record(), record(("a", "string"))], []),
        (SchemaStrategy.ALWAYS_INCOMPATIBLE, [], [OLD, WITH_DEFAULT]),
    ],
)
@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF])
def test_strategies(strategy: SchemaStrategy, allowed: list[Any], refused: list[Any], kind: SchemaType) -> None:
    for each in allowed:
        check(schema(each, kind), [schema(OLD, kind)], strategy)
    for each in refused:
        with pytest.raises(IncompatibleSchema):
            check(schema(each, kind), [schema(OLD, kind)], strategy)


@pytest.mark.parametrize("strategy", ["BACKWARD", "FULL"])
def test_transitive_strategies_look_at_all_and_others_at_the_newest(strategy: str) -> None:
    history = [schema(record(("a", "int"))), schema(record(("a", "int"), ("b", "int", 0)))]
    reader = schema(record(("a", "int"), ("b", "int", 0), ("c", "int", 0)))
    check(reader, history, SchemaStrategy[strategy])
    history.insert(0, schema(record(("a", "string"))))
    check(reader, history, SchemaStrategy[strategy])
    with pytest.raises(IncompatibleSchema):
        check(reader, history, SchemaStrategy[f"{strategy}_TRANSITIVE"])


def test_another_type_is_incompatible() -> None:
    with pytest.raises(IncompatibleSchema, match="type AVRO, not JSON"):
        check(schema(OLD, SchemaType.JSON), [schema(OLD)], SchemaStrategy.FULL)
    check(schema(OLD, SchemaType.JSON), [schema(OLD)], SchemaStrategy.ALWAYS_COMPATIBLE)


def test_primitives_go_with_their_own_kind() -> None:
    text, number = TopicSchema(SchemaType.STRING, b""), TopicSchema(SchemaType.INT32, b"")
    check(text, [text], SchemaStrategy.FULL)
    with pytest.raises(IncompatibleSchema):
        check(number, [text], SchemaStrategy.FULL)


def key_value(key: Any, value: Any) -> TopicSchema:
    parts = [json.dumps(each).encode() for each in (key, value)]
    definition = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    properties = {"key.schema.type": "AVRO", "value.schema.type": "AVRO"}
    return TopicSchema(SchemaType.KEY_VALUE, definition, properties)


def test_keys_and_values_are_compared_each_by_itself() -> None:
    check(key_value(OLD, WITH_DEFAULT), [key_value(OLD, OLD)], SchemaStrategy.FULL)
    with pytest.raises(IncompatibleSchema, match="value: b"):
        check(key_value(OLD, WITHOUT_DEFAULT), [key_value(OLD, OLD)], SchemaStrategy.FULL)
    with pytest.raises(IncompatibleSchema, match="cut short"):
        check(TopicSchema(SchemaType.KEY_VALUE, b"\0\0\1\0"), [key_value(OLD, OLD)], SchemaStrategy.FULL)


def test_native_protobuf_keeps_the_name_of_its_message() -> None:
    one, other = ({"rootMessageTypeName": name} for name in ("a.M", "a.N"))
    check(schema(one, SchemaType.PROTOBUF_NATIVE), [schema(one, SchemaType.PROTOBUF_NATIVE)], SchemaStrategy.FULL)
    with pytest.raises(IncompatibleSchema):
        check(schema(other, SchemaType.PROTOBUF_NATIVE), [schema(one, SchemaType.PROTOBUF_NATIVE)], SchemaStrategy.FULL)


def test_a_consumer_must_read_what_is_written_and_may_lack_what_producers_must_keep() -> None:
    check_consumer(schema(record()), [schema(OLD)], SchemaStrategy.FULL)
    with pytest.raises(IncompatibleSchema):
        check_consumer(schema(WITHOUT_DEFAULT), [schema(OLD)], SchemaStrategy.FULL)


def test_a_version_follows_from_the_content_and_is_a_number_for_every_tool() -> None:
    one = schema(OLD, a="1", b="2")
    same = TopicSchema(SchemaType.AVRO, one.definition, {"b": "2", "a": "1"}, "another name")
    assert one.version == same.version
    assert len(one.version) == 8
    assert one.version.isascii()
    others = [schema(OLD), schema(OLD, SchemaType.JSON, a="1", b="2"), schema(OLD, a="1b", b="2"), schema(WITH_DEFAULT)]
    assert len({one.version, *(each.version for each in others)}) == 5
    # Pinned: what is stored in messages is for ever.
    assert TopicSchema(SchemaType.STRING, b"").version.hex() == PINNED


PINNED = "226f2f4844353055"


@pytest.mark.parametrize(
    "wrong", [TopicSchema(SchemaType.JSON, b"{"), TopicSchema(SchemaType.STRING, bytes(SCHEMA_BYTES_MAX + 1))]
)
def test_schemas_that_are_too_large_or_no_json_are_refused(wrong: TopicSchema) -> None:
    with pytest.raises(IncompatibleSchema):
        wrong.check()
