"""A link's connection, spoken by hand."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode, urlsplit

from replicator.engine.log.arrow import Outgoing, encode_append
from replicator.engine.log.link_frame import PROTOCOL_VERSION, UPGRADE


def header(length: int, codec: int = 0, raw_bytes: int | None = None) -> bytes:
    return struct.pack(">IBI", length, codec, length if raw_bytes is None else raw_bytes)


def framed(*frames: bytes) -> bytes:
    return b"".join(header(len(frame)) + frame for frame in frames)


def frame_of(*blocks: Outgoing) -> bytes:
    return b"".join(encode_append(blocks))


async def asked(
    url: str, *, upgrade: str = UPGRADE, **params: str
) -> tuple[int, bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a stream at ``…/append``; return the status and body of the answer."""
    params = {"from": "us-east", "protocol": str(PROTOCOL_VERSION)} | params
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(
        f"POST {place.path}?{urlencode(params)} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: Upgrade\r\n"
        f"Upgrade: {upgrade}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split()[1])
    if status == 101:
        assert f"upgrade: {UPGRADE}" in head
        return status, b"", reader, writer
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    return status, await reader.readexactly(length), reader, writer


async def next_answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next answer."""
    found: dict[str, Any] = json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
    return found


async def streamed(url: str, body: bytes | AsyncIterator[bytes], **params: str) -> tuple[int, list[dict[str, Any]]]:
    """Send a whole stream and end it; return status and answers, or the error's JSON if it is refused."""
    status, refused, reader, writer = await asked(url, **params)
    try:
        if status != 101:
            return status, [json.loads(refused)]

        async def write() -> None:
            if isinstance(body, bytes):
                writer.write(body)
            else:
                async for piece in body:
                    writer.write(piece)
                    await writer.drain()
            writer.write_eof()

        writing = asyncio.ensure_future(write())
        found = []
        while head := await reader.read(4):
            head += await reader.readexactly(4 - len(head))
            found.append(json.loads(await reader.readexactly(int.from_bytes(head, "big"))))
        await writing
        return status, found
    finally:
        writer.transport.abort()
