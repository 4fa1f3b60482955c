"""``replicator store``: what it says of sound and damaged stores, and the room that it gives back."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from engine_support import TOPIC, eventually, logged, message, opened
from typer.testing import CliRunner

from replicator.cli.main import app
from replicator.engine.engine import EngineSettings
from replicator.engine.log.segments.settings import SegmentSettings

KIB = 1024
OTHER = "persistent://public/default/other"
ENGINE = EngineSettings(segments=SegmentSettings(segment_bytes=1024 * KIB, group_bytes_min=0))


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    file = tmp_path / "topology.yaml"
    file.write_text(
        "clusters:\n  us-east: {address: '127.0.0.1:1', data: ./us-east}\nstore: {segment: 1MiB, segments_kept: 0}\n"
    )
    return file


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["store", *map(str, arguments)])
    return done.exit_code, done.output


async def filled(directory: Path) -> None:
    """Write a little of one topic beside much of another, which is then deleted."""
    async with opened(directory, settings=ENGINE) as engine:
        topic, gone = await engine.topic(TOPIC), await engine.topic(OTHER)
        for number in range(20):
            await topic.publish([message(b"%d" % number + b"k" * 70 * KIB)])
            await gone.publish([message(b"g" * 800 * KIB)])
        await engine.deleting.delete(OTHER, force=True)
        await eventually(lambda: not engine.store.deleted_topics(), "it is swept")


def test_a_sound_store_is_said_to_be_and_compacting_frees_its_room(tmp_path: Path, topology: Path) -> None:
    asyncio.run(filled(tmp_path / "us-east"))
    segments = tmp_path / "us-east" / "log" / "segments"
    before = len(list(segments.iterdir()))
    assert run("check", "-f", topology, "-c", "us-east") == (0, "1 topics, 20 blocks: sound\n")
    status, text = run("compact", "-f", topology, "-c", "us-east")
    assert status == 0
    assert text.startswith("freed ")
    assert int(text.split()[1]) > 10 * 1024 * KIB
    assert len(list(segments.iterdir())) < before / 3
    assert run("check", "-f", topology, "-c", "us-east") == (0, "1 topics, 20 blocks: sound\n")

    async def read() -> None:
        async with opened(tmp_path / "us-east", settings=ENGINE) as engine:
            assert len(logged(await engine.topic(TOPIC))) == 20

    asyncio.run(read())


def test_a_damaged_block_is_named(tmp_path: Path, topology: Path) -> None:
    asyncio.run(filled(tmp_path / "us-east"))
    file = sorted((tmp_path / "us-east" / "log" / "segments").iterdir())[3]
    content = bytearray(file.read_bytes())
    at = content.index(b"k" * 1000)
    content[at : at + 4] = b"rots"
    file.write_bytes(content)
    status, text = run("check", "-f", topology, "-c", "us-east")
    assert status == 1
    assert re.search(rf"damaged: topic {TOPIC}: .* at \d+:\d+: .* is damaged: its checksum", text), text


@pytest.mark.parametrize("verb", ["check", "compact", "repair"])
def test_where_there_is_no_store_none_is_made(tmp_path: Path, verb: str) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "clusters:\n  a: {address: '127.0.0.1:1', data: ./not-here}\n  b: {address: '127.0.0.1:2', data: ./b}\n"
    )
    done = CliRunner().invoke(app, ["store", verb, "-f", str(file), "-c", "a"])
    assert done.exit_code == 2
    assert "has no store (no log/data.mdb)" in done.stderr
    assert not (tmp_path / "not-here").exists()


def test_who_does_not_answer_is_said(topology: Path) -> None:
    status, text = run("status", "-f", topology, "--output", "json")
    assert status == 3
    assert "error" in json.loads(text)["us-east"]
