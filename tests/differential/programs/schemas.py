"""Schemas: what is registered, what is compatible, what is refused, and what comes back."""

from __future__ import annotations

from typing import Any

import pulsar.schema as ps
from differential.harness import COMES_MS, At, attempt, data, program, said, send_all, take, texts


def record(called: str = "Person", /, **fields: Any) -> Any:
    return type(called, (ps.Record,), fields)


def base() -> Any:
    return record(name=ps.String(), age=ps.Integer())


FORMS = {
    "the same": base,
    "another name": lambda: record("Human", name=ps.String(), age=ps.Integer()),
    "one more with a default": lambda: record(name=ps.String(), age=ps.Integer(), city=ps.String(default="here")),
    "one more that is optional": lambda: record(name=ps.String(), age=ps.Integer(), city=ps.String()),
    "one more with null as default": lambda: record(
        name=ps.String(), age=ps.Integer(), city=ps.String(default=None, required_default=True)
    ),
    "one more that is required": lambda: record(name=ps.String(), age=ps.Integer(), city=ps.String(required=True)),
    "one less": lambda: record(name=ps.String()),
    "another type": lambda: record(name=ps.String(), age=ps.String()),
    "a wider type": lambda: record(name=ps.String(), age=ps.Long()),
    "renamed": lambda: record(name=ps.String(), years=ps.Integer()),
    "nothing in common": lambda: record(x=ps.Boolean(required=True)),
}
KINDS = {"avro": ps.AvroSchema, "json": ps.JsonSchema}


@program(
    each={
        f"{kind}, {form}, {role}": (kind, form, role)
        for kind in KINDS
        for form in FORMS
        for role in ("producer", "consumer")
    }
)
def schemas_evolve(at: At, kind: str, form: str, role: str) -> Any:
    at.producer(schema=KINDS[kind](base()))
    newer = KINDS[kind](FORMS[form]())
    if role == "producer":
        return said(lambda: at.new_client().create_producer(at.topic, schema=newer))
    return said(lambda: at.new_client().subscribe(at.topic, "s", schema=newer))


@program(each={f"{kind}, {how}": (kind, how == "required") for kind in KINDS for how in ("optional", "required")})
def records_inside_records_of_another_name(at: At, kind: str, required: bool) -> Any:
    def outer(called: str) -> Any:
        return record(inner=record(called, x=ps.Integer())(required=required))

    at.producer(schema=KINDS[kind](outer("Inner")))
    return said(lambda: at.producer(schema=KINDS[kind](outer("Other"))))


SIMPLE = {
    "bytes": ps.BytesSchema,
    "string": ps.StringSchema,
    "avro": lambda: ps.AvroSchema(base()),
    "json": lambda: ps.JsonSchema(base()),
}


@program(
    each={
        f"{first}, then {second}, {role}": (first, second, role)
        for first in SIMPLE
        for second in SIMPLE
        for role in ("producer", "consumer")
        if first != second
    }
)
def kinds_of_schemas(at: At, first: str, second: str, role: str) -> Any:
    at.producer(schema=SIMPLE[first]()).close()
    if role == "producer":
        return said(lambda: at.new_client().create_producer(at.topic, schema=SIMPLE[second]()))
    return said(lambda: at.new_client().subscribe(at.topic, "s", schema=SIMPLE[second]()))


@program(each={kind: (kind,) for kind in SIMPLE})
def values_of_schemas(at: At, kind: str) -> Any:
    schema = SIMPLE[kind]()
    producer = at.producer(schema=schema)
    cls = base()
    value: Any = {"bytes": b"b", "string": "s", "avro": cls(name="n", age=7), "json": cls(name="n", age=7)}[kind]
    if kind in ("avro", "json"):
        schema = KINDS[kind](cls)
        producer = at.producer(schema=schema)
    producer.send(value)
    got = take(at.consumer(schema=schema), 1)[0]
    value = got.value()
    return value if isinstance(value, bytes | str) else (value.name, value.age), bool(got.schema_version())


@program()
def versions_of_messages(at: At) -> Any:
    first, second = ps.AvroSchema(base()), ps.AvroSchema(FORMS["one more with null as default"]())
    one, other = at.producer(schema=first), at.producer(schema=second)
    one.send(first._record_cls(name="a", age=1))
    other.send(second._record_cls(name="b", age=2, city="c"))
    one.send(first._record_cls(name="d", age=3))
    got = take(at.consumer(), 3)
    versions = [each.schema_version() for each in got]
    return versions[0] == versions[2], versions[0] != versions[1], [type(each).__name__ for each in versions]


@program()
def what_an_older_consumer_reads(at: At) -> Any:
    older, newer = base(), FORMS["one more with null as default"]()
    at.producer(schema=ps.AvroSchema(older))
    at.producer(schema=ps.AvroSchema(newer)).send(newer(name="n", age=7, city="c"))
    got = at.consumer(schema=ps.AvroSchema(older)).receive(COMES_MS)
    return attempt(lambda: (got.value().name, got.value().age), Exception)


