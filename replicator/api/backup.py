"""``POST /replication/v1/backup``: a copy of this worker's store, as it is now, to whoever keeps backups.

The body has the hashes of the pieces that he has already; those are named and not sent. One copy is made at a time,
since a store that is being copied grows by all that it writes. It is read on a thread; when who asked is gone, or takes
nothing, the copying ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import structlog
from aiohttp import web

from replicator import __version__
from replicator.api.audit import OPERATOR, Audit
from replicator.api.errors import BadRequest
from replicator.api.frame_receiver import SILENCE_SECONDS_MAX
from replicator.api.slices import in_slices
from replicator.engine.engine import Engine
from replicator.engine.errors import StoreCopyFailed, TooBusy
from replicator.engine.log.copy_stream import (
    DIGEST_BYTES,
    KNOWN_BYTES_MAX,
    copy_head,
    encode_damaged,
    encode_end,
    encode_head,
    encode_piece,
)
from replicator.engine.log.store_copy import DamagedBlock, Piece, copy_pieces
from replicator.running.timeouts import timeout

PATH: Final = "/replication/v1/backup"

log = structlog.get_logger(__name__)


class BackupRoute:
    """Makes copies of the store of ``engine``; ``audit`` hears of each."""

    def __init__(self, engine: Engine, audit: Audit) -> None:
        self._engine = engine
        self._audit = audit
        self._running = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer with a copy of the store. Raise :class:`TooBusy` while another copy is made."""
        if self._running:
            raise TooBusy("the store is being copied for another backup: try again when that is done")
        self._running = True
        try:
            known = await _known(request)
            response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
            await response.prepare(request)
            await self._send(request, response, known)
            return response
        finally:
            self._running = False

    async def _send(self, request: web.Request, response: web.StreamResponse, known: frozenset[bytes]) -> None:
        engine = self._engine
        began = time.monotonic()
        pieces = copy_pieces(engine.store, known)
        before = [
            (topic, (topic.incarnation, topic.log.last), topic.origins.vector())
            async for topic in in_slices(engine, engine.topics())
        ]
        now_ms = engine.writer.wall_clock_ms()
        copied = sent = damaged = 0
        outcome = "the one who asked went away"
        try:
            piece = await asyncio.to_thread(_begun, pieces)
            # What is copied is fixed now. The copy may lack a topic that was deleted before, so claim no such topic.
            there = [each for each in before if not each[0].tail.deleted]
            ends = {topic.name: end for topic, end, _ in there}
            marks = {topic.name: mark for topic, _, mark in there}
            head = partial(copy_head, engine.store, ends, version=__version__, made_at_ms=now_ms, marks=marks)
            await _write(response, await asyncio.to_thread(lambda: encode_head(head())))
            if isinstance(piece, StoreCopyFailed):
                raise piece
            while piece is not None:
                if isinstance(piece, DamagedBlock):
                    damaged += 1
                    await _write(response, encode_damaged(piece))
                else:
                    copied += piece.size
                    sent += len(piece.content or b"")
                    await _write(response, encode_piece(piece))
                piece = await asyncio.to_thread(_next, pieces)
            await _write(response, encode_end())
            outcome = "done"
        except StoreCopyFailed as error:
            outcome = str(error)
            await _write(response, encode_end(outcome))
        except (ConnectionError, TimeoutError):
            if request.transport is not None:  # there is nobody to tell
                request.transport.abort()
        finally:
            await asyncio.shield(asyncio.to_thread(pieces.close))
            detail: dict[str, object] = {"bytes": copied, "sent": sent, "damaged_blocks": damaged}
            detail |= {"seconds": round(time.monotonic() - began, 1), "outcome": outcome}
            self._audit(OPERATOR, "backup", "store", detail)
            log.info("the store was copied for a backup", cluster=engine.cluster, **detail)


def _begun(pieces: Iterator[Piece | DamagedBlock]) -> Piece | DamagedBlock | StoreCopyFailed | None:
    """Begin the copy. Return its first piece, or why there is none: the answer's head must come before that reason."""
    try:
        return _next(pieces)
    except StoreCopyFailed as error:
        return error


def _next(pieces: Iterator[Piece | DamagedBlock]) -> Piece | DamagedBlock | None:
    return next(pieces, None)


async def _write(response: web.StreamResponse, content: bytes) -> None:
    async with timeout(SILENCE_SECONDS_MAX):
        await response.write(content)


async def _known(request: web.Request) -> frozenset[bytes]:
    """Return the hashes in the body, which may be larger than other bodies. Raise :class:`BadRequest` if the body is
    malformed, or stops coming for :data:`SILENCE_SECONDS_MAX`.
    """
    body = bytearray()
    try:
        while True:
            async with timeout(SILENCE_SECONDS_MAX):
                part = await request.content.readany()
            if not part:
                break
            body += part
            if len(body) > KNOWN_BYTES_MAX:
                raise BadRequest(
                    f"the body, the hashes of the pieces that the backup has, is over the limit of {KNOWN_BYTES_MAX} "
                    "bytes: send fewer hashes"
                )
    except TimeoutError:
        raise BadRequest(
            f"nothing of the body came for {SILENCE_SECONDS_MAX:g} s: see whether the network or a proxy holds it back"
        ) from None
    if len(body) % DIGEST_BYTES:
        raise BadRequest(
            f"the body has {len(body)} bytes, which is no multiple of {DIGEST_BYTES}: send whole hashes of "
            f"{DIGEST_BYTES} bytes, one after another"
        )
    content = bytes(body)
    return frozenset(content[at : at + DIGEST_BYTES] for at in range(0, len(content), DIGEST_BYTES))


def add_backup(app: web.Application, engine: Engine, audit: Audit) -> None:
    """Add the route. It has no rule of its own in :mod:`replicator.api.guarding`, so it is for superusers."""
    app.router.add_post(PATH, BackupRoute(engine, audit).handle)
