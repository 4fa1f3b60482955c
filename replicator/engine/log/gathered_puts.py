"""Rows of many owners that are to be written in the same turn of the event loop: one request to the writer.

Invariant (DESIGN §3): 1, an owner is told that its rows are written only after the commit that holds them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from replicator.engine.errors import EngineError, StoreFailed
from replicator.running.short_tasks import in_background

GATHERED_MAX: Final = 1_000
"""Owners in one request, so that neither a turn of the event loop nor a transaction gets long."""

Row = tuple[str, bytes, bytes | None]
"""A table, a key, and the new value; None deletes the row."""
Prefix = tuple[str, bytes]
"""A table, and the prefix under which all rows are deleted."""


class RowOwner(Protocol):
    """Interface of whoever has rows written."""

    def begin(self) -> tuple[Sequence[Row], Sequence[Prefix]]:
        """Return the rows to write and the prefixes to delete first, both empty for none; raises
        :class:`EngineError` where nothing may be written."""

    def ended(self, error: EngineError | None) -> None:
        """Take the outcome: the rows are durable, or why they are not."""


class GatheredPuts:
    """Gathers rows until the next turn of the event loop, and writes them by ``put_many``."""

    __slots__ = ("_owners", "_put_many")

    def __init__(self, put_many: Callable[[Sequence[Row], Sequence[Prefix]], Awaitable[None]]) -> None:
        self._put_many = put_many
        self._owners: list[RowOwner] = []

    def join(self, owner: RowOwner) -> None:
        """Have the rows of ``owner`` written. It must not join again before it was told the outcome."""
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
        outcome: EngineError | None = StoreFailed("the rows were not written")  # it stays only if a bug ends this
        try:
            if writes or cleared:
                await self._put_many(writes, cleared)
            outcome = None
        except EngineError as error:
            outcome = error
        finally:
            for owner, _, _ in begun:
                owner.ended(outcome)
