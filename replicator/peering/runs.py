"""Messages and routes by which a worker announces its run to the destinations of its links, and learns of twins.

A run is one start of a worker on its store. Two live runs of one store are twins: somebody copied the data directory.

1. Before a link opens its stream, the worker announces its run: ``POST /replication/v1/runs?from=CLUSTER`` with a
   :class:`RunAnnouncement`. The :class:`RunAnswer` says whether the destination serves this run.
2. The destination can ask the served run whether it is still alive. It sends ``{"question": TEXT}`` over that run's
   stream, as an answer that belongs to no frame. The worker announces its run again, with TEXT as ``answering``.
3. Each later request and each stream of the link names the run in its parameter ``run``.

A destination of an earlier version has no such route. A worker of an earlier version announces no run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

RUNS_ROUTE: Final = "/replication/v1/runs"
STAYS_ROUTE: Final = RUNS_ROUTE + "/{cluster}/stays"
QUESTION: Final = "question"
"""Only field of a question: an answer in a stream that belongs to no frame."""
EARLIER_MAX: Final = 32
"""Most earlier runs that a run names. They identify a store even after many restarts, and take 2 kB of a body."""
ID_CHARS_MAX: Final = 64
HOST_CHARS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a worker on its store. ``earlier`` names the starts on the same store before it, the newest
    first."""

    id: str
    earlier: tuple[str, ...] = ()
    host: str = ""
    started_at_ms: int = 0

    @property
    def line(self) -> tuple[str, ...]:
        """Ids of this run and of the earlier runs, the newest first."""
        return (self.id, *self.earlier)

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the run in a JSON object, with its texts and lists cut to the limits.

        Raises KeyError, TypeError or ValueError if the object is malformed.
        """
        return cls(
            str(row["id"])[:ID_CHARS_MAX],
            tuple(str(each)[:ID_CHARS_MAX] for each in list(row.get("earlier", ()))[:EARLIER_MAX]),
            str(row.get("host", ""))[:HOST_CHARS_MAX],
            int(row.get("started_at_ms", 0)),
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "earlier": list(self.earlier)}


class RunVerdict(StrEnum):
    """Answers of a destination to a run that announced itself."""

    SERVED = "served"
    ASKING = "asking"
    """The destination is asking the served run whether it is alive: announce the run again later."""
    TWIN = "twin"
    """Another live run of the same store is served, so this run is refused."""
    DISMISSED = "dismissed"
    """An operator decided that another run of the same store stays, so this run is refused."""


@dataclass(frozen=True, slots=True)
class RunAnnouncement:
    """Message of a worker that announces its run; ``answering`` is the question that it answers, or empty."""

    run: Run
    answering: str = ""

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the announcement in a JSON body. Raises KeyError, TypeError or ValueError if the body is malformed."""
        return cls(Run.of_json(body["run"]), str(body.get("answering", ""))[:ID_CHARS_MAX])

    def as_json(self) -> dict[str, Any]:
        return {"run": self.run.as_json(), "answering": self.answering}


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """Answer to a run that announced itself: how it is treated, which run is served, and the twins of the served
    run."""

    standing: RunVerdict
    served: Run | None
    twins: Sequence[Run]
    reason: str
    """Why the run is not served, and what an operator can do; empty if it is served."""

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the answer in a JSON body. Raises KeyError, TypeError or ValueError if the body is malformed."""
        return cls(
            RunVerdict(body["standing"]),
            None if body["served"] is None else Run.of_json(body["served"]),
            [Run.of_json(each) for each in body["twins"]],
            str(body["reason"]),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "standing": self.standing.value,
            "served": None if self.served is None else self.served.as_json(),
            "twins": [each.as_json() for each in self.twins],
            "reason": self.reason,
        }
