"""Failovers as an operator asks for them: planned, unplanned, back, and how things stand.

It runs where the operator is, not in a worker: it needs to reach the clusters, and they need not reach each other.
Everybody else hears of the result by links and polls. A planned switch is run by
:class:`~replicator.failover.planned_run.PlannedRun`; an unplanned one only writes the next epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Final

from replicator.failover.epochs import as_json, precedence, served_homes, serving, switched
from replicator.failover.errors import FailoverError, SwitchImpossible, SwitchRefused
from replicator.failover.evidence import Evidence
from replicator.failover.peers import Peers, record_of
from replicator.failover.planned_run import PlannedRun, Progress
from replicator.failover.report import StatusReport, SwitchReport
from replicator.failover.rules import differences
from replicator.failover.survey import Survey
from replicator.failover.takeover import Takeover
from replicator.topology import Topology

TIMEOUT_SECONDS_DEFAULT: Final = 60.0
PLANNED_KINDS: Final = ("planned", "failback")


class Switch:
    """Failovers of one deployment, as an operator asks for them.

    Every method raises :class:`SwitchImpossible` (usage), :class:`ClusterUnreachable`, :class:`SwitchInDoubt`.
    A switch that a check refused is a report with the outcome ``refused``.
    """

    def __init__(self, topology: Topology, peers: Peers, *, progress: Progress = lambda _: None) -> None:
        self._topology = topology
        self._peers = peers
        self._progress = progress
        self._evidence = Evidence(topology, peers)

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
        """Let ``target`` serve every home that ``source`` serves."""
        survey = await self._survey((source, target), needed=(source, target) if planned else (target,))
        homes = served_homes(survey.base, source)
        if not homes:
            raise SwitchImpossible(
                f"{source} serves nobody, so that there is nothing to switch: its clients are served by "
                f"{serving(survey.base, source)} since failover epoch {survey.base.epoch}"
            )
        return await self._switch(
            survey,
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
        """Let ``home`` serve its own clients again, by a planned switch."""
        survey = await self._survey((home,), needed=(home,))
        source = serving(survey.base, home)
        if source in survey.silent:
            survey = await self._survey((home,), needed=(home, source))
        if source == home:
            raise SwitchImpossible(f"{home} serves its own clients already: there is nothing to do")
        return await self._switch(
            survey, "failback", (home,), source, home, planned=True, dry_run=dry_run, timeout_seconds=timeout_seconds
        )

    async def promote(self, target: str, home: str | None = None, *, dry_run: bool = False) -> SwitchReport:
        """Let ``target`` serve the clients of ``home``, without asking the cluster that serves them. Without ``home``,
        take the only one that ``target`` does not serve, or the only one of those whose server does not answer.
        """
        survey = await self._survey((target,) if home is None else (target, home), needed=(target,))
        home = home or survey.home_to_take_over(target, self._topology.names)
        source = serving(survey.base, home)
        return await self._switch(survey, "promote", (home,), source, target, planned=False, dry_run=dry_run)

    async def status(self) -> StatusReport:
        """Return the state of the deployment. Raise nothing: a cluster that does not answer is in the report."""
        survey = await self._survey(())
        base = survey.base
        states = {name: survey.states.get(name) or {"error": survey.silent[name]} for name in self._topology.names}
        report = StatusReport(base.epoch, base.writer, states)
        if base.epoch:
            report.switch = as_json(base)
            try:
                # A planned switch is only made once the target has everything; what the source publishes later, as it
                # may again after a failback, was not stranded.
                if base.kind not in PLANNED_KINDS:
                    for cluster in (base.source, base.target):
                        survey.need(cluster)
                    report.stranded = await self._evidence.stranded(base)
                    if unknown := survey.states[base.source].get("clients_unknown"):
                        report.unknown = f"{base.source}: {unknown}"
                else:
                    report.stranded = []
            except FailoverError as error:
                report.unknown = str(error)
        return report

    async def _survey(self, named: Collection[str], needed: Collection[str] = ()) -> Survey:
        """Ask every cluster, and wait longer for those in ``needed``. Those ``named`` must be of the topology."""
        for name in named:
            self._topology.cluster(name)
        return await Survey.of(self._peers, self._topology.names, needed)

    async def _switch(
        self,
        survey: Survey,
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
        switched(survey.base, kind=kind, homes=homes, target=target, record_id="-", at_ms=0)  # says what is impossible
        survey.need(target)
        report = SwitchReport(kind, source, target, tuple(homes), survey.base.epoch)
        if planned:
            remedy = f"; to switch without it: replicator promote --to {target} --for {homes[0]}"
            survey.need(source, remedy)
        report.source_answers = source in survey.states
        if not report.source_answers:
            report.unknown_since_ms = survey.states[target]["heard_ms"].get(source)
        if dry_run or not planned:  # a planned switch waits until its source knows everything, or is refused
            report.source_unknown = survey.states.get(source, {}).get("clients_unknown", "")
        for cluster in (source, target):
            if unknown := survey.states.get(cluster, {}).get("clients_unknown"):
                report.notes.append(
                    f"{cluster}: {unknown}; what its clients did that its worker has not seen is not counted"
                )
        if dry_run:
            if report.source_answers:
                report.differences = await self._differences(source, target, report)
            if planned and (why := await self._evidence.why_stopped(source, target)) is not None:
                report.notes.append(f"a planned switch is refused for the moment: {why}")
            report.topics = await self._evidence.compare_all(report)
            report.outcome = "dry run"
            return report
        for cluster in (source, target):  # so that both build upon the same record
            state = survey.states.get(cluster)
            if state is not None and precedence(record_of(cluster, state)) < precedence(survey.base):
                await self._peers.announce(cluster, survey.base)
        takeover = Takeover(self._peers, self._topology.names, survey.base, report, keep_consumers=keep_consumers)
        if planned:
            run = PlannedRun(
                self._peers,
                self._evidence,
                takeover,
                report,
                timeout_seconds=timeout_seconds,
                progress=self._progress,
            )
            await run.run()
        else:
            await self._run_unplanned(report, takeover)
        return report

    async def _differences(self, source: str, target: str, report: SwitchReport) -> list[str] | None:
        """Return the differences between ``source`` and ``target`` that clients would notice; None, with a note, if
        they are unknown.
        """
        try:
            ours, theirs = await asyncio.gather(self._peers.rules(source), self._peers.rules(target))
        except FailoverError as error:
            report.notes.append(f"permissions and policies were not compared: {error}")
            return None
        if elsewhere := [each.cluster for each in (ours, theirs) if each.elsewhere]:
            brokers = " and ".join(elsewhere)
            report.notes.append(f"permissions, policies and schemas of the brokers of {brokers} were not compared")
        return differences(ours, theirs)

    async def _run_unplanned(self, report: SwitchReport, takeover: Takeover) -> None:
        began = time.monotonic()
        try:
            answer = await takeover.propose()
        except SwitchRefused as error:
            report.reason = str(error)
            return
        report.steps.append(("write", time.monotonic() - began))
        began = time.monotonic()
        record = record_of(report.target, answer)
        report.epoch, report.outcome = record.epoch, "done"
        await takeover.announce_all(record)
        report.steps.append(("tell", time.monotonic() - began))
        await self._evidence.compare_made(report, answer["marks"], record_id=record.record_id)
