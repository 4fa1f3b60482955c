"""Data of earlier versions can be read: stores, frames of links, markers, offsets of streams, the database's schema.

``record.py`` in ``tests/recorded/`` wrote the samples there; see docs/upgrade.md.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import recorded_samples as samples
from alembic.config import Config
from alembic.script import ScriptDirectory
from wire_worker import WireWorker

from migrations import PLACE as MIGRATIONS
from replicator.engine.engine import Engine
from replicator.engine.log import block
from replicator.engine.log.frame_rows import decode_frame
from replicator.engine.log.link_frame import (
    CODECS,
    HEADER_BYTES,
    PROTOCOL_OLDEST,
    PROTOCOL_VERSION,
    agreed_version,
    read_header,
    unpack_frame,
)
from replicator.engine.log.store_check import check_store
from replicator.pipeline.errors import BadOffset
from replicator.pipeline.source.stream_offsets import decode_offset
from snapshots.markers import MARKER_VERSION, MarkerType, decode_marker
from snapshots.position import BEFORE_ALL


def recorded(name: str) -> Any:
    return json.loads((samples.RECORDED / name).read_text())


def test_a_recorded_store_says_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    packed = (samples.RECORDED / "store.mdb.xz").read_bytes()
    assert len(packed) < 200_000
    (tmp_path / "log" / "data.mdb").write_bytes(lzma.decompress(packed))

    async def main() -> dict[str, Any]:
        engine = await Engine.open(tmp_path, cluster=samples.CLUSTER)
        try:
            return samples.described(engine)
        finally:
            await engine.close()

    was, now = recorded("store.json")["store"], asyncio.run(main())
    assert now["topics"] == was["topics"]
    assert (now["tenants"], now["namespaces"]) == (was["tenants"], was["namespaces"])
    assert {table: now["tables"].get(table) for table in was["tables"]} == was["tables"]
    orders = was["topics"][samples.TOPIC]
    assert orders["subscriptions"]["billing"]["deleted"], "the recorded store has holes"
    assert orders["subscriptions"]["billing"]["batches"], "the recorded store has batches that are acknowledged in part"
    assert orders["tombstones"]


def test_a_recorded_store_with_segments_has_every_block_as_it_was(tmp_path: Path) -> None:
    with zipfile.ZipFile(samples.RECORDED / "segments.zip") as packed:
        packed.extractall(tmp_path / "log")

    async def main() -> None:
        engine = await Engine.open(tmp_path, cluster=samples.CLUSTER, settings=samples.SEGMENTED)
        try:
            assert engine.store.head["format"] == 2
            topic = engine.find(samples.TOPIC)
            assert topic is not None
            stored, _ = topic.reading.blocks(BEFORE_ALL, bytes_max=10**9)
            entries = [bytes(entry) for each in stored for entry in block.BlockView(each.block).entries()]
            assert entries == [*map(samples.large, range(12)), samples.large(12, "eu-west"), samples.small()]
            assert [each.header.only for each in stored[12:]] == [frozenset({"eu-west"}), None]
            assert engine.store.segments.status()["live_bytes"] > 13 * samples.LARGE_BYTES
            await topic.publish([samples.large(14)])
            assert check_store(engine.store).problems == []
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("protocol", range(PROTOCOL_OLDEST, PROTOCOL_VERSION + 1))
def test_a_recorded_frame_is_read(protocol: int, codec: str) -> None:
    (content,) = (each for each in recorded("frames.json") if each["protocol"] == protocol)
    assert agreed_version(protocol) == protocol
    frame = bytes.fromhex(content["frames"][codec])
    header = read_header(frame[:HEADER_BYTES])
    assert header.length_bytes == len(frame) - HEADER_BYTES
    ((topic, blocks),) = decode_frame(unpack_frame(header, frame[HEADER_BYTES:]))[0].items()
    assert topic == samples.TOPIC
    sent = samples.sent(protocol)
    assert [bytes(copied.block) for copied in blocks] == [bytes(outgoing.block) for outgoing in sent]
    assert [(each.previous, each.left_out) for each in blocks] == [(each.previous, each.left_out) for each in sent]


def test_a_frame_of_protocol_5_has_a_message_for_one_cluster_alone() -> None:
    headers = [block.read_header(each.block) for each in samples.sent(5)[:-1]]  # the last one is a note
    assert [header.only for header in headers] == [None, None, frozenset({samples.CLUSTER})]


def test_recorded_markers_are_read() -> None:
    content = recorded("markers.json")
    assert content["version"] <= MARKER_VERSION
    assert [decode_marker(kind, bytes.fromhex(payload)) for kind, payload in content["markers"]] == samples.markers()
    assert {kind for kind, _ in content["markers"]} == set(MarkerType)


def test_recorded_offsets_of_streams_are_read() -> None:
    assert [decode_offset(offset) for offset in recorded("offsets.json")] == samples.offsets()


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed in its last batch"])
def test_a_recorded_query_goes_on_where_it_was(spark: Any, tmp_path: Path, killed: bool) -> None:
    """It resumes from its checkpoint, with all files. A batch that was planned and not committed is read again with the
    same messages."""
    checkpoint = tmp_path / "checkpoint"
    shutil.unpack_archive(samples.RECORDED / "query.zip", checkpoint)
    assert {each.name for each in checkpoint.iterdir()} >= {"metadata", "offsets", "commits"}
    if killed:
        for name in ("2", ".2.crc"):
            (checkpoint / "commits" / name).unlink()
    with WireWorker("us-east") as worker:
        samples.scripted(worker, 14)
        seen = samples.run_query(spark, worker.url, checkpoint)
    again = {2: ["08", "09"]} if killed else {}
    assert seen == {**again, 3: ["10", "11", "12", "13"]}


def test_an_offset_of_a_later_version_is_refused_by_name() -> None:
    (few, _) = recorded("offsets.json")
    with pytest.raises(BadOffset, match=r"offset of version 2.*reads version 1.*upgrade\.md"):
        decode_offset({**few, "~version": 2})


def test_a_recorded_schema_of_the_database_is_known() -> None:
    """From there on a worker migrates; tests/integration/index/test_migrations.py runs every migration."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_revision(recorded("database.json")["revision"]) is not None
