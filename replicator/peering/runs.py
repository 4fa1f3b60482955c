"""Messages and routes by which a worker tells its run to the destinations of its links, and learns of twins.

A run is one start of a worker on a store. Two runs of one store at a time are twins: somebody copied the directory.

1. Before a link opens its stream it tells its run: ``POST /replication/v1/runs?from=CLUSTER`` with a :class:`RunTold`.
   The :class:`RunAnswer` says whether the destination serves this run.
2. The destination asks over the stream of the run that it serves, by an answer that belongs to no frame:
   ``{"question": TEXT}``. The worker tells its run again, with the text as ``answering``.
3. Each later request and each stream of the link names the run in its parameter ``run``.

A destination of an earlier version has no such route, and a worker of an earlier version names no run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

RUNS_ROUTE: Final = "/replication/v1/runs"
STAYS_ROUTE: Final = RUNS_ROUTE + "/{cluster}/stays"
QUESTION: Final = "question"
"""The only field of an answer in a stream that belongs to no frame."""
EARLIER_MAX: Final = 32
"""Earlier runs that a run names: enough to know a store again after many restarts, in a body of 2 kB."""
ID_CHARS_MAX: Final = 64
HOST_CHARS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a worker on a store. ``earlier`` are the runs of the same store before it, the newest first."""

    id: str
    earlier: tuple[str, ...] = ()
    host: str = ""
    started_at_ms: int = 0

    @property
    def line(self) -> tuple[str, ...]:
        """This run and those before it, the newest first."""
        return (self.id, *self.earlier)

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the run that a JSON object has, cut to the limits.

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


class Standing(StrEnum):
    """How a destination treats a run."""

    SERVED = "served"
    ASKING = "asking"
    """The destination asks another run whether it is still there: tell the run again."""
    TWIN = "twin"
    """Another run of the store is served."""
    DISMISSED = "dismissed"
    """An operator said that another run stays."""


@dataclass(frozen=True, slots=True)
class RunTold:
    """A run, and the question that it answers, if any."""

    run: Run
    answering: str = ""

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return what a JSON body has. Raises KeyError, TypeError or ValueError if it is malformed."""
        return cls(Run.of_json(body["run"]), str(body.get("answering", ""))[:ID_CHARS_MAX])

    def as_json(self) -> dict[str, Any]:
        return {"run": self.run.as_json(), "answering": self.answering}


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """How the destination treats the run that told itself; the run that it serves; and the twins of that one."""

    standing: Standing
    served: Run | None
    twins: Sequence[Run]
    reason: str
    """Why the run is not served, and what to do, in words; empty if it is served."""

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the answer in a JSON body. Raises KeyError, TypeError or ValueError if it is malformed."""
        return cls(
            Standing(body["standing"]),
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
