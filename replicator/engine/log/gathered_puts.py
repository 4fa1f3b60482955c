"""Rows of many owners that are written in one turn of the event loop, as one request to the writer.

Invariants (DESIGN §3): 1, an owner learns that its rows are durable only after the commit that contains them; 11, a
request is bounded by its owners and its bytes; 12, each owner learns the outcome, whatever the others do.

If the store has no room for all rows of a request, each half of its owners becomes a request of its own. So only an
owner whose own rows do not fit is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import structlog

from replicator.engine.errors import EngineError, StoreFailed, StoreFull
from replicator.running.short_tasks import in_background

GATHERED_MAX: Final = 1_000
"""Limit of owners in one request, so that a turn of the event loop and a transaction stay short."""
GATHERED_BYTES_MAX: Final = 4 * 1024 * 1024
"""At this size, a request takes no further owner's rows."""

log = structlog.get_logger(__name__)

Row = tuple[str, bytes, bytes | None]
"""A table, a key, and the new value; None deletes the row."""
Prefix = tuple[str, bytes]
"""A table, and the prefix under which all rows are deleted."""


class RowOwner(Protocol):
    """Interface of an object whose rows are written, such as the saver of a cursor."""

    def begin(self) -> tuple[Sequence[Row], Sequence[Prefix]]:
        """Return the rows to write, and the prefixes whose rows are deleted before that.

        Both are empty if there is nothing to write. Raises :class:`EngineError` if nothing may be written any more.
        """

    def undo(self) -> None:
        """Take back what :meth:`begin` did: the rows were not written, and it will be called again."""

    def ended(self, error: EngineError | None) -> None:
        """Receive the outcome: None if the rows are durable, otherwise the error."""


_Begun = tuple[RowOwner, Sequence[Row], Sequence[Prefix]]


class GatheredPuts:
    """Collects owners until the next turn of the event loop, and then writes their rows with ``put_many``."""

    __slots__ = ("_owners", "_put_many", "_scheduled")

    def __init__(self, put_many: Callable[[Sequence[Row], Sequence[Prefix]], Awaitable[None]]) -> None:
        self._put_many = put_many
        self._owners: list[RowOwner] = []
        self._scheduled = False

    def join(self, owner: RowOwner) -> None:
        """Write the rows of ``owner`` with the next request. The owner must not join again before
        :meth:`RowOwner.ended`."""
        self._owners.append(owner)
        self._schedule()

    def _schedule(self) -> None:
        if self._owners and not self._scheduled:
            self._scheduled = True
            in_background(self._write_next(), "writing of gathered rows")

    async def _write_next(self) -> None:
        owners, self._owners, self._scheduled = self._owners, [], False
        begun, taken = _begin(owners)
        self._owners[:0] = owners[taken:]
        self._schedule()
        await self._write(begun)

    async def _write(self, begun: Sequence[_Begun]) -> None:
        writes = [row for _, rows, _ in begun for row in rows]
        cleared = [prefix for _, _, prefixes in begun for prefix in prefixes]
        outcome: EngineError | None = StoreFailed("the rows were not written")  # stays only after a bug
        try:
            if writes or cleared:
                await self._put_many(writes, cleared)
            outcome = None
        except EngineError as error:
            outcome = error
        finally:
            halved = isinstance(outcome, StoreFull) and len(begun) > 1
            if not halved:
                for owner, _, _ in begun:
                    _tell(owner, outcome)
        if halved:
            owners = [owner for owner, _, _ in begun]
            for owner in owners:
                owner.undo()
            half = len(owners) // 2
            await asyncio.gather(self._write_again(owners[:half]), self._write_again(owners[half:]))

    async def _write_again(self, owners: Sequence[RowOwner]) -> None:
        """Write the rows as the owners have them now: a deletion may have come meanwhile."""
        while owners:
            begun, taken = _begin(owners)
            owners = owners[taken:]
            await self._write(begun)


def _begin(owners: Sequence[RowOwner]) -> tuple[list[_Begun], int]:
    """Begin as many of the ``owners`` as one request takes. Return those that have begun, and how many were asked."""
    begun: list[_Begun] = []
    size_bytes = 0
    for asked, owner in enumerate(owners):
        if asked >= GATHERED_MAX or size_bytes >= GATHERED_BYTES_MAX:
            return begun, asked
        try:
            rows, prefixes = owner.begin()
        except EngineError as error:
            _tell(owner, error)
        except Exception:  # a bug of this owner, of which the others must not hear
            log.exception("the rows of an owner cannot be written")
            _tell(owner, StoreFailed("the rows were not written"))
        else:
            begun.append((owner, rows, prefixes))
            for _, _, value in rows:
                if value is not None:
                    size_bytes += len(value)
    return begun, len(owners)


def _tell(owner: RowOwner, outcome: EngineError | None) -> None:
    try:
        owner.ended(outcome)
    except Exception:  # a bug; the others must hear of theirs
        log.exception("an owner of rows failed to take the outcome")
