"""Client for the plans of a link: it asks the worker of the link's source for the blocks to carry next.

The link decides what is copied, at its source's worker; carriers only ask. Every call may be repeated: the destination
drops blocks that it has, and the worker ignores repeated reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from replicator.pipeline.errors import UnexpectedAnswer

if TYPE_CHECKING:
    from replicator.pipeline.data_plane import DataPlane

Segment = dict[str, Any]
"""Blocks that are carried one after another; docs/live-copy.md describes the form."""
Done = dict[str, Any]
"""Report on a finished segment."""


@dataclass(frozen=True, slots=True)
class PlanId:
    """Id of a plan: ``session`` is a life of the worker's link, ``plan`` a number in it."""

    session: str
    plan: int


@dataclass(frozen=True, slots=True)
class Plan:
    """First segment of each lane, None for a lane without one. ``state`` and ``detail`` are the link's.

    A plan that ``relieves`` another has no first segments: its lanes continue unchanged until its tasks ask.
    """

    id: PlanId
    lanes: tuple[Segment | None, ...]
    state: str
    detail: str
    relieves: bool = False

    @property
    def empty(self) -> bool:
        return not any(self.lanes) and not self.relieves


@dataclass(frozen=True, slots=True)
class NextSegment:
    """Next segment of a lane, None if there is none yet; and whether the lane has another task now."""

    segment: Segment | None
    relieved: bool = False


class LinkPlans:
    """Plans of one link, over a connection to its source's worker.

    Raises :class:`~replicator.pipeline.errors.PlanGone` for a plan that is not open any more, and the errors of
    :class:`DataPlane`.
    """

    def __init__(self, worker: DataPlane, key: str) -> None:
        self._worker = worker
        self._path = f"/pipeline/v1/links/{quote(key, safe='')}"

    def plan(
        self,
        carrier: str,
        *,
        lanes: int,
        bytes_max: int,
        wait_ms: int,
        kind: str = "live",
        topics: Sequence[str] = (),
        after: PlanId | None = None,
    ) -> Plan:
        """Return a new plan, after waiting until there is something to carry. It ends this carrier's plan before it.

        ``topics`` are patterns of the topics to plan, empty for all. Tasks of the new plan relieve those of plan
        ``after`` that still run. Raises :class:`~replicator.pipeline.errors.LinkTaken` in a backfill if another one has
        the link.
        """
        body: dict[str, Any] = {
            "carrier": carrier,
            "kind": kind,
            "lanes": lanes,
            "bytes_max": bytes_max,
            "wait_ms": wait_ms,
        }
        if topics:
            body["topics"] = list(topics)
        if after is not None:
            body["after"] = {"session": after.session, "plan": after.plan}
        return self._plan(self._worker.call("POST", f"{self._path}/plan", body))

    def again(self, plan: PlanId) -> Plan:
        """Return an earlier plan, unchanged."""
        return self._plan(
            self._worker.call("GET", f"{self._path}/plan", session=plan.session, plan=str(plan.plan)),
        )

    def following(
        self,
        plan: PlanId,
        lane: int,
        done: list[Done],
        *,
        holding: Sequence[int] = (),
        bytes_max: int,
        wait_ms: int = 0,
    ) -> NextSegment:
        """Report finished segments, and return the lane's next one; None if there was none for ``wait_ms``.

        ``holding`` are the segments that the lane is carrying: it is given any other again that it was given before.
        With ``bytes_max`` 0 the call only reports.
        """
        answer = self._post(
            "next", plan, lane=lane, done=done, holding=list(holding), bytes_max=bytes_max, wait_ms=wait_ms
        )
        return NextSegment(answer.get("segment"), answer.get("relieved") is True)

    def leave(self, plan: PlanId, lane: int, done: list[Done]) -> None:
        """Report finished segments; the lane's task does not ask again."""
        self._post("next", plan, lane=lane, done=done, bytes_max=0, leaves=True)

    def done(self, plan: PlanId, done: list[Done]) -> None:
        """End the plan's batch. ``done`` are the segments that were not reported yet."""
        self._post("done", plan, done=done)

    def failed(self, plan: PlanId, error: str) -> None:
        """End the plan's batch, because not all of it could be carried."""
        self._post("failed", plan, error=error)

    def release(self, carrier: str) -> None:
        """Release the link: this carrier does not continue."""
        self._worker.call("POST", f"{self._path}/release", {"carrier": carrier})

    def _post(self, what: str, plan: PlanId, **body: Any) -> dict[str, Any]:
        return self._worker.call("POST", f"{self._path}/{what}", {"session": plan.session, "plan": plan.plan, **body})

    def _plan(self, answer: dict[str, Any]) -> Plan:
        try:
            return Plan(
                PlanId(str(answer["session"]), int(answer["plan"])),
                tuple(answer["lanes"]),
                str(answer["state"]),
                str(answer["detail"]),
                answer.get("relieves") is not None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnexpectedAnswer(
                f"worker at {self._worker.url}: its plan of what to copy cannot be read: {error}; run the "
                "worker's version in Spark too"
            ) from error
