"""Carrying by others: the link decides what is copied, and hands it out as plans; Spark's tasks fetch and append.

Invariants (DESIGN §3): 2, what was handed out counts as copied only when it is reported, and is planned again when
nobody will report it any more: that repeats at worst what the destination then drops; 11, answers, plans and waiting
requests are bounded.

1. What goes into a segment is chosen as for a frame: by the copy state machine, with the same gaps, refusals and
   partitions told before. Of the blocks only the headers are read here.
2. A request for a segment waits until there is something, for as long as it says, and while the rate is paid off.
3. The link keeps a connection of its own to the destination, so that it notices at once when that goes away. Then all
   plans are gone; the first after it starts where the destination says.
4. What a carrier does after its plan is gone does no harm: the destination takes a block only after its predecessor,
   and only once.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import structlog

from replicator.engine.errors import EngineError
from replicator.engine.log.arrow import encode_append
from replicator.engine.log.store import StoredHeader
from replicator.links.carriage import SIGN_OF_LIFE_SECONDS, Carriage
from replicator.links.copier import FRAME_BYTES_TARGET, LANES_MAX, Read, Send
from replicator.links.errors import BadReport, LinkError, PlanGone, TooManyPolls
from replicator.links.plans import KINDS, LIVE, Carriers, Done, Plan, PlannedBlock, PlannedTopic, Segment
from replicator.links.transport import HttpTransport
from replicator.topology_links import Link, parse_patterns
from snapshots.position import BEFORE_ALL, Position

SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A carrier may ask for less."""
SEGMENT_BLOCKS_MAX: Final = 10_000
SEGMENT_TOPICS_MAX: Final = 1_000
"""With the longest names and the one above: an answer of a megabyte."""
SEGMENTS_OPEN_MAX: Final = 4
"""Of one lane: one that is carried and some that wait, so that a lane never stands still."""
WAIT_SECONDS_MAX: Final = 30.0
POLLS_MAX: Final = 4 * LANES_MAX
"""Requests of one link that wait at once."""
POLL_AGAIN_SECONDS: Final = 5.0
"""Who waits is alive: so often that is noted, well within the silence that costs a carrier the link."""
WATCH_SECONDS: Final = 1.0
"""How often it is looked whether the carrier is still heard of."""
WAITING: Final = "waiting"
BACKFILLING: Final = "backfilling"
NOBODY_ASKED: Final = "for Spark: no driver of the pipeline has asked for its segments yet"

log = structlog.get_logger(__name__)


