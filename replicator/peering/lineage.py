"""Message by which a link tells its destination which stores wrote what it copies, and which topics were deleted.

:data:`LINEAGE_ROUTE` gets ``{"stores": {origin: {"store", "predecessors": [id]}}, "copies": [{"topic", "origin",
"incarnation", "store"}], "deletions": [{"topic", "origin", "incarnation", "position", "at_ms"}]}``, and answers
``{"refused": {topic: {"code", "message"}}}``. A link sends it only to a worker that names its own store when it is
asked for high-water marks: an earlier version does not have the route.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from replicator.engine.lineage import CopyWriter, Deletion, StoreLine

LINEAGE_ROUTE: Final = "/replication/v1/lineage"
ROWS_MAX: Final = 500
"""Copies and deletions together in one message: with the longest names some 300 kB, below what an HTTP server takes."""
ORIGINS_MAX: Final = 100
"""Origins whose stores one message names: as many as a link asks high-water marks of."""


@dataclass(frozen=True, slots=True)
class LineageTold:
    """News of a link: the newest stores of origins, the writers of copies, and lives that were deleted on purpose."""

    stores: Mapping[str, StoreLine] = field(default_factory=dict)
    copies: Sequence[CopyWriter] = ()
    deletions: Sequence[Deletion] = ()

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the message that a JSON body has.

        Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition if the body is malformed or too large.
        """
        stores = {str(origin): StoreLine.of_json(row) for origin, row in body["stores"].items()}
        copies = [CopyWriter.of_json(row) for row in body["copies"]]
        deletions = [Deletion.of_json(row) for row in body["deletions"]]
        if len(stores) > ORIGINS_MAX or len(copies) + len(deletions) > ROWS_MAX:
            raise ValueError(f"more than {ORIGINS_MAX} stores, or {ROWS_MAX} copies and deletions, were told at once")
        return cls(stores, copies, deletions)

    def as_json(self) -> dict[str, Any]:
        return {
            "stores": {origin: line.as_json() for origin, line in self.stores.items()},
            "copies": [each.as_json() for each in self.copies],
            "deletions": [each.as_json() for each in self.deletions],
        }