@program()
def what_a_newer_consumer_reads(at: At) -> Any:
    older, newer = base(), FORMS["one more with null as default"]()
    at.producer(schema=ps.AvroSchema(older)).send(older(name="n", age=7))
    got = at.consumer(schema=ps.AvroSchema(newer)).receive(COMES_MS)
    return attempt(lambda: (got.value().name, got.value().age, got.value().city), Exception)


@program()
def bytes_go_to_a_topic_with_a_schema(at: At) -> Any:
    schema = ps.JsonSchema(base())
    at.producer(schema=schema)
    raw = at.producer()
    raw.send(b'{"name": "n", "age": 1}')
    got = at.consumer(schema=schema).receive(COMES_MS)
    return attempt(lambda: (got.value().name, got.value().age), Exception), bool(got.schema_version())


@program()
def a_consumer_without_a_schema_reads_the_bytes(at: At) -> Any:
    cls = base()
    at.producer(schema=ps.JsonSchema(cls)).send(cls(name="n", age=1))
    got = at.consumer().receive(COMES_MS)
    return data(got), bool(got.schema_version())


@program()
def a_consumer_brings_the_first_schema(at: At) -> Any:
    consumer = at.consumer(schema=ps.JsonSchema(base()))
    outcomes = (
        said(lambda: at.producer(schema=ps.AvroSchema(base()))),
        said(lambda: at.producer(schema=ps.JsonSchema(base()))),
    )
    return outcomes, consumer.is_connected()


@program()
def a_schema_outlives_its_clients(at: At) -> Any:
    client = at.new_client()
    client.create_producer(at.topic, schema=ps.AvroSchema(base()))
    client.close()
    return said(lambda: at.producer(schema=ps.AvroSchema(FORMS["another type"]())))


@program()
def a_topic_with_messages_and_no_schema(at: At) -> Any:
    send_all(at.producer(), ["old"])
    return (
        said(lambda: at.producer(schema=ps.StringSchema())),
        said(lambda: at.consumer("a", schema=ps.StringSchema())),
        texts(at.consumer("b"), 1),
    )


@program()
def records_of_every_type(at: At) -> Any:
    inner = record("Inner", flag=ps.Boolean(), numbers=ps.Array(ps.Integer()))
    outer = record(
        "Outer",
        text=ps.String(),
        size=ps.Long(),
        part=ps.Double(),
        small=ps.Float(),
        raw=ps.Bytes(),
        inner=inner(),
        table=ps.Map(ps.String()),
    )
    seen = []
    for kind in ("avro", "json"):
        schema = KINDS[kind](outer)
        topic = f"{at.topic}-{kind}"
        value = outer(
            text="t",
            size=2**40,
            part=1.5,
            small=0.5,
            raw=b"\x01",
            inner=inner(flag=True, numbers=[1]),
            table={"a": "b"},
        )
        sending = said(lambda schema=schema, topic=topic, value=value: at.producer(topic, schema=schema).send(value))
        if sending != "fine":
            seen.append(sending)
            continue
        got = at.consumer(topic=topic, schema=schema).receive(COMES_MS).value()
        seen.append((got.text, got.size, got.part, got.small, got.inner.flag, got.inner.numbers, got.table))
    return seen


@program(each={kind: (kind,) for kind in ("avro", "json")})
def partitions_share_a_schema(at: At, kind: str) -> Any:
    at.admin("PUT", f"persistent/public/default/{at.name}/partitions", 2)
    at.producer(schema=KINDS[kind](base()))
    return said(lambda: at.producer(schema=KINDS[kind](FORMS["another type"]()))), said(
        lambda: at.producer(schema=KINDS[kind](FORMS["one more with null as default"]()))
    )


@program(each={"avro": ("avro",), "json": ("json",)})
def readers_and_views_with_a_schema(at: At, kind: str) -> Any:
    cls = base()
    schema = KINDS[kind](cls)
    at.producer(schema=schema).send(cls(name="n", age=1), partition_key="k")
    read = at.reader(schema=schema).read_next(COMES_MS).value()
    view = at.client.create_table_view(at.topic, schema=schema)
    return read.name, view.get("k").age, said(lambda: at.reader(schema=KINDS[kind](FORMS["another type"]())))


@program()
def a_rejected_schema_leaves_the_topic_as_it_was(at: At) -> Any:
    at.producer(schema=ps.AvroSchema(base()))
    refused = said(lambda: at.producer(schema=ps.AvroSchema(FORMS["another type"]())))
    return refused, said(lambda: at.producer(schema=ps.AvroSchema(FORMS["one more with null as default"]())))
