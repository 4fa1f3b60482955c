"""Running a planned switch over HTTP: does what :class:`~replicator.failover.planned.PlannedSwitch` says, and reports
to it what came of it.

It runs where the operator is. If it dies in the middle, the source is free again after its lease.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from replicator.failover import comparing
from replicator.failover.epochs import precedence, served_homes
from replicator.failover.errors import ClusterUnreachable, FailoverError, SwitchInDoubt, SwitchRefused
from replicator.failover.evidence import Evidence
from replicator.failover.obstacles import Obstacle, Way
from replicator.failover.peers import PATH, Peers, record_of
from replicator.failover.planned import (
    Action,
    AnnounceEpoch,
    AskTarget,
    CheckLinks,
    Compare,
    FenceSource,
    PlannedSwitch,
    Refuse,
    Release,
    Step,
    WriteEpoch,
)
from replicator.failover.report import SwitchReport
from replicator.failover.takeover import Takeover
from replicator.running.short_tasks import awaited
from snapshots.markers import FailoverEpoch
from snapshots.position import Position

LEASE_MS: Final = 15_000
RENEW_SECONDS: Final = 3.0
ASK_AGAIN_SECONDS: Final = 0.1
LOOK_AGAIN_SECONDS: Final = 1.0
"""Interval at which the links are looked at during a switch."""
DOUBT_TRIES: Final = 3

Progress = Callable[[str], None]


class PlannedRun:
    """One planned switch: does what :class:`PlannedSwitch` says."""

    def __init__(
        self,
        peers: Peers,
        evidence: Evidence,
        takeover: Takeover,
        report: SwitchReport,
        *,
        timeout_seconds: float,
        progress: Progress,
    ) -> None:
        self._peers = peers
        self._evidence = evidence
        self._takeover = takeover
        self._report = report
        self._progress = progress
        self._operation = uuid.uuid4().hex
        self._core = PlannedSwitch(
            report.source,
            report.target,
            deadline_ms=self._now_ms() + int(timeout_seconds * 1000),
            flush=not takeover.keep_consumers,
        )
        self._began = time.monotonic()
        self._looked = self._began
        """When the links were looked at last."""
        self._way: Way | None = None
        """How the links stood then. The check of the links sets it, before anything else asks for it."""
        self._writing: asyncio.Task[list[Action]] | None = None
        """The request to the target to write. It goes on if the operator gives up meanwhile."""

    async def run(self) -> None:
        """Make the switch, and hold the source meanwhile. Whatever ends it before the target is asked to write is taken
        back.
        """
        renewing: asyncio.Task[None] | None = None
        try:
            renewing = awaited(self._renew_often())
            await self._run()
        except BaseException:  # the operator gave up: what was begun is taken back, whatever else happens
            await asyncio.shield(awaited(self._give_up()))
            raise
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)

    async def _run(self) -> None:
        actions = self._core.start()
        while actions:
            action, *actions = actions
            step = self._core.step
            try:
                actions += await self._do(action)
            except FailoverError as error:
                actions = self._core.on_failed(str(error), refused=isinstance(error, SwitchRefused))
                if not isinstance(error, SwitchRefused):
                    await self._finish(actions)
                    raise
            if self._core.step is not step:
                now = time.monotonic()
                self._report.steps.append((step.value, now - self._began))
                self._began = now

    async def _renew_often(self) -> None:
        """Keep the source held while the switch goes on; a lease that could not be renewed is noticed before WRITE."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if self._core.step in (Step.DRAIN, Step.FLUSH):
                try:
                    await self._renew()
                except FailoverError:
                    continue

    async def _give_up(self) -> None:
        """Take back what was begun. If the target was asked to write, find out first whether it did."""
        if self._writing is None:
            await self._finish(self._core.on_failed("it was given up"))
            return
        if not self._writing.done():
            self._progress(f"it was given up; waiting for the answer of {self._report.target}, which may take over")
        (outcome,) = await asyncio.gather(self._writing, return_exceptions=True)
        if isinstance(outcome, BaseException):
            if self._core.step is Step.WRITE:
                self._progress(str(outcome))
            await self._finish(self._core.on_failed(str(outcome), refused=isinstance(outcome, SwitchRefused)))
        elif self._report.outcome != "done":
            await self._tell()
            self._progress(f"{self._report.target} has taken over: the switch is done")

    async def _finish(self, actions: Sequence[Action]) -> None:
        for action in actions:
            await self._do(action)

    async def _do(self, action: Action) -> list[Action]:
        match action:
            case CheckLinks():
                return await self._check_links()
            case FenceSource():
                return await self._fence()
            case AskTarget(topics, earlier):
                return await self._ask_target(topics, earlier)
            case Compare(topics):
                return await self._compare(topics)
            case WriteEpoch():
                return await self._write()
            case AnnounceEpoch():
                return await self._announce()
            case Release(reason):
                return await self._release(reason)
            case Refuse(reason):
                return await self._compare_refused(reason)

    async def _check_links(self) -> list[Action]:
        return self._core.on_checked(await self._evidence.held_up(await self._look(frozenset())))

    async def _look(self, silent: frozenset[str], missing: Collection[str] | None = None) -> Way:
        """Ask for the state of the links. ``missing`` are the topics of which the target may lack something; None means
        all topics. The clusters in ``silent`` are not asked."""
        report = self._report
        self._way = way = await self._evidence.way(report.source, report.target, missing, silent)
        self._looked = time.monotonic()
        return way

    async def _fence(self) -> list[Action]:
        report = self._report
        self._progress(f"fencing {report.source}")
        body = {
            "operation": self._operation,
            "target": report.target,
            "expected": list(precedence(self._takeover.base)),
            "lease_ms": LEASE_MS,
            "keep_consumers": self._takeover.keep_consumers,
        }
        answer = await self._peers.call(report.source, "POST", f"{PATH}/hold", body, seconds_max=LEASE_MS / 1000)
        topics = comparing.by_name(answer)
        carried = self._evidence.carried(report.source, report.target)
        subscribed = [name for name, topic in topics.items() if carried(name, topic) and comparing.replicated(topic)]
        return self._core.on_fenced(comparing.goals(self._evidence.origin(report.source), topics, carried), subscribed)

    async def _ask_target(self, topics: tuple[str, ...], earlier: Mapping[str, tuple[Position, ...]]) -> list[Action]:
        copies, lacks = await self._evidence.copies(self._report.source, self._report.target, topics, earlier)
        actions = self._core.on_copies(copies, self._now_ms(), lacks, await self._obstacles(topics))
        await self._pause(actions, "messages")
        return actions

    async def _compare(self, topics: tuple[str, ...]) -> list[Action]:
        different: dict[str, str] = {}
        for each in await self._evidence.compare_drained(self._report.source, self._report.target, topics):
            unequal = [sub for sub in each.subscriptions if not sub.equal]
            if unequal:
                different[each.topic] = (
                    f"subscription {unequal[0].name}: {unequal[0].difference or 'messages are missing'}"
                )
        actions = self._core.on_compared(different, self._now_ms(), await self._obstacles(different))
        await self._pause(actions, "acknowledgements")
        return actions

    async def _obstacles(self, topics: Collection[str]) -> Mapping[str, Obstacle]:
        """Return the obstacles of ``topics`` that links hold up. Ask about links every :data:`LOOK_AGAIN_SECONDS`."""
        way = self._way
        assert way is not None, "the links are checked first"
        if topics and time.monotonic() - self._looked >= LOOK_AGAIN_SECONDS:
            way = await self._look(way.silent - {self._report.source}, topics)
        return await asyncio.to_thread(way.obstacles, topics) if way.stopped else {}

    async def _pause(self, actions: Sequence[Action], what: str) -> None:
        if self._core.step in (Step.CHECK, Step.DRAIN, Step.FLUSH) and actions:
            waiting = len(self._core.missing)
            topics = "1 topic" if waiting == 1 else f"{waiting:,} topics"
            self._progress(f"{self._report.target} waits for {what} of {topics}")
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _write(self) -> list[Action]:
        report = self._report
        await self._renew()
        self._progress(f"writing epoch {report.epoch_before + 1} at {report.target}")
        self._core.on_writing()
        self._writing = awaited(self._propose())
        return await asyncio.shield(self._writing)

    async def _propose(self) -> list[Action]:
        """Let the target take over. Raise :class:`SwitchRefused` or :class:`SwitchInDoubt`."""
        report = self._report
        try:
            answer = await self._takeover.propose()
            record = record_of(report.target, answer)
        except ClusterUnreachable as error:
            answer, record = await self._find_out(str(error))
        report.epoch = record.epoch
        self._record = record
        self._marks = answer.get("marks")
        return self._core.on_written()

    async def _find_out(self, reason: str) -> tuple[Any, FailoverEpoch]:
        """Find out whether the target wrote the epoch, after it gave no answer when it was to write. Raise
        :class:`SwitchInDoubt` if that stays unclear: an error tells nothing, and what is not written may come.
        """
        report = self._report
        homes = set(report.homes)
        for _ in range(DOUBT_TRIES):
            with suppress(FailoverError):
                state = await self._peers.state(report.target)
                record = record_of(report.target, state)
                served = served_homes(record, report.target)
                if record.epoch == report.epoch_before + 1 and record.target == report.target and homes <= {*served}:
                    return state, record
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        raise SwitchInDoubt(
            f"{reason}. {report.target} may have taken over or not. {report.source} takes no clients until it has "
            f"asked {report.target}: see `replicator failover-status` when {report.target} answers again"
        )

    async def _announce(self) -> list[Action]:
        report = self._report
        missing = await self._tell()
        await self._evidence.compare_made(report, self._marks, missing=missing)
        return self._core.on_announced()

    async def _tell(self) -> Mapping[str, Any] | None:
        """Tell the other clusters of the switch that is made. Return the messages that the target lacks; None if they
        are unknown.
        """
        report = self._report
        await self._takeover.announce_all(self._record)
        missing: Mapping[str, Any] | None = None
        if self._marks is not None:
            with suppress(FailoverError):  # it is asked for again
                missing = await self._evidence.missing(report.source, self._marks)
        await self._try_release()  # a source that still serves others takes their clients again
        report.outcome = "done"
        return missing

    async def _release(self, reason: str) -> list[Action]:
        report = self._report
        if not await self._try_release():
            report.notes.append(
                f"{report.source} was not reached to take clients again: it does so by itself within "
                f"{LEASE_MS // 1000} s"
            )
        return await self._compare_refused(reason)

    async def _compare_refused(self, reason: str) -> list[Action]:
        report = self._report
        report.reason = reason
        try:
            report.topics = await self._evidence.compare_all(report)
        except FailoverError as error:
            report.notes.append(str(error))
        return []

    async def _renew(self) -> None:
        body = {"operation": self._operation, "lease_ms": LEASE_MS}
        await self._peers.call(self._report.source, "POST", f"{PATH}/renew", body, seconds_max=LEASE_MS / 1000)

    async def _try_release(self) -> bool:
        try:
            body = {"operation": self._operation}
            await self._peers.call(self._report.source, "POST", f"{PATH}/release", body, seconds_max=LEASE_MS / 1000)
        except FailoverError:
            return False
        return True

    @staticmethod
    def _now_ms() -> int:
        return time.monotonic_ns() // 1_000_000
