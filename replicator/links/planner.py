"""Transfer by carriers: the link decides what is copied, and hands it out as plans; Spark's tasks fetch and append.

Invariants (DESIGN §3): 2, a block that was handed out counts as copied only when its carrier reports it. If nobody will
report it any more, it is planned again; at worst the destination drops the repetition. 11, answers, plans and waiting
requests are bounded.

1. What goes into a segment is chosen as for a frame (:mod:`replicator.links.segment_chooser`), with the same gaps,
   refusals and partitions announced before.
2. A request for a segment waits until there is something to carry and the rate limit allows it, for the time that it
   states at most.
3. The link keeps a connection of its own to the destination, so that it notices at once when that goes away. Then all
   plans are gone; the first after it starts where the destination says.
4. A carrier whose tasks come in shifts asks for plans that relieve one another (:mod:`replicator.links.plans`). If a
   request has the number of a plan that is being relieved, it comes from one of its old tasks.
5. What a carrier does after its plan is gone does no harm: the destination takes a block only after its predecessor,
   and only once.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

import structlog

from replicator.engine.log.arrow import encode_append
from replicator.links.copier import LANES_MAX
from replicator.links.errors import BadReport, LinkError, PlanGone
from replicator.links.plans import KINDS, LIVE, Carriers, Done, Plan, Segment, Shift
from replicator.links.reports import take_report
from replicator.links.segment_chooser import SegmentChooser
from replicator.links.transfer import SIGN_OF_LIFE_SECONDS, Transfer
from replicator.links.transport import HttpTransport
from replicator.links.waiting_requests import WaitingRequests, deadline_of
from replicator.running.short_tasks import awaited
from replicator.topology.links import Link
from replicator.topology.patterns import parse_patterns

SEGMENTS_OPEN_MAX: Final = 4
"""Most open segments of one lane: one that is carried, and some that wait, so that a lane never stands still."""
WATCH_SECONDS: Final = 1.0
"""Time between two checks whether the carrier is still heard of."""
WAITING: Final = "waiting"
BACKFILLING: Final = "backfilling"
NOBODY_ASKED: Final = "for Spark: no driver of the pipeline has asked for its segments yet"

log = structlog.get_logger(__name__)


def carrier_name(pid: int) -> str:
    """Return the prefix of the carrier name of a live-copy driver on this machine."""
    return f"{socket.gethostname()[:60]} {pid} "


class Planner:
    """Plans what ``transfer`` has to carry, for the link ``key``. ``changed_hands`` is called when a backfill takes the
    link or gives it back."""

    def __init__(self, key: str, transfer: Transfer, changed_hands: Callable[[], None]) -> None:
        self.carriers = Carriers()
        self._key = key
        self._transfer = transfer
        self._copier = transfer.copier
        self._chooser = SegmentChooser(transfer)
        self._changed_hands = changed_hands
        self._session = ""
        """Id of the present connection to the destination; empty while there is none."""
        self._transport: HttpTransport | None = None
        self._failure: asyncio.Future[None] | None = None
        self._plan: Plan | None = None
        self._plans = 0
        self._handing_out = asyncio.Lock()
        self._requests = WaitingRequests(key, self._rate_seconds)
        self._waits_for = NOBODY_ASKED
        self._last_error = ""

    # For the link's shell.

    def wake(self) -> None:
        """Wake the waiting requests: there is something to copy or to announce."""
        self._requests.wake()

    def stop(self) -> None:
        """End all waiting requests: the worker stops, or the link is replaced."""
        self._requests.stop()

    def loops(self, transport: HttpTransport) -> Iterable[Coroutine[Any, Any, None]]:
        self._requests.start()
        return self._serve(transport), self._keep_open(transport), self._watch()

    def waits_for(self, what: str) -> None:
        """Set the text of the link's state for when no carrier asks, such as why the driver does not run."""
        self._waits_for = what
        self._note_state()

    async def _serve(self, transport: HttpTransport) -> None:
        self._session, self._transport = uuid.uuid4().hex, transport
        self._failure = asyncio.get_running_loop().create_future()
        self._note_state()
        self.wake()
        try:
            await self._failure
        finally:
            self._session, self._transport, self._plan = "", None, None
            self.wake()

    async def _keep_open(self, transport: HttpTransport) -> None:
        """Send empty frames now and then, so that each end notices when the other goes away."""
        ended = awaited(transport.ended())
        try:
            while not transport.at_end:
                await asyncio.wait([ended], timeout=SIGN_OF_LIFE_SECONDS)
                if not transport.at_end:
                    await transport.send(await transport.pack(encode_append(())))
                await transport.receive()
        finally:
            ended.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            was_backfilling = self.carriers.backfilling
            gone = self.carriers.silent(time.monotonic())
            if gone is not None:
                log.warning("link: its carrier is silent", link=self._key, carrier=gone)
                self._lost_carrier(was_backfilling)

    # For carriers.

    @property
    def backfilling(self) -> bool:
        return self.carriers.backfilling

    async def plan(
        self,
        carrier: str,
        kind: str = LIVE,
        *,
        lanes: int,
        bytes_max: int,
        wait_ms: int = 0,
        topics: Sequence[str] = (),
        after: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Return a new plan with the first segment of each lane. Wait up to ``wait_ms`` until a lane has one.

        ``topics`` are patterns; empty means all topics of the link. ``after`` is the session and number of the plan
        that this one relieves. If its tasks still go on, the new plan has no first segments, and is returned as soon as
        they have something to carry. Raises :class:`LinkTaken`, :class:`BadReport` and :class:`TooManyPolls`;
        :class:`PlanGone` if the carrier has asked for another plan meanwhile.
        """
        if kind not in KINDS or not carrier or not 0 < lanes <= LANES_MAX or bytes_max <= 0:
            raise BadReport(
                f"a request for a plan needs a carrier, kind {' or '.join(KINDS)}, lanes from 1 to {LANES_MAX}, and "
                "bytes_max above 0"
            )
        only = _carries(topics) if topics else None
        deadline = deadline_of(wait_ms)
        mine, session = None, ""
        with self._requests.admitted():
            while True:
                was_backfilling = self.carriers.backfilling
                if self.carriers.asks(self._key, carrier, kind, time.monotonic()):
                    if self.carriers.backfilling != was_backfilling:
                        self._changed_hands()
                    if mine is None and (shift := self._shift(after, lanes)) is not Shift.OVER:
                        if shift is Shift.BUSY:
                            mine, session = self._relieve(), self._session
                            break
                    elif self._session and session != self._session:
                        mine, session = self._open_plan(lanes, bytes_max, only), self._session
                    elif mine is not None and self._plan is not mine and self._session:
                        raise PlanGone(
                            f"link {self._key}: {carrier} has asked for another plan meanwhile; go on with that one"
                        )
                    if mine is not None and await self._begin(mine):
                        break
                else:
                    mine, session = None, ""
                if not await self._requests.wait(deadline):
                    break
            return self._answer(mine, session, lanes)

    def plan_again(self, session: str, number: int) -> dict[str, Any]:
        """Return a plan that is still open, as it was answered first. Raises :class:`PlanGone`."""
        plan = self._find(session, number)
        return self._answer(plan, session, plan.lanes)

    async def next(
        self,
        session: str,
        number: int,
        lane: int,
        *,
        done: Sequence[Mapping[str, Any]] = (),
        holding: Sequence[int] = (),
        bytes_max: int,
        wait_ms: int = 0,
        leaves: bool = False,
    ) -> dict[str, Any]:
        """Take the reports ``done`` of a lane, and return its next segment. Wait up to ``wait_ms`` for one.

        ``holding`` has the segments that the lane was given and has not reported. With ``bytes_max`` 0 the lane only
        reports. With ``leaves`` it will not ask again. The answer says whether the lane is ``relieved``: then the task
        of the next plan is there, and this one must stop.

        Raises :class:`PlanGone`, :class:`BadReport`, :class:`TooManyPolls`.
        """
        reports = list(map(Done.parse, done))
        plan = self._find(session, number, or_relieved=True)
        if not 0 <= lane < plan.lanes:
            raise BadReport(f"field lane: there is no lane {lane}, the plan has lanes 0 to {plan.lanes - 1}")
        self._heard()
        plan.heard(lane, number, time.monotonic())
        self._note_reports(plan, reports)
        if leaves:
            plan.leaves(lane, number)
            self.wake()
        segment: Segment | None = None
        if bytes_max > 0:
            plan.bytes_max = bytes_max
            deadline = deadline_of(wait_ms)
            with self._requests.admitted():
                while True:
                    segment = await self._next_of(session, number, lane, holding)
                    if segment is not None or self._find(session, number, or_relieved=True).is_relieved(lane, number):
                        break
                    if not await self._requests.wait(deadline):
                        break
            plan = self._find(session, number, or_relieved=True)
        return {
            "segment": None if segment is None else segment.as_json(),
            "relieved": plan.is_relieved(lane, number),
        }

    async def _next_of(self, session: str, number: int, lane: int, holding: Sequence[int]) -> Segment | None:
        plan, now_seconds = self._find(session, number, or_relieved=True), time.monotonic()
        self._heard()
        plan.heard(lane, number, now_seconds)
        if number == plan.number and plan.relieve(lane, now_seconds):
            self.wake()  # the task before
        if plan.is_relieved(lane, number) or plan.settling_seconds(lane, now_seconds):
            return None
        segment = plan.lost(lane, holding) or await self._hand_out(plan, lane)
        self._find(session, number, or_relieved=True)
        return segment

    def done(self, session: str, number: int, done: Sequence[Mapping[str, Any]]) -> None:
        """End the plan after the last reports ``done``. Raises :class:`PlanGone`, :class:`BadReport`."""
        reports = list(map(Done.parse, done))
        plan = self._find(session, number)
        self._heard()
        self._note_reports(plan, reports)
        self._last_error = ""
        self._give_up_plan()

    def failed(self, session: str, number: int, error: str) -> None:
        """Give up a plan whose carrier failed with ``error``. Raises :class:`PlanGone`."""
        self._find(session, number, or_relieved=True)
        self._heard()
        self._last_error = f"the last batch failed: {error}"
        log.warning("link: a batch failed", link=self._key, carrier=self.carriers.holder, reason=error)
        self._give_up_plan()

    def release(self, carrier: str) -> None:
        """Take the link from ``carrier``, which gives it back. Do nothing if it does not have it."""
        was_backfilling = self.carriers.backfilling
        if self.carriers.release(carrier):
            log.info("link: released by its carrier", link=self._key, carrier=carrier)
            self._lost_carrier(was_backfilling)

    def heard(self, carrier: str) -> bool:
        """Record that ``carrier`` is alive. Return whether it has the link."""
        return self.carriers.heard(carrier, time.monotonic())

    # Plans.

    def _heard(self) -> None:
        if self.carriers.holder is not None:  # whose the open plan is
            self.carriers.heard(self.carriers.holder, time.monotonic())

    def _lost_carrier(self, was_backfilling: bool) -> None:
        self._give_up_plan()
        if was_backfilling:
            self._changed_hands()
        self.wake()

    def _open_plan(self, lanes: int, bytes_max: int, only: Callable[[str], bool] | None) -> Plan:
        self._give_up_plan()
        self._copier.deal(lanes, only)
        self._plans += 1
        self._plan = Plan(self._plans, lanes, bytes_max)
        self.wake()  # who waits for the one before
        return self._plan

    def _shift(self, after: tuple[str, int] | None, lanes: int) -> Shift:
        """Return the shift of the open plan's tasks if that plan is ``after``; ``Shift.OVER`` otherwise."""
        plan = self._plan
        if plan is None or after != (self._session, plan.number) or lanes != plan.lanes:
            return Shift.OVER
        self._last_error = ""  # that plan's batch is committed
        return plan.shift(time.monotonic())

    def _relieve(self) -> Plan:
        assert self._plan is not None
        self._plans += 1
        self._plan = self._plan.relief(self._plans)
        return self._plan

    def _give_up_plan(self) -> None:
        """Give up the open plan. Ask the destination about the unreported segments, which may have arrived."""
        plan, self._plan = self._plan, None
        if plan is not None:
            unknown: set[str] = set()
            for segment in plan.unreported():
                unknown.update(self._copier.on_given_up(segment.number))
            if unknown:
                log.info("link: a plan was given up", link=self._key, plan=plan.number, topics=len(unknown))
                self._transfer.topics.ask(sorted(unknown))
        self._note_state()

    def _find(self, session: str, number: int, *, or_relieved: bool = False) -> Plan:
        """Return the open plan if it has this number. With ``or_relieved`` it may also be the plan that relieves it."""
        plan = self._plan
        if (
            plan is None
            or not session
            or session != self._session
            or (number != plan.number and not (or_relieved and number == plan.before))
        ):
            raise PlanGone(f"link {self._key} has no open plan {number} of that session: ask for a new one")
        return plan

    def _answer(self, plan: Plan | None, session: str, lanes: int) -> dict[str, Any]:
        segments = [None] * lanes if plan is None else plan.first
        return {
            "session": "" if plan is None else session,
            "plan": 0 if plan is None else plan.number,
            "lanes": [None if segment is None else segment.as_json() for segment in segments],
            "relieves": None if plan is None else plan.before,
            "state": self._transfer.state,
            "detail": self._transfer.detail,
        }

    def _note_reports(self, plan: Plan, reports: Iterable[Done]) -> None:
        try:
            for done in reports:
                segment = plan.reported(done.segment)
                if segment is not None:
                    take_report(self._transfer, segment, done)
        except LinkError as error:
            self._fail(error)
        self._note_state()
        self.wake()

    def _fail(self, error: LinkError) -> None:
        """Make the link connect again, as after any other failure."""
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _note_state(self) -> None:
        if not self._session:
            return
        if self.carriers.backfilling:
            self._transfer.set_state(BACKFILLING, f"by {self.carriers.holder}")
        elif self.carriers.holder is None:
            self._transfer.set_state(WAITING, self._waits_for)
        else:
            state = "copying" if self._copier.in_flight else "failed" if self._last_error else "idle"
            self._transfer.set_state(state, self._last_error)

    # Segments.

    async def _begin(self, plan: Plan) -> bool:
        """Give each lane its first segment. Return whether any lane has one."""
        for lane in range(plan.lanes):
            if plan.first[lane] is None:
                plan.first[lane] = await self._hand_out(plan, lane)
        return any(plan.first)

    async def _hand_out(self, plan: Plan, lane: int) -> Segment | None:
        """Return the next segment of the lane; None if there is nothing to carry yet."""
        async with self._handing_out:
            transport = self._transport
            while transport is not None and self._plan is plan and self._may_hand_out(plan, lane):
                try:
                    await self._transfer.announce(transport)  # before there are blocks of them in a segment
                    if self._plan is not plan:
                        return None
                    segment, begun, again = self._chooser.next_segment(lane, plan.bytes_max)
                    if segment is not None:
                        self._note_handed_out(plan, segment)
                        await self._transfer.announce_first_blocks(begun, transport)
                        return segment if self._plan is plan else None
                except LinkError as error:
                    self._fail(error)
                    return None
                if not again:
                    return None
                await asyncio.sleep(0)
        return None

    def _note_handed_out(self, plan: Plan, segment: Segment) -> None:
        plan.handed_out(segment)
        if self._transfer.bucket is not None:
            self._transfer.bucket.take(segment.size_bytes, time.monotonic())
        self._note_state()

    def _may_hand_out(self, plan: Plan, lane: int) -> bool:
        return plan.open_in(lane) < SEGMENTS_OPEN_MAX and not self._rate_seconds()

    def _rate_seconds(self) -> float:
        bucket = self._transfer.bucket
        return 0.0 if bucket is None else bucket.wait_seconds(time.monotonic())


def _carries(patterns: Sequence[str]) -> Callable[[str], bool]:
    try:
        return Link("", "", topics=parse_patterns(list(patterns))).carries
    except ValueError as error:
        raise BadReport(f"topics: {error}") from None
