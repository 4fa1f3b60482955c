"""Fillers: empty local markers at positions of a log where the entries of other clusters lay before a reclaim.

Between two messages of this cluster, its ledger can have any number of entries of other clusters. A ledger has no gaps,
so fillers take all these positions.

Invariants (DESIGN §3): 11, one transaction writes a bounded number of fillers; 5, after each transaction, every own
position up to its end is a block or a hole.

1. A request says which blocks to write, and up to which position. :func:`first_part` splits it, so that its first part
   fills at most :data:`FILLED_MAX` positions. That part can end between two blocks.
2. The writer carries out the first part, and then the rest in the same way (:func:`in_parts`). A reclaim that is cut
   off between two parts goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from replicator.engine.log.block import BlockHeader, BlockKind, Buffer, build_block
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.requests import PutBackRequest, ReclaimRequest, Request
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import Position

FILLER_MARKER: Final = 101
"""Marker type of a filler, which nobody reads. See :class:`snapshots.markers.MarkerType`."""
FILLED_AT_ONCE: Final = 10_000
"""Most fillers of one block."""
FILLED_MAX: Final = 200_000
"""Most fillers that one transaction writes: some 8 MB, as much as the blocks of a reclaim's transaction."""
_FILLER: Final = encode_entry(
    MessageMetadata(producer_name="replicator", sequence_id=0, publish_time=0, marker_type=FILLER_MARKER), b""
)
FILLER_BYTES: Final = len(_FILLER) + 8
"""Bytes of one filler in a block: the entry, and the two numbers that the block's head has for each entry."""

_Request = TypeVar("_Request", ReclaimRequest, PutBackRequest)


def filler_blocks(
    cluster: str, incarnation: int, first: Position, entries: int, publish_time_ms: int
) -> Iterator[tuple[BlockHeader, Buffer]]:
    """Yield blocks of fillers for ``entries`` positions from ``first`` on, in one ledger."""
    for done in range(0, entries, FILLED_AT_ONCE):
        count = min(entries - done, FILLED_AT_ONCE)
        at = Position(first.ledger, first.entry + done)
        block = build_block(
            kind=BlockKind.LOCAL_MARKERS,
            origin=cluster,
            incarnation=incarnation,
            origin_first=at,
            publish_time_ms=publish_time_ms,
            entries=[_FILLER] * count,
            batch_sizes=[0] * count,
        )
        yield BlockHeader(BlockKind.LOCAL_MARKERS, cluster, incarnation, at, count, 0, publish_time_ms, 0), block


def first_part(request: _Request, at: Position | None) -> tuple[_Request, _Request | None]:
    """Split ``request`` after :data:`FILLED_MAX` fillers. Return its first part and the rest, which is None if there is
    nothing left to do.

    ``at`` is the position after the log's last block below the request's blocks; None if there is no such block.
    """
    gaps = list(_gaps(request.blocks, request.upto, at))
    filled = number = 0
    while number < len(gaps) and filled + gaps[number] <= FILLED_MAX:
        filled += gaps[number]
        number += 1
    if number == len(gaps):
        return request, None
    blocks = request.blocks[:number]
    end = _after(blocks[-1][0]) if blocks else at
    assert end is not None, "where the log has no block, at most one position is filled"
    upto = Position(end.ledger, end.entry + FILLED_MAX - filled - 1)
    part = replace(
        request,
        blocks=blocks,
        holes=[(after, min(last, upto)) for after, last in request.holes if after < upto],
        upto=upto,
    )
    rest = replace(
        request,
        blocks=request.blocks[number:],
        holes=[(max(after, upto), last) for after, last in request.holes if last > upto],
    )
    return part, rest


async def in_parts(request: ReclaimRequest | PutBackRequest, submit: Callable[[Request], Awaitable[Any]]) -> None:
    """Carry out ``request`` in parts. Each part is one transaction, with at most :data:`FILLED_MAX` filled positions.

    ``submit`` gives a part to the writer, and returns the rest of its request, or None.
    """
    left: ReclaimRequest | PutBackRequest | None = request
    while left is not None:
        left.fillers = fillers_of(left)
        left.bytes = sum(len(block) for _, block in left.blocks) + left.fillers * FILLER_BYTES
        left = await submit(left)
        if left is not None:
            left.answer = asyncio.get_running_loop().create_future()


def fillers_of(request: ReclaimRequest | PutBackRequest) -> int:
    """Return an upper limit of the number of fillers in the first part of ``request``."""
    if isinstance(request, ReclaimRequest):
        at = Position(request.last.ledger, request.last.entry + 1)
    else:  # only the writer knows which block lies before
        at = Position((request.blocks[0][0].origin_first if request.blocks else request.upto).ledger, 0)
    return min(FILLED_MAX, sum(_gaps(request.blocks, request.upto, at)))


def _gaps(blocks: Sequence[tuple[BlockHeader, bytes]], upto: Position, at: Position | None) -> Iterator[int]:
    """Yield how many positions are filled before each block, and last how many from there up to ``upto``.

    ``at`` is the next position of the log. No position is filled between two ledgers.
    """
    for header, _ in blocks:
        first = header.origin_first
        yield first.entry - at.entry if at is not None and at.ledger == first.ledger else 0
        at = _after(header)
    if at is not None and at.ledger == upto.ledger:
        yield max(0, upto.entry + 1 - at.entry)
    else:
        yield 1 if at is None or at < upto else 0


def _after(header: BlockHeader) -> Position:
    return Position(header.origin_first.ledger, header.origin_last.entry + 1)
