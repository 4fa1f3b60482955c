"""Backfill: brings a joining region up to the state of another one, by Spark, and then hands over to the live link.

This is the shell around :class:`~replicator.pipeline.backfill.phases.Backfill`: it asks the two workers, runs the jobs,
and shows the progress. Spark is started only if there is history to carry.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.pipeline.backfill import clusters
from replicator.pipeline.backfill.phases import (
    SMALL_BYTES,
    Action,
    AnnounceStates,
    AskCopies,
    AskStates,
    Backfill,
    Finish,
    MakePlan,
    Pause,
    Phase,
    PlanResult,
    Release,
    RunJob,
    sizes_of,
)
from replicator.pipeline.backfill.progress import Progress, share_of
from replicator.pipeline.backfill.report import BackfillReport, MissingState, TopicResult, lacking_of
from replicator.pipeline.backfill.states import TopicGoal, goals_of, lacking_states, made_anew, missing_of, reset_since
from replicator.pipeline.errors import (
    BadOption,
    LinkTaken,
    PeerUnavailable,
    PipelineError,
    UnexpectedAnswer,
    error_of_job,
    is_of_spark,
)
from replicator.topology import Link, Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from replicator.pipeline.backfill.tasks import LaneResult, LaneWork
    from replicator.pipeline.live.link_plans import Plan, Segment

LANES_PER_CORE: Final = 4
"""Lanes for each core. With more lanes than cores, one long lane does not leave the other cores idle at the end."""
LANES_MAX: Final = 64
"""Limit of lanes of a link's plan."""
SEGMENT_BYTES_MAX: Final = 16 * 1024 * 1024
SEGMENT_BYTES_MIN: Final = 64 * 1024
SEGMENT_SECONDS: Final = 1.0
"""Time that one segment of a throttled lane takes. Short segments keep the rate even."""
JOB_SECONDS_MAX: Final = 60.0
THROTTLED_JOB_SECONDS_MAX: Final = 15.0
"""Limit of a job's time with a rate. Jobs are short, because the next job divides the unused rate of finished lanes
again."""
WATCH_SECONDS: Final = 1.0
JOIN_SECONDS: Final = 1.0
"""Length of one wait for the job. On some platforms an endless wait does not notice Ctrl-C."""
PLAN_WAIT_MS: Final = 200
"""Longest wait of the source until it has something to plan."""
LIMITED_WAIT_MS: Final = 2_000
"""Longest wait of the source for a link with a rate of its own, which plans nothing while it is over its rate."""


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """Settings of a backfill. ``topics`` are patterns; empty means all that the link carries.

    Without ``lanes`` the number of cores decides."""

    topology: Topology
    link: Link
    topics: tuple[str, ...] = ()
    rate_bytes: int | None = None
    lanes: int | None = None


