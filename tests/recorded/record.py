"""Records what this version writes: ``python tests/recorded/record.py`` from the clone, with ``tests/support`` on
PYTHONPATH.

It is run once for a release, and what it writes is committed: later versions are held to it. Two workers with links, a
database each and real clients make the store; the rest is made by what makes it in a worker.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import shutil
import tempfile
import zipfile
from pathlib import Path

import aiohttp
import recorded_samples as samples
from failover_support import free_ports
from wire_worker import WireWorker

from replicator import __version__
from replicator.client import Client, ConsumerType, InitialPosition
from replicator.engine.engine import Engine
from replicator.engine.log.frame_rows import decode_frame
from replicator.engine.log.link_frame import CODECS, PROTOCOL_OLDEST, PROTOCOL_VERSION, pack_frame
from replicator.engine.log.store_tables import FORMAT
from replicator.index.database import head_revision
from replicator.pipeline.source.stream_offsets import encode_offset
from replicator.pipeline.spark.session import spark_session
from replicator.topology import load_topology
from replicator.worker.starting import start_worker
from snapshots.markers import MARKER_VERSION, encode_marker

PARTITIONED = "persistent/public/default/parts/partitions"
COMPACTED = "persistent/public/default/newest"


def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="replicator-record-"))
    directory.chmod(0o755)
    try:
        asyncio.run(record_store(directory))
    finally:
        shutil.rmtree(directory)
    asyncio.run(record_segments())
    keep_frames()
    record_query()
    record_chart()
    markers = [[int(kind), payload.hex()] for kind, payload in map(encode_marker, samples.markers())]
    write("markers.json", {"version": MARKER_VERSION, "markers": markers})
    write("offsets.json", [encode_offset(each) for each in samples.offsets()])
    write("database.json", {"revision": head_revision()})


async def record_segments() -> None:
    """Write ``segments.zip``, a store of format 2: blocks in segments and in the table, one for some clusters only."""
    with tempfile.TemporaryDirectory(prefix="replicator-record-") as made:
        engine = await Engine.open(Path(made), cluster=samples.CLUSTER, settings=samples.SEGMENTED)
        try:
            topic = await engine.topic(samples.TOPIC)
            for number in range(12):
                await topic.publish([samples.large(number)])
            await topic.publish([samples.large(12, "eu-west")])
            await topic.publish([samples.small()])
        finally:
            await engine.close()
        pack("segments.zip", Path(made) / "log")


def pack(name: str, directory: Path) -> None:
    with zipfile.ZipFile(samples.RECORDED / name, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(each for each in directory.rglob("*") if each.is_file()):
            packed.writestr(zipfile.ZipInfo(str(file.relative_to(directory))), file.read_bytes(), zipfile.ZIP_DEFLATED)


def record_chart() -> None:
    """Write the Helm chart to ``chart.zip``. Run this at a release: tests of upgrades begin with that chart."""
    pack("chart.zip", samples.RECORDED.parents[1] / "helm" / "replicator")


def keep_frames() -> None:
    """Write frames of this protocol's version to ``frames.json``, beside those of earlier versions that are still
    spoken."""
    frames = {codec: b"".join(pack_frame(samples.frame_stream(), codec).pieces).hex() for codec in CODECS}
    before = json.loads((samples.RECORDED / "frames.json").read_text())
    others = [each for each in before if PROTOCOL_OLDEST <= each["protocol"] < PROTOCOL_VERSION]
    write("frames.json", [*others, {"protocol": PROTOCOL_VERSION, "frames": frames}])


def record_query() -> None:
    """Write the whole checkpoint of a streaming query that has read ten messages in three batches."""
    with tempfile.TemporaryDirectory(prefix="replicator-record-") as made, WireWorker("us-east") as worker:
        checkpoint = Path(made) / "checkpoint"
        samples.scripted(worker, 10)
        session = spark_session(app_name="record")
        try:
            assert len(samples.run_query(session, worker.url, checkpoint)) == 3
        finally:
            session.stop()
        pack("query.zip", checkpoint)


def write(name: str, content: object) -> None:
    (samples.RECORDED / name).write_text(json.dumps(content, indent=1) + "\n")


async def record_store(directory: Path) -> None:
    ports = dict(zip(("us-east", samples.CLUSTER), free_ports(2), strict=True))
    rows = [f"  {name}: {{address: '127.0.0.1:{port}', data: ./{name}}}\n" for name, port in ports.items()]
    file = directory / "topology.yaml"
    file.write_text(
        f"clusters:\n{''.join(rows)}links: [{{between: [us-east, {samples.CLUSTER}]}}]\n"
        "pipeline: {engine: embedded}\n"
    )
    topology = load_topology(file)
    workers = [await start_worker(topology, name) for name in topology.names]
    try:
        await fill(ports)
    finally:
        for worker in workers:
            await worker.stop()
    data = directory / samples.CLUSTER
    engine = await Engine.open(data, cluster=samples.CLUSTER)
    try:
        filtered = await engine.topic("persistent://public/default/filtered")
        (blocks,) = decode_frame(b"".join(samples.frame_stream()))[0].values()
        await filtered.writing.copy(blocks)  # with a hole, and a batch that is here in part
        write("store.json", {"format": FORMAT, "version": __version__, "store": samples.described(engine)})
        copied = directory / "copy"
        copied.mkdir()
        engine.store.env.copy(str(copied), compact=True)
    finally:
        await engine.close()
    packed = lzma.compress((copied / "data.mdb").read_bytes(), preset=9)
    (samples.RECORDED / "store.mdb.xz").write_bytes(packed)


async def fill(ports: dict[str, int]) -> None:
    here = f"http://127.0.0.1:{ports[samples.CLUSTER]}/admin/v2"
    async with (
        aiohttp.ClientSession() as session,
        Client(f"pulsar://127.0.0.1:{ports['us-east']}") as us,
        Client(f"pulsar://127.0.0.1:{ports[samples.CLUSTER]}") as eu,
    ):

        async def ask(method: str, path: str, body: object = None) -> None:
            async with session.request(method, f"{here}/{path}", json=body) as response:
                assert response.status < 300, (path, await response.text())

        await ask("PUT", PARTITIONED, 3)
        await ask("POST", "namespaces/public/default/deduplication", True)
        await ask("POST", "namespaces/public/default/permissions/reader", ["consume"])
        options = {
            "consumer_type": ConsumerType.Shared,
            "initial_position": InitialPosition.Earliest,
            "replicate_subscription_state_enabled": True,
            "ack_receipt_enabled": True,
        }
        reading = await eu.subscribe("orders", "billing", subscription_properties={"team": "money"}, **options)
        gone = await eu.subscribe("orders", "gone", **options)
        for client, name in ((us, "us-east"), (eu, samples.CLUSTER)):
            producer = await client.create_producer("orders", producer_name=f"{name}-writer")
            for number in range(60):
                producer.enqueue(b"%s %d" % (name.encode(), number), partition_key=f"key-{number % 5}")
                if number % 7 == 0:
                    await producer.flush()
            await producer.close()
        received = [await reading.receive() for _ in range(120)]
        for message in received[:40] + received[60:100:2]:
            await reading.acknowledge(message)
        await gone.unsubscribe()
        newest = await eu.create_producer("newest")
        for number in range(30):
            await newest.send(b"%d" % number, partition_key=f"key-{number % 3}")
        await ask("PUT", f"{COMPACTED}/compaction")
        await ask("POST", "persistent/public/default/newest/maxConsumers", 9)
        fields = [{"name": "id", "type": "long"}]
        schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
        await ask("POST", "schemas/public/default/newest/schema", {"type": "AVRO", "schema": schema, "properties": {}})
        parts = await us.create_producer("parts")
        for number in range(9):
            await parts.send(b"%d" % number, partition_key=str(number))
        closed = await eu.create_producer("closed")
        await closed.send(b"last")
        await ask("POST", "persistent/public/default/closed/terminate")
        await reading.close()
        for producer in (newest, parts, closed):
            await producer.close()
        await asyncio.sleep(3)  # for markers to come and be answered; what is recorded is what there is then


if __name__ == "__main__":
    main()
