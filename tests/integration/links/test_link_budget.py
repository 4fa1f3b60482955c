"""A budget of its own bounds the decompressed frames of links, until everything in them is durable."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from api_support import with_app
from engine_support import eventually, make_block, message
from frame_support import asked, frame_of, header, next_answer

from replicator.api import frame_receiver
from replicator.engine.engine import Engine
from replicator.engine.log.arrow import Outgoing
from replicator.engine.log.compression import compress
from replicator.engine.log.link_frame import CODECS, unpack_frame
from replicator.metadata.metadata_pb2 import ZSTD
from replicator.running.byte_budget import WaitingBudget
from snapshots.position import BEFORE_ALL, Position

STREAMS = 4
PAYLOAD = bytes(1_000_000)


def topic_of(number: int) -> str:
    return f"persistent://public/default/t-{number}"


def compressed(number: int) -> bytes:
    """Return a frame of a megabyte in a few hundred bytes, for the topic of that number."""
    block = make_block(Position(9, 0), [message(PAYLOAD)], origin="us-east")
    raw = frame_of(Outgoing(topic_of(number), BEFORE_ALL, block))
    packed = compress(raw, ZSTD)
    assert len(packed) < len(raw) / 100
    return header(len(packed), CODECS.index("zstd"), len(raw)) + packed


def test_frames_of_all_links_are_decompressed_within_one_budget_and_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    at_work: list[int] = []

    def held(*frame: Any) -> Any:
        at_work.append(1)
        assert go_on.wait(30)
        return unpack_frame(*frame)

    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        engine.unpacking.links = budget = WaitingBudget(2 * len(PAYLOAD) + 500_000)
        budget._budget.share_bytes = budget.bytes_max  # so that it is full, and not used by a claim that stands alone
        monkeypatch.setattr(frame_receiver, "unpack_frame", held)
        streams = []
        for number in range(STREAMS):
            status, _, reader, writer = await asked(f"{base}/append", stream=str(number))
            assert status == 101
            writer.write(compressed(number))
            streams.append((reader, writer))
        await eventually(lambda: budget.waiting == STREAMS - 2 and len(at_work) == 2)
        assert engine.unpacking.status()["links_bytes"] == budget.used_bytes > 2 * len(PAYLOAD)
        go_on.set()
        for reader, _ in streams:
            assert await next_answer(reader) == {"extents": 1, "refused": {}}
        await eventually(lambda: budget.used_bytes == budget.waiting == 0)
        for _, writer in streams:
            writer.close()

    with_app(tmp_path, body)


def test_the_budget_is_given_back_whatever_becomes_of_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused blocks, damaged frames, frames without blocks, and streams that go while a frame waits."""

    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        budget = engine.unpacking.links

        async def sent(frame: bytes) -> dict[str, Any]:
            status, _, reader, writer = await asked(f"{base}/append")
            assert status == 101
            writer.write(frame)
            answer = await next_answer(reader)
            writer.close()
            await eventually(lambda: budget.used_bytes == budget.waiting == 0)
            return answer

        foreign = frame_of(
            Outgoing(topic_of(1), BEFORE_ALL, make_block(Position(9, 0), [message(PAYLOAD)], origin="nowhere"))
        )
        for raw, told in ((foreign, "refused"), (frame_of(), "extents"), (b"x" * 1_000, "error")):
            packed = compress(raw, ZSTD)
            answer = await sent(header(len(packed), CODECS.index("zstd"), len(raw)) + packed)
            assert answer[told] or told == "extents"
        assert (await sent(header(300, CODECS.index("zstd"), 5_000) + bytes(300)))["error"] == "BlockCorrupt"

        whole = await budget.take("another stream", budget.bytes_max, lambda: None)
        status, _, _, writer = await asked(f"{base}/append")
        assert status == 101
        writer.write(compressed(2))
        await eventually(lambda: budget.waiting == 1)
        reset = struct.pack("ii", 1, 0)  # a stream that is only ended is served until it has its answers
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        await eventually(lambda: budget.waiting == 0)
        budget.give_back(whole)
        await eventually(lambda: budget.used_bytes == 0)

    with_app(tmp_path, body)


def test_a_posted_stream_that_goes_while_its_frame_waits_leaves_the_line(tmp_path: Path) -> None:
    """Links of an earlier version send frames in the body of a request, the first one and later ones."""

    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        budget, place = engine.unpacking.links, urlsplit(base)
        for before in (b"", compressed(1)):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(
                f"POST {place.path}/append?from=us-east&protocol=5 HTTP/1.1\r\nHost: {place.netloc}\r\n"
                "Transfer-Encoding: chunked\r\n\r\n".encode()
            )
            if before:
                writer.write(b"%x\r\n%s\r\n" % (len(before), before))
                assert b"200" in await reader.readuntil(b"\r\n\r\n")
                await eventually(lambda: budget.used_bytes == 0)
            whole = await budget.take("another stream", budget.bytes_max, lambda: None)
            frame = compressed(2)
            writer.write(b"%x\r\n%s\r\n" % (len(frame), frame))
            await eventually(lambda: budget.waiting == 1)
            writer.transport.abort()
            await eventually(lambda: budget.waiting == 0)
            budget.give_back(whole)
            await eventually(lambda: budget.used_bytes == 0)

    with_app(tmp_path, body)
