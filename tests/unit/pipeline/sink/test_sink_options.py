"""Options of the sink: allowed targets, and errors that name a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from replicator.metadata.metadata_pb2 import LZ4
from replicator.pipeline.errors import BadOption
from replicator.pipeline.sink.options import SinkColumns, SinkOptions
from replicator.pipeline.source.options import OPTION_NAMES as SOURCE_OPTION_NAMES
from replicator.pipeline.source.schema import COLUMNS

URL = {"url": "http://127.0.0.1:8081"}


def schema(**columns: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_options_are_read_whatever_their_case() -> None:
    options = SinkOptions.parse(
        URL | {"Topic": "orders", "writer": "w", "run": "7", "batch_Messages": "10", "compression": "LZ4"}
    )
    assert (options.topic, options.writer, options.run) == ("persistent://public/default/orders", "w", "7")
    assert (options.batch_messages, options.compression) == (10, LZ4)


def test_what_spark_passes_on_for_itself_is_no_option_of_ours() -> None:
    assert SinkOptions.parse(URL | {"checkpointLocation": "/tmp/c", "path": "x", "queryName": "q"}).topic is None


def test_a_topology_gives_the_address_of_its_cluster(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("clusters:\n  a: {address: 127.0.0.1:7001, data: a}\n  b: {address: 127.0.0.1:7002, data: b}\n")
    assert SinkOptions.parse({"topology": str(file), "cluster": "b"}).url == "http://127.0.0.1:7002"
    with pytest.raises(BadOption, match=r"option .cluster.: .*there is no cluster"):
        SinkOptions.parse({"topology": str(file), "cluster": "c"})
    with pytest.raises(BadOption, match="option 'cluster': missing"):
        SinkOptions.parse({"topology": str(file)})


def test_a_worker_beside_brokers_which_would_not_get_it_is_not_written_to(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    brokers = "{service_url: 'pulsar://127.0.0.1:6650', admin_url: 'http://127.0.0.1:8080'}"
    file.write_text(f"clusters:\n  a: {{address: 127.0.0.1:7001, data: a, kind: pulsar, apache: {brokers}}}\n")
    with pytest.raises(BadOption) as caught:
        SinkOptions.parse({"topology": str(file), "cluster": "a"})
    assert str(caught.value) == (
        "option 'cluster': the clients of a use the Apache Pulsar brokers at pulsar://127.0.0.1:6650, which would not "
        "get what is written to the worker beside them: write to the brokers, by a connector of Spark for them, "
        "or to an embedded cluster with a link"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'url': missing"),
        ({"url": "http://a:1,http://b:1"}, "option 'url': a write goes to one cluster"),
        ({"url": "here"}, "option 'url': 'here' is not a worker's address"),
        (URL | {"colour": "red"}, "option 'colour': unknown to a write; its options are url, topology"),
        (URL | {"topic": "a//b"}, "option 'topic': "),
        (URL | {"run": "1"}, "option 'run': tells runs of one 'writer' apart"),
        (URL | {"writer": "a b"}, "option 'writer': writer 'a b': it must have"),
        (URL | {"writer": "../x"}, "option 'writer': "),
        (URL | {"batch_messages": "0"}, "option 'batch_messages': '0' is not a whole number from 1"),
        (URL | {"batch_bytes": "99999999"}, "option 'batch_bytes': '99999999' is not a whole number from 1"),
        (URL | {"compression": "rar"}, "option 'compression': 'rar' is not one of none, lz4"),
        (URL | {"batch_by_key": "yes"}, "option 'batch_by_key': 'yes' is not true or false"),
        (URL | {"topology": "t.yaml"}, "option 'topology': give it or 'url', not both"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption) as caught:
        SinkOptions.parse(options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": StringType()}, "one column 'payload' (or 'value') is needed"),
        ({"payload": StringType(), "value": StringType()}, "one column 'payload' (or 'value') is needed"),
        ({"payload": LongType()}, "column 'payload' is bigint, not string or binary"),
        ({"payload": StringType(), "age": LongType()}, "column 'age' cannot be written: drop it"),
        ({"payload": StringType(), "key": BinaryType()}, "column 'key' is binary, not string"),
        (
            {"payload": StringType(), "properties": MapType(StringType(), LongType())},
            "column 'properties' is map<string,bigint>, not map<string,string>",
        ),
        ({"payload": StringType(), "event_time": StringType()}, "column 'event_time' is string, not timestamp"),
    ],
)
def test_a_wrong_column_is_named(columns: dict[str, object], message: str) -> None:
    with pytest.raises(BadOption) as caught:
        SinkColumns.of(schema(**columns), SinkOptions.parse(URL | {"topic": "orders"}))
    assert message in str(caught.value)


def test_rows_say_their_topic_unless_the_option_does() -> None:
    rows = schema(payload=BinaryType(), topic=StringType(), event_time=TimestampType(), sequence_id=LongType())
    assert SinkColumns.of(rows, SinkOptions.parse(URL)).topic
    assert not SinkColumns.of(rows, SinkOptions.parse(URL | {"topic": "other"})).topic
    with pytest.raises(BadOption, match="option 'topic': missing"):
        SinkColumns.of(schema(payload=BinaryType()), SinkOptions.parse(URL))


def test_origins_count_only_together() -> None:
    origins = {
        "origin": StringType(),
        "incarnation": LongType(),
        "origin_ledger": LongType(),
        "origin_entry": LongType(),
        "batch_index": IntegerType(),
    }
    options = SinkOptions.parse(URL | {"topic": "orders"})
    assert SinkColumns.of(schema(payload=BinaryType(), **origins), options).origins
    del origins["batch_index"]
    assert not SinkColumns.of(schema(payload=BinaryType(), **origins), options).origins


def test_reading_and_writing_have_where_in_common() -> None:
    assert {"url", "topology", "cluster", "topic"} <= set(SOURCE_OPTION_NAMES)


def test_rows_of_the_source_can_be_written_as_they_are() -> None:
    columns = SinkColumns.of(from_arrow_schema(COLUMNS), SinkOptions.parse(URL))
    assert (columns.payload, columns.topic, columns.key, columns.kind, columns.origins) == (
        "payload",
        True,
        True,
        True,
        True,
    )
