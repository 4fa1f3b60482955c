"""Decompression for clients and for the engine's own work: on threads, and within a budget of uncompressed bytes.

A few stored bytes may become 64 MiB, and many readers may ask for them at once. So decompression for a client first
claims as many bytes of the budget as the entry states. A producer wrote that number, so decompression stops at it
(:mod:`replicator.engine.log.compression`).

Other work has shares of its own, so clients cannot hold it up. Compaction and the SQL of links have :data:`INTERNAL`,
in each process. Frames of links have :data:`LINKS_BYTES_MAX`, each until its whole content is durable. The writer
compares duplicates within other limits (:mod:`replicator.engine.producing.contents`), and does not wait for a budget,
because nothing is confirmed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

from replicator.engine.log.compression import UNCOMPRESSED_BYTES_MAX, Buffer, check_claimed, decompress
from replicator.metadata.metadata_pb2 import NONE, CompressionType
from replicator.running.byte_budget import UNPACKED_BYTES_MAX, Claim, ThreadBudget, WaitingBudget

P = ParamSpec("P")
R = TypeVar("R")

INTERNAL: Final = ThreadBudget(UNCOMPRESSED_BYTES_MAX)
"""Budget of compaction, and of links' SQL, in this process: one entry of the largest size."""
LINKS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Budget of the frames of links: one stream may have eight frames of 8 MiB under way, as many as it may send ahead."""
THREADS: Final = 2
"""Threads that work for clients. More would take the time of the event loop's core."""
ASIDE_BYTES_MIN: Final = 64 * 1024
"""Size from which work is worth a thread: less takes some tens of microseconds."""


class Unpacking:
    """The budget and the threads of one worker's clients."""

    def __init__(self, bytes_max: int = UNPACKED_BYTES_MAX) -> None:
        self.clients = WaitingBudget(bytes_max)
        self.links = WaitingBudget(LINKS_BYTES_MAX)
        self._threads: ThreadPoolExecutor | None = None

    async def on_thread(self, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Run ``work`` on a thread of the budget. When the caller is cancelled, return only when the work is over."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="unpacking")
        return await finished(asyncio.wrap_future(self._threads.submit(lambda: work(*arguments, **named))))

    async def decompressed(
        self, holder: object, payload: Buffer, codec: CompressionType, size_bytes: int, cut: Callable[[], None]
    ) -> tuple[bytes, Claim]:
        """Return ``payload`` uncompressed, and the claim on the budget, which the caller must give back.

        Raises :class:`~replicator.engine.errors.EntryCorrupt`, :class:`~replicator.engine.errors.MessageTooLarge`.
        """
        check_claimed(size_bytes)
        claim = await self.clients.take(holder, size_bytes, cut)
        try:
            if size_bytes < ASIDE_BYTES_MIN:
                return decompress(payload, codec, size_bytes), claim
            return await self.on_thread(decompress, payload, codec, size_bytes), claim
        except BaseException:
            self.clients.give_back(claim)
            raise

    def status(self) -> dict[str, int]:
        """Return the figures of the budget, as the worker's status has them."""
        return {
            "bytes_max": self.clients.bytes_max,
            "bytes": self.clients.used_bytes,
            "waiting": self.clients.waiting,
            "internal_bytes_max": INTERNAL.bytes_max,
            "internal_bytes": INTERNAL.used_bytes,
            "links_bytes_max": self.links.bytes_max,
            "links_bytes": self.links.used_bytes,
        }

    def close(self) -> None:
        """Take no more work. Work that has begun ends by itself."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


async def finished(running: asyncio.Future[R]) -> R:
    """Return the result of work on a thread. When the caller is cancelled, return only when the work is over."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


@contextmanager
def unpacked_internally(payload: Buffer, codec: CompressionType, size_bytes: int) -> Iterator[Buffer]:
    """Yield ``payload`` uncompressed, for the engine's own work. First block this thread until the budget has room.

    The budget is :data:`INTERNAL`. It counts the bytes until the ``with`` statement ends.

    Raises :class:`~replicator.engine.errors.EntryCorrupt`, :class:`~replicator.engine.errors.MessageTooLarge`.
    """
    if codec == NONE:
        yield payload
        return
    check_claimed(size_bytes)
    with INTERNAL.held(size_bytes):
        yield decompress(payload, codec, size_bytes)