class Planner:
    """Plans what ``carriage`` has to carry, for the link ``key``. ``changed_hands`` is called when a backfill takes the
    link or gives it back."""

    def __init__(self, key: str, carriage: Carriage, changed_hands: Callable[[], None]) -> None:
        self.carriers = Carriers()
        self._key = key
        self._carriage = carriage
        self._copier = carriage.copier
        self._changed_hands = changed_hands
        self._session = ""
        """Of this connection to the destination; empty while there is none."""
        self._transport: HttpTransport | None = None
        self._failure: asyncio.Future[None] | None = None
        self._plan: Plan | None = None
        self._plans = 0
        self._handing_out = asyncio.Lock()
        self._changed = asyncio.Event()
        self._polls = 0
        self._stopped = False
        self._waits_for = NOBODY_ASKED
        self._last_error = ""

    # What the link's shell asks.

    def wake(self) -> None:
        """There is something to copy, or to tell."""
        self._changed.set()
        self._changed = asyncio.Event()

    def stop(self) -> None:
        """Let nobody wait any more: the worker stops, or the link is replaced."""
        self._stopped = True
        self.wake()

    def loops(self, transport: HttpTransport) -> Iterable[Coroutine[Any, Any, None]]:
        self._stopped = False
        return self._serve(transport), self._keep_open(transport), self._watch()

    def waits_for(self, what: str) -> None:
        """What the state says while no carrier asks, such as why the driver does not run."""
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
        """Frames of nothing, so that both ends notice when the other goes away."""
        ended = asyncio.ensure_future(transport.ended())
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

    # What carriers ask.

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
    ) -> dict[str, Any]:
        """A new plan, with the first segments of as many ``lanes`` as have any; waits ``wait_ms`` for one that has.

        ``topics`` are patterns, empty for all of the link. Raises :class:`LinkTaken`, :class:`BadReport` and
        :class:`TooManyPolls`; :class:`PlanGone` where the carrier has asked for another meanwhile.
        """
        if kind not in KINDS or not carrier or not 0 < lanes <= LANES_MAX or bytes_max <= 0:
            raise BadReport(
                f"a plan is for a carrier, of kind {' or '.join(KINDS)}, 1 to {LANES_MAX} lanes and some bytes"
            )
        only = _carries(topics) if topics else None
        deadline = _deadline(wait_ms)
        mine, session = None, ""
        with self._poll():
            while True:
                was_backfilling = self.carriers.backfilling
                if self.carriers.asks(self._key, carrier, kind, time.monotonic()):
                    if self.carriers.backfilling != was_backfilling:
                        self._changed_hands()
                    if self._session and session != self._session:
                        mine, session = self._open_plan(lanes, bytes_max, only), self._session
                    elif mine is not None and self._plan is not mine and self._session:
                        raise PlanGone(f"link {self._key}: {carrier} has asked for another plan meanwhile")
                    if mine is not None and await self._begin(mine):
                        break
                else:
                    mine, session = None, ""
                if not await self._wait(deadline):
                    break
            return self._answer(mine, session, lanes)

    def plan_again(self, session: str, number: int) -> dict[str, Any]:
        """A plan that is still open, as it was answered first. Raises :class:`PlanGone`."""
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
    ) -> dict[str, Any]:
        """The next segment of a lane, after its reports; waits ``wait_ms`` for one. ``holding`` are those that the lane
        was given and has not reported. With ``bytes_max`` 0 it only reports.

        Raises :class:`PlanGone`, :class:`BadReport`, :class:`TooManyPolls`.
        """
        reports = list(map(Done.parse, done))
        plan = self._find(session, number)
        if not 0 <= lane < plan.lanes:
            raise BadReport(f"lane {lane}: the plan has {plan.lanes}")
        self._heard()
        self._note_reports(plan, reports)
        if bytes_max <= 0:
            return {"segment": None}
        plan.bytes_max = bytes_max
        deadline = _deadline(wait_ms)
        with self._poll():
            while True:
                self._still(plan)
                self._heard()
                segment = plan.lost(lane, holding) or await self._hand_out(plan, lane)
                if segment is not None or not await self._wait(deadline):
                    break
        self._still(plan)
        return {"segment": None if segment is None else segment.as_json()}

    def done(self, session: str, number: int, done: Sequence[Mapping[str, Any]]) -> None:
        """The plan is over: these reports, and no more. Raises :class:`PlanGone`, :class:`BadReport`."""
        reports = list(map(Done.parse, done))
        plan = self._find(session, number)
        self._heard()
        self._note_reports(plan, reports)
        self._last_error = ""
        self._give_up_plan()

    def failed(self, session: str, number: int, error: str) -> None:
        """The plan was not carried to its end. Raises :class:`PlanGone`."""
        self._find(session, number)
        self._heard()
        self._last_error = f"the last batch failed: {error}"
        log.warning("link: a batch failed", link=self._key, carrier=self.carriers.holder, reason=error)
        self._give_up_plan()

    def release(self, carrier: str) -> None:
        """The carrier does not want the link any more; harmless if it has not got it."""
        was_backfilling = self.carriers.backfilling
        if self.carriers.release(carrier):
            log.info("link: released by its carrier", link=self._key, carrier=carrier)
            self._lost_carrier(was_backfilling)

    def heard(self, carrier: str) -> bool:
        """The carrier is alive; returns whether it has the link."""
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

    def _give_up_plan(self) -> None:
        """What is not reported of it may have arrived, or not: the destination is asked."""
        plan, self._plan = self._plan, None
        if plan is not None:
            unknown: set[str] = set()
            for segment in plan.unreported():
                unknown.update(self._copier.on_given_up(segment.number))
            if unknown:
                log.info("link: a plan was given up", link=self._key, plan=plan.number, topics=len(unknown))
                self._carriage.topics.ask(sorted(unknown))
        self._note_state()

    def _find(self, session: str, number: int) -> Plan:
        plan = self._plan
        if plan is None or not session or session != self._session or number != plan.number:
            raise PlanGone(f"link {self._key} has no open plan {number} of that session: ask for a new one")
        return plan

    def _still(self, plan: Plan) -> None:
        if self._plan is not plan:
            raise PlanGone(f"link {self._key}: plan {plan.number} was given up; ask for a new one")

    def _answer(self, plan: Plan | None, session: str, lanes: int) -> dict[str, Any]:
        segments = [None] * lanes if plan is None else plan.first
        return {
            "session": "" if plan is None else session,
            "plan": 0 if plan is None else plan.number,
            "lanes": [None if segment is None else segment.as_json() for segment in segments],
            "state": self._carriage.state,
            "detail": self._carriage.detail,
        }

    def _note_reports(self, plan: Plan, reports: Iterable[Done]) -> None:
        try:
            for done in reports:
                segment = plan.reported(done.segment)
                if segment is not None:
                    self._note_report(segment, done)
        except LinkError as error:
            self._fail(error)
        self._note_state()
        self.wake()

    def _note_report(self, segment: Segment, done: Done) -> None:
        carriage, copier, number = self._carriage, self._copier, segment.number
        carriage.figures.add(done.blocks, done.entries, done.messages, done.size_bytes, done.wire_bytes)
        if carriage.bucket is not None:
            carriage.bucket.take(done.wire_bytes - segment.size_bytes, time.monotonic())
        refused = {
            name: carried.refused
            for name, carried in done.topics.items()
            if carried.refused is not None and name in segment.topics
        }
        short = [
            name
            for name, planned in segment.topics.items()
            if name not in refused
            and (name not in done.topics or done.topics[name].reached < planned.upto)
            and not copier.outdated(name, number)
        ]
        carriage.failures = carriage.failures if refused else 0
        carriage.refused(refused, number)
        carriage.topics.ask(short)
        carriage.topics.reached(copier.on_acknowledged(number))

    def _fail(self, error: LinkError) -> None:
        """Connect again, as after any other failure."""
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _note_state(self) -> None:
        if not self._session:
            return
        if self.carriers.backfilling:
            self._carriage.set_state(BACKFILLING, f"by {self.carriers.holder}")
        elif self.carriers.holder is None:
            self._carriage.set_state(WAITING, self._waits_for)
        else:
            self._carriage.set_state("copying" if self._copier.in_flight else "idle", self._last_error)

    # Segments.

    async def _begin(self, plan: Plan) -> bool:
        """Give each lane its first segment; returns whether any has one."""
        for lane in range(plan.lanes):
            if plan.first[lane] is None:
                plan.first[lane] = await self._hand_out(plan, lane)
        return any(plan.first)

    async def _hand_out(self, plan: Plan, lane: int) -> Segment | None:
        """What the lane is to carry next; None if there is nothing, or not yet."""
        async with self._handing_out:
            transport = self._transport
            while transport is not None and self._plan is plan and self._may_hand_out(plan, lane):
                try:
                    await self._carriage.partitions.tell(transport)  # before there are blocks of them in a segment
                    segment, first, searching = self._choose(plan, lane) if self._plan is plan else (None, [], False)
                    if segment is not None:
                        await self._carriage.tell_of_first_blocks(first, transport)
                        return segment if self._plan is plan else None
                except LinkError as error:
                    self._fail(error)
                    return None
                if not searching:
                    return None
                await asyncio.sleep(0)
        return None

    def _may_hand_out(self, plan: Plan, lane: int) -> bool:
        return plan.open_in(lane) < SEGMENTS_OPEN_MAX and not self._rate_seconds()

    def _rate_seconds(self) -> float:
        bucket = self._carriage.bucket
        return 0.0 if bucket is None else bucket.wait_seconds(time.monotonic())

    def _choose(self, plan: Plan, lane: int) -> tuple[Segment | None, list[str], bool]:
        """A segment; the topics of it that may begin anew at the destination; whether to ask again."""
        copier = self._copier
        bytes_max = min(plan.bytes_max, SEGMENT_BYTES_MAX if self._carriage.bucket is None else FRAME_BYTES_TARGET)
        planned: dict[str, PlannedTopic] = {}
        first: list[str] = []
        size_bytes, blocks, searching = 0, 0, False
        while blocks < SEGMENT_BLOCKS_MAX and len(planned) < SEGMENT_TOPICS_MAX:
            read = copier.next_read(size_bytes, lane=lane, frame_bytes_max=bytes_max)
            if read is None:
                break
            chosen, reached = self._read(read, SEGMENT_BLOCKS_MAX - blocks)
            if chosen:
                piece = planned.setdefault(read.topic, PlannedTopic(read.topic, read.after, reached))
                piece.blocks += map(_row, chosen)
                size_bytes += sum(each.stored.size_bytes for each in chosen)
                blocks += len(chosen)
                if any(map(_is_first, chosen)):
                    first.append(read.topic)
            if read.topic in planned:
                planned[read.topic].upto = reached
            if not chosen:  # others have their turn before it looks further
                searching = True
                break
        if not planned:
            self._carriage.topics.reached(copier.on_idle(lane=lane))
            return None, [], searching
        segment = Segment(copier.on_sent(size_bytes, lane=lane), lane, size_bytes, planned)
        plan.handed_out(segment)
        if self._carriage.bucket is not None:
            self._carriage.bucket.take(size_bytes, time.monotonic())
        self._note_state()
        return segment, first, False

    def _read(self, read: Read, blocks_max: int) -> tuple[list[_Chosen], Position]:
        """Look at a piece of a topic's log: the blocks that are to be carried, and how far that is."""
        topic = self._carriage.engine.find(read.topic)
        if topic is None:  # it is being deleted
            return [], read.after
        try:
            found, reached = topic.read_headers(
                read.after, bytes_max=read.bytes_max, blocks_max=blocks_max, origins=read.origins
            )
        except EngineError as error:
            self._carriage.topics.halt(read.topic, str(error))
            return [], read.after
        sends, gap = self._carriage.choose(topic, [stored.header for stored in found])
        chosen = [_Chosen(found[index], send) for index, send in sends]
        if gap:
            return chosen, chosen[-1].stored.last if chosen else read.after
        self._copier.on_read(read.topic, reached)
        return chosen, reached

    # Waiting.

    @contextmanager
    def _poll(self) -> Iterator[None]:
        if self._polls >= POLLS_MAX:
            raise TooManyPolls(f"link {self._key}: {self._polls} requests wait for its segments; try again later")
        self._polls += 1
        try:
            yield
        finally:
            self._polls -= 1

    async def _wait(self, deadline: float) -> bool:
        """Wait for a change, for some seconds, or until the rate is paid off; returns whether to look again."""
        left = deadline - time.monotonic()
        if left <= 0 or self._stopped:
            return False
        seconds = min(left, POLL_AGAIN_SECONDS, self._rate_seconds() or left)
        changed = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()
        return not self._stopped


class _Chosen(NamedTuple):
    stored: StoredHeader
    send: Send


def _row(chosen: _Chosen) -> PlannedBlock:
    (ledger, first), header, size_bytes = chosen.stored.position, chosen.stored.header, chosen.stored.size_bytes
    previous, left_out = chosen.send.previous, chosen.send.left_out
    return ledger, first, header.entries, size_bytes, previous.ledger, previous.entry, int(left_out)


def _is_first(chosen: _Chosen) -> bool:
    return chosen.send.previous == BEFORE_ALL


def _deadline(wait_ms: int) -> float:
    return time.monotonic() + min(max(wait_ms / 1000, 0.0), WAIT_SECONDS_MAX)


def _carries(patterns: Sequence[str]) -> Callable[[str], bool]:
    try:
        return Link("", "", topics=parse_patterns(list(patterns))).carries
    except ValueError as error:
        raise BadReport(f"topics: {error}") from None
