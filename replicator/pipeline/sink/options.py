"""Options and columns of ``format("replicator")`` in a write, checked; docs/spark-tables.md describes them for users.

The errors name the option or the column. Everything is checked before a row is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from replicator.engine.errors import InvalidTopicName, InvalidWriter
from replicator.engine.log.entry import BATCH_MESSAGES_MAX
from replicator.engine.staging.values import WRITE_ELSEWHERE, check_name
from replicator.engine.topic_name import parse_topic
from replicator.metadata.metadata_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType
from replicator.pipeline.data_plane import check_url
from replicator.pipeline.errors import BadOption

OPTION_NAMES: Final = (
    "url",
    "topology",
    "cluster",
    "topic",
    "writer",
    "run",
    "batch_messages",
    "batch_bytes",
    "batch_by_key",
    "compression",
    "wait_seconds",
)
SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname", "numpartitions")
"""Options of Spark's own, which it passes on to the sink."""
CODECS: Final = {"none": NONE, "lz4": LZ4, "zlib": ZLIB, "zstd": ZSTD, "snappy": SNAPPY}
BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 128 * 1024
"""Size of a producer batch before compression. Pulsar's clients have the same default."""
BATCH_BYTES_MAX: Final = 5 * 1024 * 1024
"""Limit of a batch's size: the largest message in any cluster. An entry has room for its metadata beside it."""
WAIT_SECONDS: Final = 120
"""Default time that a task waits for room in the staging area, or for a worker that is away."""
WAIT_SECONDS_MAX: Final = 3600

ORIGIN_COLUMNS: Final = ("origin", "incarnation", "origin_ledger", "origin_entry", "batch_index")
"""Columns with the origin of the source's rows. With all of them, a stream that starts over does not publish twice."""
NOT_WRITTEN: Final = (
    "cluster",
    "ledger",
    "entry",
    "batch_size",
    "marker_type",
    "publish_time",
    "producer_name",
    "sequence_id",
)
"""Columns of the source whose values are new at the destination. They are accepted and ignored, so that the source's
rows can be written unchanged."""

_TEXT: Final = (StringType, BinaryType)
_COUNTS: Final = (LongType, IntegerType)
_TYPES: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "payload": _TEXT,
    "value": _TEXT,
    "key": (StringType,),
    "topic": (StringType,),
    "kind": (StringType,),
    "event_time": (TimestampType, TimestampNTZType, LongType),
    "origin": (StringType,),
    "incarnation": (LongType,),
    "origin_ledger": (LongType,),
    "origin_entry": (LongType,),
    "batch_index": _COUNTS,
}
"""Types that each column may have; ``properties`` is a map of strings."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked options of a write. ``topic``, ``writer`` and ``run`` are None if not given."""

    url: str
    topic: str | None = None
    writer: str | None = None
    run: str | None = None
    batch_messages: int = BATCH_MESSAGES
    batch_bytes: int = BATCH_BYTES
    batch_by_key: bool = False
    compression: CompressionType = NONE
    wait_seconds: int = WAIT_SECONDS

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check the user's options. Raises :class:`BadOption`, which names the option."""
        given = {name.lower(): value.strip() for name, value in options.items() if name.lower() not in SPARKS_OWN}
        for name in given:
            if name not in OPTION_NAMES:
                raise BadOption(name, f"unknown to a write; its options are {', '.join(OPTION_NAMES)}")
        if "run" in given and "writer" not in given:
            raise BadOption("run", "tells runs of one 'writer' apart: name that too")
        codec = given.get("compression", "none").lower()
        if codec not in CODECS:
            raise BadOption("compression", f"{codec!r} is not one of {', '.join(CODECS)}")
        by_key = given.get("batch_by_key", "false").lower()
        if by_key not in ("true", "false"):
            raise BadOption("batch_by_key", f"{by_key!r} is not true or false")
        return cls(
            url=_url(given),
            topic=_topic(given["topic"]) if "topic" in given else None,
            writer=_name("writer", given),
            run=_name("run", given),
            batch_messages=_count("batch_messages", given, BATCH_MESSAGES, BATCH_MESSAGES_MAX),
            batch_bytes=_count("batch_bytes", given, BATCH_BYTES, BATCH_BYTES_MAX),
            batch_by_key=by_key == "true",
            compression=CODECS[codec],
            wait_seconds=_count("wait_seconds", given, WAIT_SECONDS, WAIT_SECONDS_MAX),
        )


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Columns that are written: the payload's name, and which others exist."""

    payload: str
    topic: bool
    key: bool
    properties: bool
    event_time: bool
    kind: bool
    """Whether there is a column ``kind``. Rows of another kind than ``message`` are the source's markers, and are left
    out."""
    origins: bool
    """Whether all of :data:`ORIGIN_COLUMNS` exist."""

    @classmethod
    def of(cls, schema: StructType, options: SinkOptions) -> SinkColumns:
        """Check the columns. Raises :class:`BadOption`, which names the column."""
        names = [field.name for field in schema]
        for field in schema:
            _check_type(field.name, field.dataType)
        payloads = [name for name in ("payload", "value") if name in names]
        if len(payloads) != 1:
            found = "both are there" if payloads else f"there are {', '.join(names)}"
            raise BadOption("schema", f"one column 'payload' (or 'value') is needed, binary or string; {found}")
        if "topic" not in names and options.topic is None:
            raise BadOption("topic", "missing: give the topic to write to, or a column 'topic'")
        if options.batch_by_key and "key" not in names:
            raise BadOption("batch_by_key", "there is no column 'key'")
        return cls(
            payload=payloads[0],
            topic=options.topic is None,
            key="key" in names,
            properties="properties" in names,
            event_time="event_time" in names,
            kind="kind" in names,
            origins=all(name in names for name in ORIGIN_COLUMNS),
        )


