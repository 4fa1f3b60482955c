"""Coordinating a switch over HTTP: the shell around :class:`PlannedSwitch`, and the unplanned way.

It runs where the operator is, not in a worker: it needs to reach the clusters, and they need not reach each other. If
it dies in the middle, the source is free again after its lease. Everybody else hears of the result by links and polls.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from replicator.failover import comparing
from replicator.failover.epochs import FIRST, as_json, homes_served, precedence, serving, switched
from replicator.failover.errors import (
    ClusterUnreachable,
    FailoverError,
    SwitchImpossible,
    SwitchInDoubt,
    SwitchRefused,
)
from replicator.failover.peers import PATH, WORK_SECONDS_MAX, Peers, record_of
from replicator.failover.planned import (
    Action,
    AskTarget,
    Compare,
    FenceSource,
    PlannedSwitch,
    Release,
    Step,
    TellOthers,
    WriteEpoch,
)
from replicator.failover.report import StatusReport, Stranded, SwitchReport
from replicator.topology import Topology
from snapshots.markers import FailoverEpoch

LEASE_MS: Final = 15_000
RENEW_SECONDS: Final = 3.0
ASK_AGAIN_SECONDS: Final = 0.1
WRITE_SECONDS_MAX: Final = 10.0
"""Shorter than the lease: a target that is silent for longer is asked by the source when the lease ends."""
DOUBT_TRIES: Final = 3
COMPARED_AT_ONCE: Final = 16
TIMEOUT_SECONDS_DEFAULT: Final = 60.0

Progress = Callable[[str], None]

PLANNED_KINDS: Final = ("planned", "failback")


class Switch:
    """Failovers of one deployment, as an operator asks for them. Use it once for each.

    Every method raises :class:`SwitchImpossible` (usage), :class:`ClusterUnreachable`, :class:`SwitchInDoubt`.
    A switch that a check refused is a report with the outcome ``refused``.
    """

    def __init__(self, topology: Topology, peers: Peers, *, progress: Progress = lambda _: None) -> None:
        self._topology = topology
        self._peers = peers
        self._progress = progress
        self._states: dict[str, dict[str, Any]] = {}
        self._silent: dict[str, str] = {}
        self._base: FailoverEpoch = FIRST
        self._now = time.monotonic

    async def failover(
        self,
        source: str,
        target: str,
        *,
        planned: bool = True,
        keep_consumers: bool = False,
        dry_run: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS_DEFAULT,
    ) -> SwitchReport:
        """Every home that ``source`` serves is served by ``target``."""
        await self._survey((source, target))
        homes = homes_served(self._base, source)
        if not homes:
            raise SwitchImpossible(
                f"{source} serves nobody: its clients are served by {serving(self._base, source)} since failover epoch "
                f"{self._base.epoch}"
            )
        return await self._switch(
            "planned" if planned else "unplanned",
            homes,
            source,
            target,
            planned=planned,
            keep_consumers=keep_consumers,
            dry_run=dry_run,
            timeout_seconds=timeout_seconds,
        )

    async def failback(
        self, home: str, *, dry_run: bool = False, timeout_seconds: float = TIMEOUT_SECONDS_DEFAULT
    ) -> SwitchReport:
        """``home`` serves its own clients again, planned."""
        await self._survey((home,))
        source = serving(self._base, home)
        if source == home:
            raise SwitchImpossible(f"{home} serves its own clients already: there is nothing to do")
        return await self._switch(
            "failback", (home,), source, home, planned=True, dry_run=dry_run, timeout_seconds=timeout_seconds
        )

    async def promote(self, target: str, home: str | None = None, *, dry_run: bool = False) -> SwitchReport:
        """The clients of ``home`` are served by ``target``, without asking who serves them. Without a ``home`` it is
        the only one that ``target`` does not serve, or the only one of those whose server does not answer."""
        await self._survey((target,) if home is None else (target, home))
        home = home or self._home_to_promote(target)
        source = serving(self._base, home)
        return await self._switch("promote", (home,), source, target, planned=False, dry_run=dry_run)

    async def status(self) -> StatusReport:
        """How things stand. Raises nothing: what does not answer is in the report."""
        await self._survey(())
        base = self._base
        states = {name: self._states.get(name) or {"error": self._silent[name]} for name in self._topology.names}
        report = StatusReport(base.epoch, base.writer, states)
        if base.epoch:
            report.switch = as_json(base)
            try:
                # A planned switch is only made once the target has everything; what the source publishes later, as it
                # may again after a failback, was not stranded.
                report.stranded = [] if base.kind in PLANNED_KINDS else await self._stranded(base)
            except FailoverError as error:
                report.unknown = str(error)
        return report

    # Before.

    async def _survey(self, named: Collection[str]) -> None:
        """Ask every cluster; the highest record is what the switch builds upon."""
        for name in named:
            self._topology.cluster(name)

        async def ask(cluster: str) -> None:
            try:
                self._states[cluster] = await self._peers.state(cluster)
            except FailoverError as error:
                self._silent[cluster] = str(error)

        await asyncio.gather(*map(ask, self._topology.names))
        records = [record_of(name, state) for name, state in self._states.items()]
        self._base = max(records, key=precedence, default=FIRST)

    def _home_to_promote(self, target: str) -> str:
        candidates = [name for name in self._topology.names if serving(self._base, name) != target]
        silent = [name for name in candidates if serving(self._base, name) in self._silent]
        for found in (candidates, silent):
            if len(found) == 1:
                return found[0]
        listed = ", ".join(candidates) or "none"
        raise SwitchImpossible(f"whose clients is {target} to serve? give --for NAME; there are: {listed}")

    def _need(self, cluster: str, remedy: str = "") -> None:
        if cluster in self._silent:
            raise ClusterUnreachable(f"{self._silent[cluster]}{remedy}")

    async def _switch(
        self,
        kind: str,
        homes: Sequence[str],
        source: str,
        target: str,
        *,
        planned: bool,
        keep_consumers: bool = False,
        dry_run: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS_DEFAULT,
    ) -> SwitchReport:
        if source == target:
            raise SwitchImpossible(f"{target} serves {', '.join(homes)} already: there is nothing to do")
        switched(self._base, kind=kind, homes=homes, target=target, record_id="-", at_ms=0)  # says what is impossible
        self._need(target)
        report = SwitchReport(kind, source, target, tuple(homes), self._base.epoch)
        if planned:
            remedy = f"; it is needed for this. To switch without it: replicator promote --to {target} --for {homes[0]}"
            self._need(source, remedy)
        report.source_answers = source in self._states
        if not report.source_answers:
            report.unknown_since_ms = self._states[target]["heard_ms"].get(source)
        if dry_run:
            report.topics = await self._compare_all(report)
            report.outcome = "dry run"
            return report
        for cluster in (source, target):  # so that both build upon the same record
            state = self._states.get(cluster)
            if state is not None and precedence(record_of(cluster, state)) < precedence(self._base):
                await self._peers.tell(cluster, self._base)
        if planned:
            await self._run_planned(report, keep_consumers, timeout_seconds)
        else:
            await self._run_unplanned(report, keep_consumers)
        return report

    # Unplanned.

    async def _run_unplanned(self, report: SwitchReport, keep_consumers: bool) -> None:
        began = self._now()
        try:
            switch = await self._propose(report, keep_consumers)
        except SwitchRefused as error:
            report.reason = str(error)
            return
        report.steps.append(("write", self._now() - began))
        began = self._now()
        record = record_of(report.target, switch)
        report.epoch, report.outcome = record.epoch, "done"
        await self._tell_all(report, record)
        report.steps.append(("tell", self._now() - began))
        report.topics = await self._compare_all(report, switch["marks"], record.record_id)

    async def _propose(self, report: SwitchReport, keep_consumers: bool) -> Any:
        body = {
            "kind": report.kind,
            "homes": list(report.homes),
            "expected": list(precedence(self._base)),
            "keep_consumers": keep_consumers,
        }
        return await self._peers.call(report.target, "POST", f"{PATH}/propose", body, seconds_max=WRITE_SECONDS_MAX)

    async def _tell_all(self, report: SwitchReport, record: FailoverEpoch) -> None:
        async def tell(cluster: str) -> None:
            try:
                await self._peers.tell(cluster, record)
            except FailoverError as error:
                report.told[cluster] = f"not told yet ({error}); it learns when it starts, or by links and polls"
            else:
                report.told[cluster] = f"knows epoch {record.epoch}"

        await asyncio.gather(*(tell(name) for name in self._topology.names if name != report.target))

    # Planned.

    async def _run_planned(self, report: SwitchReport, keep_consumers: bool, timeout_seconds: float) -> None:
        run = _PlannedRun(self, report, keep_consumers, timeout_seconds)
        renewing: asyncio.Task[None] | None = None
        try:
            renewing = asyncio.create_task(run.renew())
            await run.run()
        except BaseException:  # the operator gave up: what was begun is taken back, whatever else happens
            await asyncio.shield(asyncio.ensure_future(run.give_up()))
            raise
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)

    # Comparing.

    def carried(self, report: SwitchReport) -> Callable[[str, Mapping[str, Any]], bool]:
        """Whether a topic's messages get from the source to the target."""

        def carried(name: str, topic: Mapping[str, Any]) -> bool:
            allowed = topic["clusters"] is None or report.target in topic["clusters"]
            return allowed and report.target in self._topology.reached_from(report.source, name)

        return carried

    async def topics(self, cluster: str, names: Sequence[str] | None = None) -> dict[str, Mapping[str, Any]]:
        body = {} if names is None else {"names": list(names)}
        answer = await self._peers.call(cluster, "POST", f"{PATH}/topics", body, seconds_max=WORK_SECONDS_MAX)
        return comparing.by_name(answer)

    async def digests(self, cluster: str, names: Sequence[str]) -> comparing.Digests:
        """The exact states of topics; those are left out of which the worker gives none."""
        room = asyncio.Semaphore(COMPARED_AT_ONCE)
        found: dict[str, Mapping[str, Any]] = {}

        async def ask(name: str) -> None:
            async with room:
                try:
                    answer = await self._peers.call(
                        cluster, "GET", "/replication/v1/ack-vectors", query={"topic": name}
                    )
                except (SwitchRefused, ClusterUnreachable):
                    return
                found[name] = answer

        await asyncio.gather(*map(ask, names))
        return found

    async def _compare_all(
        self, report: SwitchReport, marks: Mapping[str, Any] | None = None, record_id: str | None = None
    ) -> list[Any]:
        """Every topic of the source against the target; ``marks`` are those of a switch that was made."""
        there = await self.topics(report.target)
        if marks is None:
            found = {name: comparing.mark(topic, report.source) for name, topic in there.items()}
            positions = {name: str(goal.last) for name, goal in found.items() if goal is not None}
        else:
            positions = {name: each["position"] for name, each in marks.items()}
        here: Mapping[str, Mapping[str, Any]] | None = None
        missing: Mapping[str, Any] = {}
        digests: tuple[comparing.Digests, comparing.Digests] = ({}, {})
        if report.source_answers:
            body = {"marks": positions, "record_id": record_id}
            try:
                here = await self.topics(report.source)
                missing = await self._missing(report.source, body)
                subscribed = [name for name, topic in here.items() if comparing.replicated(topic)]
                digests = (
                    await self.digests(report.source, subscribed),
                    await self.digests(report.target, subscribed),
                )
            except ClusterUnreachable as error:
                report.source_answers, here = False, None
                report.notes.append(str(error))
        carried = self.carried(report)
        names = sorted(there if here is None else here)
        return [
            comparing.compare_topic(
                name,
                report.source,
                None if here is None else here[name],
                there.get(name),
                carried=carried(name, there[name] if here is None else here[name]),
                missing=missing.get(name),
                digests=digests,
            )
            for name in names
            if here is not None or comparing.mark(there[name], report.source) is not None
        ]

    async def _missing(self, cluster: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = await self._peers.call(cluster, "POST", f"{PATH}/missing", body, seconds_max=WORK_SECONDS_MAX)
        missing: Mapping[str, Any] = answer["topics"]
        return missing

    # After.

    async def _stranded(self, record: FailoverEpoch) -> list[Stranded]:
        """What the source of the newest switch had and its target had not; raises where one of them does not answer."""
        for cluster in (record.source, record.target):
            self._need(cluster)
        answer = await self._peers.call(record.target, "GET", f"{PATH}/switches", seconds_max=WORK_SECONDS_MAX)
        for switch in answer["switches"]:
            if switch["record"]["record_id"] == record.record_id:
                break
        else:
            raise ClusterUnreachable(f"{record.target} does not have its positions of that switch any more")
        marks = {name: each["position"] for name, each in switch["marks"].items()}
        missing = await self._missing(record.source, {"marks": marks, "record_id": record.record_id})
        there = await self.topics(record.target, list(missing))
        found: list[Stranded] = []
        for name, each in missing.items():
            has = comparing.mark(there.get(name), record.source)
            flowed = has is not None and has.last >= comparing.position(each["last"])
            found.append(Stranded(name, each["messages"], each["exact"], flowed))
        return found


class _PlannedRun:
    """One planned switch: does what :class:`PlannedSwitch` says."""

    def __init__(self, switch: Switch, report: SwitchReport, keep_consumers: bool, timeout_seconds: float) -> None:
        self._switch = switch
        self._report = report
        self._keep_consumers = keep_consumers
        self._operation = uuid.uuid4().hex
        self._core = PlannedSwitch(
            report.source,
            report.target,
            deadline_ms=self._now_ms() + int(timeout_seconds * 1000),
            flush=not keep_consumers,
        )
        self._source_topics: Mapping[str, Mapping[str, Any]] = {}
        self._began = time.monotonic()

    async def run(self) -> None:
        actions = self._core.start()
        while actions:
            action, *actions = actions
            step = self._core.step
            try:
                actions += await self._do(action)
            except FailoverError as error:
                in_doubt = isinstance(error, SwitchInDoubt)
                actions = self._core.on_failed(str(error), in_doubt=in_doubt)
                if in_doubt:
                    raise
                if isinstance(error, ClusterUnreachable):
                    await self._finish(actions)
                    raise
            if self._core.step is not step:
                now = time.monotonic()
                self._report.steps.append((step.value, now - self._began))
                self._began = now

    async def renew(self) -> None:
        """Keep the source held while the switch goes on; a lease that could not be renewed is noticed before WRITE."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if self._core.step in (Step.DRAIN, Step.FLUSH):
                try:
                    await self._renew()
                except FailoverError:
                    continue

    async def give_up(self) -> None:
        await self._finish(self._core.on_failed("it was given up"))

    async def _finish(self, actions: Sequence[Action]) -> None:
        for action in actions:
            await self._do(action)

    async def _do(self, action: Action) -> list[Action]:
        match action:
            case FenceSource():
                return await self._fence()
            case AskTarget(topics):
                return await self._ask_target(topics)
            case Compare(topics):
                return await self._compare(topics)
            case WriteEpoch():
                return await self._write()
            case TellOthers():
                return await self._tell()
            case Release(reason):
                return await self._release(reason)

    async def _fence(self) -> list[Action]:
        report, switch = self._report, self._switch
        switch._progress(f"fencing {report.source}")
        body = {
            "operation": self._operation,
            "target": report.target,
            "expected": list(precedence(switch._base)),
            "lease_ms": LEASE_MS,
            "keep_consumers": self._keep_consumers,
        }
        answer = await switch._peers.call(report.source, "POST", f"{PATH}/hold", body, seconds_max=LEASE_MS / 1000)
        self._source_topics = comparing.by_name(answer)
        carried = switch.carried(report)
        subscribed = [
            name for name, topic in self._source_topics.items() if carried(name, topic) and comparing.replicated(topic)
        ]
        return self._core.on_fenced(comparing.goals(report.source, self._source_topics, carried), subscribed)

    async def _ask_target(self, topics: tuple[str, ...]) -> list[Action]:
        report = self._report
        there = await self._switch.topics(report.target, topics)
        found = {name: comparing.mark(topic, report.source) for name, topic in there.items()}
        copies = {name: goal for name, goal in found.items() if goal is not None}
        actions = self._core.on_copies(copies, self._now_ms())
        await self._pause(actions, "messages")
        return actions

    async def _compare(self, topics: tuple[str, ...]) -> list[Action]:
        different: dict[str, str] = {}
        for each in await self._compared(topics):
            unequal = [sub for sub in each.subscriptions if not sub.equal]
            if unequal:
                different[each.topic] = f"subscription {unequal[0].name}: {unequal[0].evidence}"
        actions = self._core.on_compared(different, self._now_ms())
        await self._pause(actions, "acknowledgements")
        return actions

    async def _compared(self, topics: Sequence[str]) -> list[Any]:
        report, switch = self._report, self._switch
        here, there = await asyncio.gather(switch.topics(report.source, topics), switch.topics(report.target, topics))
        digests = await asyncio.gather(switch.digests(report.source, topics), switch.digests(report.target, topics))
        return [
            comparing.compare_topic(
                name, report.source, here.get(name), there.get(name), carried=True, missing=None, digests=digests
            )
            for name in topics
        ]

    async def _pause(self, actions: Sequence[Action], what: str) -> None:
        if self._core.step in (Step.DRAIN, Step.FLUSH) and actions:
            waiting = len(self._core.missing)
            self._switch._progress(f"{self._report.target} waits for {what} of {waiting} topics")
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _write(self) -> list[Action]:
        report, switch = self._report, self._switch
        await self._renew()
        switch._progress(f"writing epoch {report.epoch_before + 1} at {report.target}")
        try:
            answer = await switch._propose(report, self._keep_consumers)
        except ClusterUnreachable as error:
            answer = await self._find_out(str(error))
        record = record_of(report.target, answer)
        report.epoch = record.epoch
        self._record = record
        self._marks = answer.get("marks")
        return self._core.on_written()

    async def _find_out(self, reason: str) -> Any:
        """The target fell silent when it was to write: did it?"""
        report, switch = self._report, self._switch
        for _ in range(DOUBT_TRIES):
            try:
                state = await switch._peers.state(report.target)
            except ClusterUnreachable:
                await asyncio.sleep(ASK_AGAIN_SECONDS)
                continue
            record = record_of(report.target, state)
            if record.target == report.target and record.epoch == report.epoch_before + 1:
                return state
            break  # it may be writing still
        raise SwitchInDoubt(
            f"{reason}: it may have taken over or not. {report.source} takes no clients until it has asked it: see "
            "`replicator failover-status` when it answers again"
        )

    async def _tell(self) -> list[Action]:
        report, switch = self._report, self._switch
        await switch._tell_all(report, self._record)
        await self._release_quietly()  # a source that still serves others takes their clients again
        report.outcome = "done"
        try:
            report.topics = await switch._compare_all(report, self._marks, None)
        except FailoverError as error:
            report.notes.append(f"the switch is done; what was to be compared after it was not: {error}")
        return self._core.on_told()

    async def _release(self, reason: str) -> list[Action]:
        report = self._report
        report.reason = reason
        if not await self._release_quietly():
            report.notes.append(
                f"{report.source} was not reached to take clients again: it does so by itself within "
                f"{LEASE_MS // 1000} s"
            )
        try:
            report.topics = await self._switch._compare_all(report)
        except FailoverError as error:
            report.notes.append(str(error))
        return []

    async def _renew(self) -> None:
        body = {"operation": self._operation, "lease_ms": LEASE_MS}
        await self._switch._peers.call(self._report.source, "POST", f"{PATH}/renew", body)

    async def _release_quietly(self) -> bool:
        try:
            await self._switch._peers.call(
                self._report.source, "POST", f"{PATH}/release", {"operation": self._operation}
            )
        except FailoverError:
            return False
        return True

    @staticmethod
    def _now_ms() -> int:
        return time.monotonic_ns() // 1_000_000
