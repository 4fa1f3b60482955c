"""Asking the worker of a link's source for plans: which blocks are to be carried next.

What is copied is the link's decision, at its source's worker; those that carry only ask. Every call may be repeated:
the destination drops what it has already, and the worker what it was told already.
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
"""Blocks that are carried one after another; its form is in docs/live-copy.md."""
Done = dict[str, Any]
"""What became of a segment."""


@dataclass(frozen=True, slots=True)
class PlanId:
    """``session`` is a life of the worker's link, ``plan`` a number in it."""

    session: str
    plan: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The first segment of each lane, None for one that has nothing yet. ``state`` and ``detail`` are the link's.

    A plan that ``relieves`` another has no first segments: its lanes go on as they are until its tasks ask.
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
class Following:
    """A lane's next segment, None if there is none yet; and whether the lane has another task now."""

    segment: Segment | None
    relieved: bool = False


class LinkPlans:
    """The plans of one link, over a connection to its source's worker.

    Raises :class:`~replicator.pipeline.errors.PlanGone` of a plan that is not open any more, and what
    :class:`DataPlane` raises.
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
        """A new plan; the one before it of this carrier is given up. Waits until there is something to carry.

        ``topics`` are patterns of those that are to be planned, empty for all. The tasks of plan ``after`` are relieved
        by those of the new one, if they still go on. Raises :class:`~replicator.pipeline.errors.LinkTaken` to a
        backfill while another has the link.
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
        """A plan that was given before, as it was then."""
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
    ) -> Following:
        """Report what is done, and get the lane's next segment; None if there was nothing for ``wait_ms``.

        ``holding`` are the segments that the lane is carrying: any other that it was given, it is given again. With
        ``bytes_max`` 0 it only reports.
        """
        answer = self._post(
            "next", plan, lane=lane, done=done, holding=list(holding), bytes_max=bytes_max, wait_ms=wait_ms
        )
        return Following(answer.get("segment"), answer.get("relieved") is True)

    def leave(self, plan: PlanId, lane: int, done: list[Done]) -> None:
        """Report what is done; the lane's task asks no more."""
        self._post("next", plan, lane=lane, done=done, bytes_max=0, leaves=True)

    def done(self, plan: PlanId, done: list[Done]) -> None:
        """The plan's batch is over; ``done`` are the segments that were not reported yet."""
        self._post("done", plan, done=done)

    def failed(self, plan: PlanId, error: str) -> None:
        """The plan's batch is over, and not all of it was carried."""
        self._post("failed", plan, error=error)

    def release(self, carrier: str) -> None:
        """This carrier does not go on."""
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
            raise UnexpectedAnswer(f"worker at {self._worker.url}: a plan that cannot be read: {error}") from error
