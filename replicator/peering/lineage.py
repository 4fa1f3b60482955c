"""Message by which a link reports to its destination which stores wrote its copies, and which topics were deleted.

:data:`LINEAGE_ROUTE` gets ``{"stores": {origin: {"store", "predecessors": [id]}}, "copies": [{"topic", "origin",
"incarnation", "store"}], "deletions": [{"topic", "origin", "incarnation", "position", "at_ms"}]}``, and answers
``{"refused": {topic: {"code", "message"}}, "doubted": {origin: {"code", "message"}}}``. The destination asks the
source's worker about stores that would replace known ones. It did not believe those of the origins in ``doubted``, and
took everything else. A destination of an earlier version names none.

A link sends the message only if the destination names its own store in its answer with high-water marks. A destination
of an earlier version does not, and lacks the route.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from replicator.engine.lineage import CopyWriter, Deletion, StoreLine

LINEAGE_ROUTE: Final = "/replication/v1/lineage"
ROWS_MAX: Final = 500
"""Most copies and deletions in one message. With the longest names they take some 300 kB, less than the HTTP server's
limit."""
ORIGINS_MAX: Final = 100
"""Most origins whose stores one message names: as many as a link asks high-water marks of."""


@dataclass(frozen=True, slots=True)
class LineageReport:
    """Report of a link to its destination: each origin's newest store, the stores that wrote the copies of topics, and
    the topics that their origins deleted on purpose.

    A topic that is deleted and made again has another life, with another incarnation. Copies and deletions are of one
    life each.
    """

    stores: Mapping[str, StoreLine] = field(default_factory=dict)
    copies: Sequence[CopyWriter] = ()
    deletions: Sequence[Deletion] = ()

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the report in a JSON body.

        Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition if the body is malformed or too large.
        """
        if len(body["stores"]) > ORIGINS_MAX or len(body["copies"]) + len(body["deletions"]) > ROWS_MAX:
            raise ValueError(
                f"a link's message has more than {ORIGINS_MAX} stores, or more than {ROWS_MAX} copies and deletions; "
                "run the same version in all clusters"
            )
        return cls(
            {str(origin): StoreLine.of_json(row) for origin, row in body["stores"].items()},
            [CopyWriter.of_json(row) for row in body["copies"]],
            [Deletion.of_json(row) for row in body["deletions"]],
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "stores": {origin: line.as_json() for origin, line in self.stores.items()},
            "copies": [each.as_json() for each in self.copies],
            "deletions": [each.as_json() for each in self.deletions],
        }


@dataclass(frozen=True, slots=True)
class LineageReply:
    """Answer to a report: code and message of each refusal, by topic, and of each doubt about a store, by origin."""

    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    doubted: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the answer in a JSON body. Raises KeyError, TypeError or AttributeError if it is malformed."""
        return cls(
            *(
                {str(name): (str(row["code"]), str(row["message"])) for name, row in rows.items()}
                for rows in (body["refused"], body.get("doubted", {}))
            )
        )

    def as_json(self) -> dict[str, Any]:
        named = {"refused": self.refused, "doubted": self.doubted}
        return {
            what: {name: {"code": code, "message": message} for name, (code, message) in rows.items()}
            for what, rows in named.items()
        }
