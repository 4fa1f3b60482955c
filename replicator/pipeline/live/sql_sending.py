"""Sending of a segment's rebuilt blocks over the ordinary append stream, in a Spark task of a link with SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import uvloop

from replicator.engine.log.arrow import Outgoing, encode_append
from replicator.links.copier import FRAME_BYTES_TARGET
from replicator.pipeline.live.carrying import LinkWork, run_of
from replicator.pipeline.live.filtering import Sent


def send(work: LinkWork, blocks: Sequence[Sent]) -> tuple[dict[str, tuple[str, str]], int]:
    """Append blocks in their order; return the refused topics, each with code and reason, and the bytes that were sent.

    Raises the links' :class:`~replicator.links.errors.LinkError`."""
    return uvloop.run(_send(work, blocks)) if blocks else ({}, 0)


async def _send(work: LinkWork, blocks: Sequence[Sent]) -> tuple[dict[str, tuple[str, str]], int]:
    refused: dict[str, tuple[str, str]] = {}
    wire_bytes = 0
    async with work.transport() as transport:
        transport.run_id = await asyncio.to_thread(run_of, work.worker_url)
        await transport.open()
        for frame in _frames(blocks):
            taken = [each for each in frame if each.topic not in refused]
            if not taken:
                continue
            packed = await transport.pack(encode_append([Outgoing(*each) for each in taken]))
            wire_bytes += packed.size_bytes
            await transport.send(packed)
            refused |= (await transport.receive()).refused
    return refused, wire_bytes


def _frames(blocks: Sequence[Sent]) -> Iterator[list[Sent]]:
    """Yield frames of about :data:`FRAME_BYTES_TARGET`, or of one block that is larger."""
    frame: list[Sent] = []
    size_bytes = 0
    for each in blocks:
        if frame and size_bytes + len(each.block) > FRAME_BYTES_TARGET:
            yield frame
            frame, size_bytes = [], 0
        frame.append(each)
        size_bytes += len(each.block)
    if frame:
        yield frame