@dataclass(slots=True)
class _CarriedTotals:
    """Amounts that the tasks of this run carried."""

    jobs: int = 0
    bytes: int = 0
    seconds: float = 0.0
    topics: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Entries and bytes by topic."""

    def add(self, results: Sequence[LaneResult]) -> None:
        for result in results:
            self.bytes += result.bytes
            for topic, (entries, size_bytes) in result.topics.items():
                before = self.topics.get(topic, (0, 0))
                self.topics[topic] = (before[0] + entries, before[1] + size_bytes)


def link_for(topology: Topology, source: str, destination: str, name: str | None) -> Link:
    """Return the topology's link for a backfill.

    Raises :class:`TopologyError` for unknown clusters, and :class:`BadOption` if there is no such link, or several and
    no name."""
    topology.cluster(source)
    topology.cluster(destination)
    between = topology.links_between(source, destination)
    if not between:
        raise BadOption(
            "to",
            f"the topology has no link from {source} to {destination}: add `- {{from: {source}, to: {destination}}}` "
            f"to its links, and run `replicator apply -f {topology.path or 'FILE'}`",
        )
    names = ", ".join(each.name for each in between)
    if name is None and len(between) > 1:
        raise BadOption("link", f"several links lead there, give one: {names}")
    found = [each for each in between if name is None or each.name == name]
    if not found:
        raise BadOption("link", f"no link {name!r:.80} leads there; there are: {names or 'one without a name'}")
    link = found[0]
    if link.where or link.select:
        raise BadOption(
            "to",
            f"link {link.key} has `where` or `select`, and a backfill carries blocks as they are: the link's live copy "
            "brings the history too, without what it is to leave out",
        )
    return link


class BackfillRun:
    """One run of a backfill. ``spark`` starts the session, or returns the running one; ``show`` gets the line to
    show."""

    def __init__(
        self, request: BackfillRequest, spark: Callable[[], SparkSession], show: Callable[[str], None]
    ) -> None:
        self._request = request
        topology, link = request.topology, request.link
        self._source, self._destination = topology.cluster(link.source), topology.cluster(link.destination)
        self._at_source = clusters.SourceLink(self._source, link.key, request.topics)
        self._start_spark = spark
        self._spark: SparkSession | None = None
        self._show = show
        self._progress = Progress()
        self._measuring = threading.Lock()
        self._carried = _CarriedTotals()
        self._goals: dict[str, TopicGoal] = {}
        self._before: Mapping[str, Mapping[str, Any]] = {}
        """The topics of the destination when the backfill began."""
        self._lives: Mapping[str, Mapping[str, Sequence[str]]] = {}
        """Messages of earlier lives that the destination must have, by topic and origin."""
        self._told: dict[str, Mapping[str, Any]] = {}
        """Subscription states that the destination must have, by topic."""
        self._plan: Plan | None = None
        self._bytes_max = SEGMENT_BYTES_MAX
        self._backfill: Backfill

    def run(self) -> BackfillReport:
        """Run until the region has joined, or the backfill gives up.

        Raises :class:`PeerUnavailable` for a worker that does not answer at the start, :class:`BadOption` for patterns
        that match nothing, :class:`LinkTaken` if another backfill has the link. On any exception, also
        KeyboardInterrupt, the link is released first.
        """
        started = time.monotonic()
        self._look()
        if self._has_large_backlog():  # before the link is taken over: until then it goes on by itself
            self._show("starting Spark")
            self._spark = self._start_spark()
        self._backfill = Backfill(
            tuple(self._goals),
            tuple(name for name, goal in self._goals.items() if goal.replicated),
            time.monotonic(),
        )
        try:
            with self._watching():
                action: Action = self._backfill.start()
                while not isinstance(action, Finish):
                    action = self._do(action)
        finally:
            with suppress(PipelineError):
                self._at_source.release()
        return self._report(time.monotonic() - started)

    def _look(self) -> None:
        """Ask both workers for their state, and set the goals: the state that the destination must reach."""
        for cluster in (self._source, self._destination):
            clusters.check_cluster(cluster)
        self._at_source.state()
        link, topology = self._request.link, self._request.topology
        here = clusters.copies(self._source)
        on_link = goals_of(
            here,
            topology.origins_over(link),
            link.destination,
            lambda name: name != EPOCHS_TOPIC and topology.carries(link, name),
        )
        for pattern in self._request.topics:
            if not any(Link("", "", topics=(pattern,)).carries(name) for name in on_link):
                raise BadOption("topics", f"no topic of {link.source} that link {link.key} carries matches {pattern!r}")
        chosen = Link("", "", topics=self._request.topics)
        self._goals = {name: goal for name, goal in on_link.items() if chosen.carries(name)}
        lives = self._lives = {name: goal.earlier for name, goal in self._goals.items() if goal.earlier}
        self._before = clusters.copies(self._destination)
        if lives:
            self._before = {**self._before, **clusters.copies(self._destination, list(lives), lives)}

    def _has_large_backlog(self) -> bool:
        there = self._before
        if all(missing_of(goal, there.get(name)) is None for name, goal in self._goals.items()):
            return False
        with suppress(UnexpectedAnswer):  # it is still being measured, so it is much
            return self._at_source.progress().bytes_left > SMALL_BYTES
        return True

    # Actions of the phases.

    def _do(self, action: Action) -> Action:
        backfill = self._backfill
        try:
            match action:
                case MakePlan():
                    return self._make_plan()
                case RunJob():
                    return self._run_job()
                case Release():
                    self._at_source.release()
                    return backfill.on_released(time.monotonic())
                case AskCopies(topics):
                    there = clusters.copies(self._destination, topics, self._lives)
                    missing = {name: missing_of(self._goals[name], there.get(name)) for name in topics}
                    lacking = {name: reason for name, reason in missing.items() if reason is not None}
                    link, stopped = self._at_source.stopped() if lacking else ("", {})
                    stopped = {**stopped, **self._deleted(lacking)}
                    return backfill.on_copies(lacking, stopped, time.monotonic(), link)
                case AnnounceStates(topics, again):
                    if not again:
                        self._told |= clusters.ack_vectors(self._source, topics)
                    clusters.tell(self._source, topics)
                    return backfill.on_states_announced(time.monotonic())
                case AskStates(topics):
                    return backfill.on_states(self._lacking(topics), time.monotonic())
                case Pause(seconds, then):
                    time.sleep(seconds)
                    return then
                case Finish():
                    return action
        except LinkTaken:
            raise
        except PeerUnavailable as error:
            return backfill.on_unreachable(str(error), time.monotonic())
        raise AssertionError(action)

    def _deleted(self, lacking: Collection[str]) -> dict[str, str]:
        """Return the lacking topics that the source has deleted, each with the reason. They cannot be completed."""
        if not lacking:
            return {}
        here, source = clusters.copies(self._source, lacking), self._request.link.source
        reason = f"{source} has deleted it since this backfill began"
        return {name: reason for name in lacking if made_anew(self._goals[name], source, here.get(name))}

    def _make_plan(self) -> Action:
        lanes = self._lanes()
        limited = self._request.link.rate_bytes is not None
        plan = self._plan = self._at_source.plan(
            lanes=lanes, bytes_max=self._bytes_max, wait_ms=LIMITED_WAIT_MS if limited else PLAN_WAIT_MS
        )
        sizes, full = sizes_of(plan.lanes, self._bytes_max)
        left = self._bytes_left() if plan.empty else 0
        view = PlanResult(plan.state, plan.detail, sizes, full, bool(plan.id.session), left)
        return self._backfill.on_plan(view, time.monotonic())

    def _bytes_left(self) -> int:
        """Measure and return the bytes left. If the source does not answer, or still measures, return the last
        value."""
        with self._measuring:
            with suppress(PipelineError):
                self._progress.on_amount(self._at_source.progress(), time.monotonic())
            return 0 if self._progress.amount is None else self._progress.amount.bytes_left

    def _lanes(self) -> int:
        """Return the number of lanes to plan. Two cores are assumed before Spark runs and says its number."""
        cores = 2 if self._spark is None else self._spark.sparkContext.defaultParallelism
        lanes = self._request.lanes or LANES_PER_CORE * cores
        rate = self._request.rate_bytes
        if rate is not None:
            share = share_of(rate, lanes, cores)
            self._bytes_max = int(min(SEGMENT_BYTES_MAX, max(SEGMENT_BYTES_MIN, share * SEGMENT_SECONDS)))
        return min(LANES_MAX, lanes)

    def _run_job(self) -> Action:
        assert self._plan is not None
        if self._spark is None:
            self._show("starting Spark")
            self._spark = self._start_spark()
        plan, work = self._plan, self._lane_work(self._plan)
        rows = [(lane, segment) for lane, segment in enumerate(plan.lanes) if segment is not None]
        self._carried.jobs += 1
        left_before = self._bytes_left()
        started = time.monotonic()
        results, error = _run_job_in_thread(self._spark, work, rows)
        self._carried.seconds += time.monotonic() - started
        self._carried.add(results)
        errors = [result.error for result in results if result.error is not None]
        refused = [f"{topic}: {reason}" for result in results for topic, reason in result.refused.items()]
        error = error or (errors[0] if errors else None)
        if error is None:
            self._at_source.done(plan, [done for result in results for done in result.unreported])
        else:
            self._at_source.failed(plan, error)
        moved = any(result.moved for result in results) or self._bytes_left() < left_before
        if error is None and not moved and refused:
            error = refused[0]
        return self._backfill.on_job(error, time.monotonic(), moved=moved)

    def _lane_work(self, plan: Plan) -> LaneWork:
        from replicator.pipeline.backfill.tasks import LaneWork
        from replicator.pipeline.live.carrying import LinkWork

        assert self._spark is not None
        link, rate = self._request.link, self._request.rate_bytes
        lanes = sum(segment is not None for segment in plan.lanes)
        cores = self._spark.sparkContext.defaultParallelism
        return LaneWork(
            LinkWork(
                self._source.url,
                link.key,
                link.source,
                link.destination,
                self._destination.address,
                link.name,
                link.compression,
            ),
            plan.id,
            self._bytes_max,
            JOB_SECONDS_MAX if rate is None else THROTTLED_JOB_SECONDS_MAX,
            None if rate is None else share_of(rate, lanes, cores),
            LIMITED_WAIT_MS if link.rate_bytes else 0,
        )

    def _lacking(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        there = clusters.ack_vectors(self._destination, topics)
        found = {
            topic: lacking_states(self._told[topic], there.get(topic)) if topic in self._told else {}
            for topic in topics
        }
        for topic, now in clusters.ack_vectors(self._source, [name for name in topics if found[name]]).items():
            if reset_since(self._told[topic], now):
                self._told[topic] = now
        return found

    # Display of the progress.

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Ask for the progress once a second, which also keeps the link in this backfill's hands."""
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,), name="backfill progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(WATCH_SECONDS):
            phase = self._backfill.phase
            if phase is Phase.CARRY:
                self._bytes_left()
                if self._carried.jobs:
                    self._show(f"{phase.value}: {self._progress.line()}")
            elif phase not in (Phase.DONE, Phase.GAVE_UP):
                waiting = self._backfill.missing or self._backfill.lacking
                self._show(f"{phase.value}, {len(waiting)} topics" if waiting else phase.value)

    # The report.

    def _report(self, seconds: float) -> BackfillReport:
        backfill, link = self._backfill, self._request.link
        try:
            there = clusters.copies(self._destination, list(self._goals), self._lives)
        except PipelineError:
            there = {}
        done = backfill.phase is Phase.DONE
        lacking = {} if done else self._not_transferred()
        return BackfillReport(
            source=link.source,
            destination=link.destination,
            link=link.key,
            outcome="done" if done else "incomplete",
            reason=backfill.reason,
            unavailable=backfill.unavailable,
            seconds=round(seconds, 3),
            carrying_seconds=round(self._carried.seconds, 3),
            jobs=self._carried.jobs,
            carried_bytes=self._carried.bytes,
            topics=tuple(
                self._topic_result(name, goal, there.get(name), len(lacking.get(name, ())))
                for name, goal in sorted(self._goals.items())
            ),
            lacking=lacking_of(lacking),
            unreplicated=tuple(
                MissingState(name, each, "it is not replicated: `replicator subscriptions set-replicated` makes it so")
                for name, goal in sorted(self._goals.items())
                for each in goal.unreplicated
            ),
            beside_brokers=tuple(
                each.name for each in (self._source, self._destination) if each.broker_origin is not None
            ),
        )

    def _not_transferred(self) -> dict[str, dict[str, str]]:
        """Return, by topic, the subscriptions whose states are not, or may not be, at the destination, with the
        reasons."""
        backfill, mode = self._backfill, self._request.topology.sync.mode
        hint = "; sync.mode is mark-delete, by which only mark-delete positions travel" if mode != "exact" else ""
        found: dict[str, dict[str, str]] = {}
        for name, goal in self._goals.items():
            if name in self._told and name not in backfill.missing:
                found[name] = {each: f"{why}{hint}" for each, why in backfill.lacking.get(name, {}).items()}
            else:
                why = backfill.stopped.get(name) or backfill.missing.get(name) or "it did not come to comparing them"
                found[name] = dict.fromkeys(goal.replicated, why)
        return {name: each for name, each in found.items() if each}

    def _topic_result(self, name: str, goal: TopicGoal, there: Mapping[str, Any] | None, lacking: int) -> TopicResult:
        before = self._before.get(name)
        messages = 0 if there is None else int(there["messages"])
        entries, size_bytes = self._carried.topics.get(name, (0, 0))
        missing = None if self._backfill.phase is Phase.DONE else missing_of(goal, there)
        stopped = self._backfill.stopped.get(name)
        return TopicResult(
            topic=name,
            messages_source=goal.messages,
            messages_there=messages,
            new_messages=messages - (0 if before is None else int(before["messages"])),
            carried_entries=entries,
            carried_bytes=size_bytes,
            subscriptions=len(goal.replicated),
            transferred=len(goal.replicated) - lacking,
            missing=f"{missing} ({stopped})" if missing and stopped else missing,
        )


def _run_job_in_thread(
    spark: SparkSession, work: LaneWork, rows: list[tuple[int, Segment]]
) -> tuple[list[LaneResult], str | None]:
    """Run a job with a task for each row; return the tasks' results, and the job's error if it failed.

    It runs on a thread of its own: Ctrl-C inside a call of Spark's gateway would print pages of tracebacks.
    """
    from replicator.pipeline.backfill.tasks import carry_lanes

    results: list[LaneResult] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            lanes = spark.sparkContext.parallelize(rows, len(rows))
            results.extend(lanes.mapPartitions(lambda each: carry_lanes(work, each)).collect())
        except Exception as error:  # noqa: BLE001 - raised, or told, below
            failures.append(error)

    job = threading.Thread(target=run, name="backfill job", daemon=True)
    job.start()
    while job.is_alive():
        job.join(JOIN_SECONDS)
    if not failures:
        return results, None
    if is_of_spark(failures[0]):
        return [], str(error_of_job(failures[0]))
    raise failures[0]
