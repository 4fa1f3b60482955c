"""Messages by which a link asks its destination to keep an earlier life of a topic, or to delete its copy.

A *life* is a topic at its origin from when it is made until it is deleted; its incarnation names it. Each life has
ledgers of its own.

``POST /replication/v1/keep-both?from=&topic=`` and ``POST /replication/v1/delete-copy?from=&topic=`` carry
:class:`OriginMarks` in JSON. Each resolves a gap of one topic: the first keeps both lives, the second deletes the copy.
``POST /replication/v1/earlier-lives?from=&topic=`` carries :class:`OriginMarks` of earlier lives that the source has,
each with its newest message. The answer ``{"lacking": [origin, …]}`` names each origin for which the destination has
later messages than that newest one, but not that one itself. With ``note=true`` the destination first records the
missing messages as left out.

``GET /replication/v1/copied-anew?topic=&to=`` is the destination's question before it deletes a copy, because whoever
may replicate can send ``delete-copy``. The source answers with :class:`OriginMarks` of what it has in full if one of
its links to ``to`` asks for that at this moment, and with status 409 if none does.

A link whose stream has the parameter ``hears=made`` is told over that stream of topics that the destination makes:
``{"made": TOPIC}`` is a message that answers no frame. If the destination deleted the topic before, and the link's
copy with it, the link copies the topic again from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from replicator.engine.lineage import checked_life
from replicator.engine.log.store_tables import HighWater
from snapshots.position import Position

KEEP_BOTH: Final = "keep-both"
DELETE_COPY: Final = "delete-copy"
EARLIER_LIVES: Final = "earlier-lives"
"""Last part of the route of earlier lives, below ``/replication/v1/``. The two names above it are of this kind, too."""
COPIED_ANEW_ROUTE: Final = "/replication/v1/copied-anew"
MADE: Final = "made"
"""Only field of a message that names a topic which the destination made."""
HEARS: Final = "hears"
"""Parameter of a stream. Its value :data:`MADE` asks for messages about topics that the destination makes."""
NO_SUCH_ROUTE: Final = "NotFound"
"""Error code of a destination whose version lacks the route."""


@dataclass(frozen=True, slots=True)
class OriginMarks:
    """Marks in a message about lives of a topic: for each origin, a life (its incarnation) and a position in it.

    The module says what the position means in each message.
    """

    origins: Mapping[str, HighWater]

    def as_json(self) -> dict[str, Any]:
        """Return the body ``{"origins": {name: {"incarnation", "position"}}}``."""
        return {
            "origins": {
                origin: {"incarnation": mark.incarnation, "position": str(mark.position)}
                for origin, mark in self.origins.items()
            }
        }

    @classmethod
    def from_json(cls, body: Any) -> Self:
        """Return the marks in a JSON body. Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition if
        the body is malformed."""
        marks: dict[str, HighWater] = {}
        for origin, mark in body["origins"].items():
            position = Position.parse(mark["position"])
            marks[str(origin)] = HighWater(checked_life(mark["incarnation"], position), position)
        return cls(marks)
