"""Group ``verify``: two clusters with the same messages of 100 B in producer batches, compared with Spark on two cores.

The logs are written while the workers do not run, by engines of this process: as a link would copy them, block for
block. The workers that serve them share the machine's cores with Spark. The figure ``first`` is the start of the JVM
plus the first comparison; the rates are measured after it, ``in-process`` without Spark.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from bench.cases import RUNS
from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.measurement import Measurement
from replicator.engine.engine import Engine
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from replicator.pipeline.spark.session import spark_session
from replicator.pipeline.verify.verify import VerifySettings, verify
from replicator.topology import Link
from snapshots.position import BEFORE_ALL, Position

MESSAGES: Final = 6_000_000
MESSAGE_BYTES: Final = 100
BATCH: Final = 1_000
"""Messages of an entry: the client's default limit."""
BLOCK_ENTRIES: Final = 20
TOPIC: Final = "persistent://bench/default/verify"
LINKS: Final = (Link(SOURCE, DESTINATION), Link(DESTINATION, SOURCE))


async def measure_verify(directory: Path) -> list[Measurement]:
    """Return the distinct messages compared a second, with Spark and without, and the first comparison's seconds."""
    async with TwoClusters(directory) as clusters:
        await write_logs(clusters.data(SOURCE), clusters.data(DESTINATION), MESSAGES)
        await clusters.start(SOURCE, DESTINATION)
        urls = {name: clusters.url(name) for name in (SOURCE, DESTINATION)}
        return await asyncio.to_thread(_measure, urls)


def _measure(urls: dict[str, str]) -> list[Measurement]:
    settings = VerifySettings(settle_seconds=0)
    began = time.monotonic()
    spark = spark_session()
    verify(spark, urls, LINKS, [TOPIC], settings=settings)
    first_seconds = time.monotonic() - began
    measured = [Measurement("verify/100B/batched/first", "s", (first_seconds,))]
    try:
        for name, session in (("spark", spark), ("in-process", None)):
            rates = []
            for _ in range(RUNS):
                began = time.monotonic()
                report = verify(session, urls, LINKS, [TOPIC], settings=settings)
                rates.append(report.messages / (time.monotonic() - began))
                assert report.clean, report.as_json()
                assert report.messages == MESSAGES
            measured.append(Measurement(f"verify/100B/batched/{name}", "msg/s", tuple(rates)))
    finally:
        spark.stop()
    return measured


async def write_logs(source: Path, destination: Path, messages: int) -> None:
    """Write a topic's log of ``messages`` messages into the store ``source``, and its copy into ``destination``."""
    published = await Engine.open(source, cluster=SOURCE)
    copied = await Engine.open(destination, cluster=DESTINATION)
    try:
        origin, copy = await published.topic(TOPIC), await copied.topic(TOPIC)
        before = reached = BEFORE_ALL
        for start in range(0, messages, BATCH * BLOCK_ENTRIES):
            entry = _batch(start)
            await origin.publish([entry] * min(BLOCK_ENTRIES, (messages - start) // BATCH))
            blocks, reached = origin.reading.blocks(reached, bytes_max=2**26)
            for stored in blocks:
                await copy.writing.copy([CopiedBlock(before, stored.block)])
                before = Position(stored.header.origin_last.ledger, stored.header.origin_last.entry)
    finally:
        await published.close()
        await copied.close()


def _batch(number: int) -> bytes:
    metadata = MessageMetadata(
        producer_name="bench",
        sequence_id=number,
        publish_time=int(time.time() * 1000),
        num_messages_in_batch=BATCH,
    )
    batch = bytearray()
    payload = bytes(MESSAGE_BYTES)
    for _ in range(BATCH):
        append_to_batch(batch, SingleMessageMetadata(payload_size=0), payload)
    return encode_entry(metadata, bytes(batch))
