"""Links with SQL between real engines: the messages that a condition leaves out, and those that are masked.

Most tests run what Spark's processes run, and leave messages out themselves; the last ones are with Spark.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from engine_support import PUBLISH_TIME_MS, TOPIC, eventually, subscribed
from link_support import Web, web
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from replicator.client.message import messages_of
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.types import Ack
from replicator.metadata.metadata_pb2 import LZ4, NONE, EncryptionKeys, MessageMetadata, SingleMessageMetadata
from replicator.pipeline.errors import BadSql
from replicator.pipeline.live.link_source import LinkOptions
from replicator.pipeline.live.sql_link import SegmentReader, SegmentWriter, sql_query
from replicator.pipeline.live.sql_rows import Row, row_schema
from replicator.topology import Link
from snapshots.ack_vector import merged_ranges
from snapshots.position import Position

WHERE = "properties['region'] <> 'eu'"
LINK = Link("a", "b", engine="spark", where=WHERE)
OUTPUT = ["_row", "_block", "_first", "_content", "batch_index"]
Keeps = Callable[[dict[str, Any]], bool]


def entry(*messages: tuple[str, str], codec: int = NONE, batched: bool = True, **fields: Any) -> bytes:
    """An entry of messages, each a text and its region."""
    metadata = MessageMetadata(producer_name="p", sequence_id=7, publish_time=PUBLISH_TIME_MS, compression=codec)
    for name, value in fields.items():
        metadata.encryption_keys.append(value) if name == "key" else setattr(metadata, name, value)
    body = bytearray()
    if not batched:
        ((text, region),) = messages
        metadata.properties.add(key="region", value=region)
        body += text.encode()
    else:
        metadata.num_messages_in_batch = len(messages)
        for text, region in messages:
            single = SingleMessageMetadata(payload_size=0, partition_key=f"key of {text}")
            single.properties.add(key="region", value=region)
            append_to_batch(body, single, text.encode())
    if codec != NONE:
        metadata.uncompressed_size = len(body)
    return encode_entry(metadata, compress(body, codec))


def not_eu(row: dict[str, Any]) -> bool:
    return dict(row["properties"]).get("region", "eu") != "eu"


@asynccontextmanager
async def linked(path: Path, *others: Link) -> AsyncIterator[Web]:
    """Clusters a and b with the link, which nobody carries yet."""
    async with web(path, [LINK, *others]) as clusters:
        for carrier in clusters.carriers.values():
            await carrier.stop()
        await clusters.engines["a"].topic(TOPIC)
        yield clusters


def options(clusters: Web) -> LinkOptions:
    return LinkOptions(
        url=f"http://{clusters.servers['a'].address}",
        link=LINK.key,
        source="a",
        destination="b",
        address=clusters.servers["b"].address,
        carrier="sql",
    )


async def carried(clusters: Web, keeps: Keeps, masks: dict[str, Callable[[dict[str, Any]], Any]] | None = None) -> None:
    """Carry until the destination has been told of all that there is."""
    async with asyncio.timeout(20):
        while True:
            if await asyncio.to_thread(_one_batch, options(clusters), keeps, masks or {}):
                return


def _one_batch(given: LinkOptions, keeps: Keeps, masks: dict[str, Callable[[dict[str, Any]], Any]]) -> bool:
    """Run a micro-batch as Spark does; return whether there was something to carry."""
    schema = to_arrow_schema(from_arrow_schema(row_schema([WHERE, "payload", "key"])), timezone="UTC")
    reader, writer = SegmentReader(given, schema), SegmentWriter(given, frozenset(masks))
    try:
        start = reader.latestOffset(reader.initialOffset())  # of the batch that only starts tasks
        end = reader.latestOffset(start)
        partitions = reader.partitions(start, end)
        written = [writer.write(_sql(reader.read(each), keeps, masks)) for each in partitions]
        assert [each.error for each in written] == [None] * len(written)
        writer.commit(written, 0)
        return bool(partitions)
    finally:
        reader.stop()


def _sql(batches: Any, keeps: Keeps, masks: dict[str, Callable[[dict[str, Any]], Any]]) -> Any:
    types = {"payload": pa.binary(), "key": pa.string(), "properties": pa.map_(pa.string(), pa.string())}
    for batch in batches:
        rows = [row for row in batch.to_pylist() if row["_row"] != Row.MESSAGE or keeps(row)]
        columns = {name: pa.array([row[name] for row in rows], batch.schema.field(name).type) for name in OUTPUT}
        for name, mask in masks.items():
            values = [mask(row) if row["_row"] == Row.MESSAGE else None for row in rows]
            columns[name] = pa.array(values, types[name])
        yield pa.RecordBatch.from_pydict(columns)


async def delivered(clusters: Web, entries: int) -> tuple[Any, list[tuple[bytes, str | None]], list[Position]]:
    """Subscribe at b and wait for ``entries`` entries.

    Return the consumer, the messages' payloads and keys, and the entries' positions.
    """
    topic = await clusters.engines["b"].topic(TOPIC)
    consumer, inbox = await subscribed(topic)
    await inbox.holds(entries)
    messages = [each for delivery in inbox.deliveries for each in messages_of(delivery, TOPIC, -1)]
    return consumer, [(each.data(), each.partition_key() or None) for each in messages], inbox.positions


async def publish(clusters: Web, entries: Sequence[bytes]) -> None:
    topic = await clusters.engines["a"].topic(TOPIC)
    await topic.publish(entries)


ENTRIES = [
    entry(("one", "us"), ("two", "eu"), ("three", "us"), codec=LZ4),
    entry(("four", "eu"), batched=False),
    entry(("five", "us"), batched=False),
    entry(("six", "eu"), ("seven", "eu")),
    entry(("eight", "us"), ("nine", "us")),
    entry(("ten", "eu"), batched=False),
]


def test_messages_that_are_left_out_are_not_there_and_nobody_waits_for_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked(tmp_path) as clusters:
            await publish(clusters, ENTRIES)
            await carried(clusters, not_eu)
            there, here = clusters.engines["b"].find(TOPIC), clusters.engines["a"].find(TOPIC)
            assert there is not None
            assert here is not None
            consumer, messages, positions = await delivered(clusters, 3)
            assert [text for text, _ in messages] == [b"one", b"three", b"five", b"eight", b"nine"]
            assert there.origins.high_waters()["a"] == here.origins.high_waters()["a"], "a drain has an end"
            left_out = there.origins.left_out("a")
            assert [(each.entry, upto.entry) for each, upto in left_out] == [(0, 1), (2, 3), (4, 5)]
            assert [each.entry for each in there.origins.partly_left_out("a")] == [0]
            # All that is here of a batch is acknowledged: it is consumed, and nothing is left.
            await consumer.acknowledge([Ack(positions[0], (0,)), Ack(positions[1]), Ack(positions[2])])
            assert there.subscriptions["sub"].cursor.backlog_entries() == 1
            await consumer.acknowledge([Ack(positions[0], (2,))])
            assert there.subscriptions["sub"].cursor.backlog_entries() == 0

    asyncio.run(main())


def test_a_message_for_other_clusters_is_left_out_whatever_the_sql_says(tmp_path: Path) -> None:
    """It does not leave its cluster, and the SQL does not see it."""
    seen: list[bytes] = []

    def keeps(row: dict[str, Any]) -> bool:
        seen.append(row["payload"])
        return not_eu(row)

    def named(text: str, *clusters: str) -> bytes:
        metadata = MessageMetadata(producer_name="p", sequence_id=7, publish_time=PUBLISH_TIME_MS)
        metadata.properties.add(key="region", value="us")
        metadata.replicate_to.extend(clusters)
        return encode_entry(metadata, text.encode())

    async def main() -> None:
        async with linked(tmp_path) as clusters:
            for text, *names in (("0", "c"), ("1",), ("2", "b"), ("3", "__local__"), ("4", "c", "b"), ("5", "c")):
                await publish(clusters, [named(text, *names)])
            await carried(clusters, keeps)
            there, here = clusters.engines["b"].find(TOPIC), clusters.engines["a"].find(TOPIC)
            assert there is not None
            assert here is not None
            _, messages, _ = await delivered(clusters, 3)
            assert [text for text, _ in messages] == [b"1", b"2", b"4"]
            assert there.origins.high_waters()["a"] == here.origins.high_waters()["a"], "a drain has an end"
            holes = there.origins.left_out("a")
            assert [(each.entry, upto.entry) for each, upto in holes] == [(-1, 0), (2, 3), (4, 5)]
            assert sorted(seen) == [b"1", b"2", b"4"]

    asyncio.run(main())


def test_what_was_left_out_stays_so_when_the_worker_starts_again_and_when_the_log_is_trimmed(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked(tmp_path) as clusters:
            await publish(clusters, ENTRIES[:2])
            await carried(clusters, not_eu)
            await publish(clusters, ENTRIES[2:])
            await carried(clusters, not_eu)
            there = clusters.engines["b"].find(TOPIC)
            assert there is not None
            holes, partly = there.origins.left_out("a"), list(there.origins.partly_left_out("a"))
            await there.trimming.trim(there.log.last)
            trimmed = there.origins.left_out("a")
            assert list(there.origins.partly_left_out("a")) == [], "the batch is gone"
            assert trimmed == merged_ranges([*holes, (Position(partly[0].ledger, -1), partly[0])])

    asyncio.run(main())


def test_a_link_that_forwards_passes_over_what_another_left_out_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked(tmp_path, Link("b", "c", forward=True)) as clusters:
            for sent in (ENTRIES[:3], ENTRIES[3:], [entry(("last", "us"), batched=False)]):
                await publish(clusters, sent)
                await carried(clusters, not_eu)
            b = clusters.engines["b"].find(TOPIC)
            assert b is not None
            await eventually(lambda: clusters.entries("c", "a") == clusters.entries("b", "a"), "c has what b has")
            c = clusters.engines["c"].find(TOPIC)
            assert c is not None
            assert (c.origins.left_out("a"), c.origins.partly_left_out("a")) == (
                b.origins.left_out("a"),
                b.origins.partly_left_out("a"),
            )
            assert clusters.links["b>c"].status()["gaps"] == []

    asyncio.run(main())


def test_a_batch_that_is_carried_twice_is_there_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked(tmp_path) as clusters:
            await publish(clusters, ENTRIES)
            given = options(clusters)
            schema = to_arrow_schema(from_arrow_schema(row_schema([WHERE])), timezone="UTC")
            reader, writer = SegmentReader(given, schema), SegmentWriter(given, frozenset())
            reader.latestOffset()  # of the batch that only starts tasks
            for _ in range(2):  # the task is tried again, and nobody has committed

                def attempt() -> None:
                    end = reader.latestOffset(reader.initialOffset())
                    for each in reader.partitions(reader.initialOffset(), end):
                        assert writer.write(_sql(reader.read(each), not_eu, {})).error is None

                await asyncio.to_thread(attempt)
            reader.stop()
            _, messages, _ = await delivered(clusters, 3)
            assert [text for text, _ in messages] == [b"one", b"three", b"five", b"eight", b"nine"]

    asyncio.run(main())


def test_what_is_masked_does_not_leave(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked(tmp_path) as clusters:
            await publish(clusters, ENTRIES)
            masks = {"key": lambda row: "masked", "payload": lambda row: row["payload"][:1]}
            await carried(clusters, lambda row: True, masks)
            _, messages, _ = await delivered(clusters, 6)
            assert [text for text, _ in messages] == [b"o", b"t", b"t", b"f", b"f", b"s", b"s", b"e", b"n", b"t"]
            assert {key for _, key in messages} == {"masked"}
            there = clusters.engines["b"].find(TOPIC)
            assert there is not None
            stored = b"".join(bytes(each.entry) for each in there.reading.entries(Position(0, -1), None, 100, 1 << 20))
            assert b"eight" not in stored
            assert b"key of" not in stored

    asyncio.run(main())


SEALED = entry(("sealed", "eu"), batched=False, key=EncryptionKeys(key="k", value=b"v"))


def test_what_cannot_be_looked_into_passes_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked(tmp_path) as clusters:
            chunk = entry(
                ("chunk", "eu"), batched=False, uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=9
            )
            await publish(clusters, [ENTRIES[1], SEALED, chunk, ENTRIES[2]])
            await carried(clusters, not_eu)
            there = clusters.engines["b"].find(TOPIC)
            assert there is not None
            stored = [bytes(each.entry) for each in there.reading.entries(Position(0, -1), None, 100, 1 << 20)]
            assert stored == [SEALED, chunk, ENTRIES[2]]

    asyncio.run(main())


def test_what_cannot_be_masked_stops_its_topic_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with linked(tmp_path) as clusters:
            other = await clusters.engines["a"].topic(f"{TOPIC}-2")
            await other.publish(ENTRIES[:1])
            await publish(clusters, [SEALED])
            masks = {"payload": lambda row: b"masked"}
            await carried(clusters, lambda row: True, masks)
            link = clusters.links[LINK.key]
            await eventually(lambda: TOPIC in link.status()["halted"], "the topic stopped")
            assert "encrypted" in link.status()["halted"][TOPIC]
            copied = clusters.engines["b"].find(f"{TOPIC}-2")
            assert copied is not None
            assert copied.log.messages == 3

    asyncio.run(main())


# With Spark.


def example() -> dict[str, Any]:
    """The link with SQL of docs/links.md."""
    page = (Path(__file__).parents[3] / "docs" / "links.md").read_text()
    ((link,),) = (
        links
        for links in (yaml.safe_load(text)["links"] for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
        if any("where" in each for each in links)
    )
    return link


def test_the_example_of_the_page_leaves_out_and_masks_as_it_says(tmp_path: Path, spark: Any) -> None:
    async def main() -> None:
        async with linked(tmp_path) as clusters:
            card = entry(("card 4111111111111111", "eu"), ("for us", "us-only"), codec=LZ4)
            await publish(clusters, [card, entry(("for us", "us-only"), batched=False)])
            said = example()
            query = await asyncio.to_thread(sql_query, spark, said, options(clusters), str(tmp_path / "checkpoint"))
            try:
                await eventually(
                    lambda: clusters.engines["b"].find(TOPIC) is not None or not query.isActive,
                    "the topic is copied",
                    180,
                )
                assert query.exception() is None
                _, messages, _ = await delivered(clusters, 1)
                assert messages == [(b"card ****", sha256(b"key of card 4111111111111111").hexdigest())]
                await publish(clusters, [entry(("last", "us"), batched=False)])
                there = clusters.engines["b"].find(TOPIC)
                assert there is not None
                await eventually(lambda: there.log.entries == 2, "what is published later is copied too", 30)
                assert query.exception() is None
            finally:
                await asyncio.to_thread(query.stop)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"where": "region = 'eu'"}, "link a>b: where \"region = 'eu'\": "),
        ({"where": "payload and"}, "link a>b: where 'payload and': "),
        ({"select": {"properties": "key"}}, "link a>b: select.properties 'key': "),
        ({"select": {"key": "max(key)"}}, "link a>b: select.key 'max(key)': "),
        (
            {"select": {"payload": "to_json(struct(*))"}},
            "link a>b: select.payload 'to_json(struct(*))': `*` stands for",
        ),
    ],
)
def test_an_expression_that_spark_does_not_take_is_named(tmp_path: Path, spark: Any, said: Any, named: str) -> None:
    given = LinkOptions("http://127.0.0.1:1", "a>b", "a", "b", "127.0.0.1:1", "c")
    with pytest.raises(BadSql) as caught:
        sql_query(spark, said, given, str(tmp_path))
    assert str(caught.value).startswith(named)
    assert "\n" not in str(caught.value)