def _check_type(name: str, found: DataType) -> None:
    if name in NOT_WRITTEN:
        return
    if name == "properties":
        if not (
            isinstance(found, MapType)
            and isinstance(found.keyType, StringType)
            and isinstance(found.valueType, StringType)
        ):
            raise BadOption("schema", f"column 'properties' is {found.simpleString()}, not map<string,string>")
        return
    if name not in _TYPES:
        known = ", ".join((*_TYPES, "properties"))
        raise BadOption(
            "schema", f"column {name!r} cannot be written: drop it, or put it into properties; known are {known}"
        )
    if not isinstance(found, _TYPES[name]):
        wanted = " or ".join(kind().simpleString() for kind in _TYPES[name])
        raise BadOption("schema", f"column {name!r} is {found.simpleString()}, not {wanted}")


def _url(given: Mapping[str, str]) -> str:
    if "url" in given and "topology" in given:
        raise BadOption("topology", "give it or 'url', not both")
    if given.get("url"):
        if "cluster" in given:
            raise BadOption("cluster", "names a cluster of a 'topology'; 'url' needs no name")
        if "," in given["url"]:
            raise BadOption("url", "a write goes to one cluster, from which links carry it on: name one worker")
        return check_url(given["url"])
    if not given.get("topology"):
        raise BadOption(
            "url", "missing; give the base URL of a worker, for example http://127.0.0.1:8081, or a 'topology' file"
        )
    if not given.get("cluster"):
        raise BadOption("cluster", "missing: name the cluster of the topology to write to")
    from replicator.topology import TopologyError, load_topology  # executors, which read no files, do not need it

    try:
        cluster = load_topology(Path(given["topology"])).cluster(given["cluster"])
    except TopologyError as error:
        raise BadOption("cluster" if "there is no cluster" in str(error) else "topology", str(error)) from None
    if cluster.apache is not None:  # its worker says the same to who knows it by its address alone
        raise BadOption(
            "cluster",
            f"the clients of {cluster.name} use the Apache Pulsar brokers at {cluster.apache.service_url}, which would "
            f"not get what is written to the worker beside them: {WRITE_ELSEWHERE}",
        )
    return cluster.url


def _topic(name: str) -> str:
    try:
        return str(parse_topic(name))
    except InvalidTopicName as error:
        raise BadOption("topic", str(error)) from None


def _name(option: str, given: Mapping[str, str]) -> str | None:
    if option not in given:
        return None
    try:
        return check_name(option, given[option])
    except InvalidWriter as error:
        raise BadOption(option, str(error)) from None


def _count(option: str, given: Mapping[str, str], default: int, largest: int) -> int:
    text = given.get(option, str(default))
    if not text.isdecimal() or len(text) > 12 or not 1 <= int(text) <= largest:
        raise BadOption(option, f"{text[:30]!r} is not a whole number from 1 to {largest}")
    return int(text)
