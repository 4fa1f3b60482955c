"""Rows of many owners that are written in one turn of the event loop, as one request to the writer.

Invariant (DESIGN §3): 1, an owner learns that its rows are durable only after the commit that contains them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from replicator.engine.errors import EngineError, StoreFailed
from replicator.running.short_tasks import in_background

GATHERED_MAX: Final = 1_000
"""Limit of owners in one request, so that a turn of the event loop and a transaction stay short."""

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

    def ended(self, error: EngineError | None) -> None:
        """Receive the outcome: None if the rows are durable, otherwise the error."""


class GatheredPuts:
    """Collects owners until the next turn of the event loop, and then writes their rows with ``put_many``."""

    __slots__ = ("_owners", "_put_many")

    def __init__(self, put_many: Callable[[Sequence[Row], Sequence[Prefix]], Awaitable[None]]) -> None:
        self._put_many = put_many
        self._owners: list[RowOwner] = []

    def join(self, owner: RowOwner) -> None:
        """Write the rows of ``owner`` with the next request. The owner must not join again before
        :meth:`RowOwner.ended`."""
        self._owners.append(owner)
        if len(self._owners) == 1:
            in_background(self._write(), "writing of gathered rows")

    async def _write(self) -> None:
        owners, self._owners = self._owners[:GATHERED_MAX], self._owners[GATHERED_MAX:]
        if self._owners:
            in_background(self._write(), "writing of gathered rows")
        begun: list[tuple[RowOwner, Sequence[Row], Sequence[Prefix]]] = []
        for owner in owners:
            try:
                begun.append((owner, *owner.begin()))
            except EngineError as error:
                owner.ended(error)
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
            for owner, _, _ in begun:
                owner.ended(outcome)
