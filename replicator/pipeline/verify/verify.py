"""Verify: compares the clusters of a topology, and reports what differs.

1. All clusters are asked for the state of their topics, in an order that makes a consistent cut
   (:mod:`~replicator.pipeline.verify.cluster_state`). A cluster that does not answer is left out, and named.
2. Logs are read and compared block by block, in Spark or in this process
   (:mod:`~replicator.pipeline.verify.comparison_runs`). Logs with entries out of order are read a second time.
3. Differences that time may heal are looked at again. Entries above a copy's high-water mark are missing if the mark
   does not move during the wait. An acknowledgement counts as not copied if it is still missing after the wait.
4. Clusters are asked for the places of some copied entries by the exact mapping, which are compared with the logs.
5. A cluster may hide messages as duplicates. These are compared with the messages that it delivers in their place
   (:mod:`~replicator.pipeline.verify.hidden`).

A cluster that goes away during step 3 or 4 is named as one that was not compared. What was found before is still
counted: differences with that cluster cannot heal any more.

Topics may be written to, copied and consumed meanwhile: messages on their way are not reported, lost messages are. A
topic that a cluster deletes meanwhile is left out, and named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.pipeline.errors import BadOption, PeerUnavailable
from replicator.pipeline.verify.blocks import Selection
from replicator.pipeline.verify.cluster_state import (
    ClusterStates,
    Progress,
    Wanted,
    allowed_clusters,
    deleted_since,
    links_between,
    named_filter,
    no_progress,
    read_again,
    read_digests,
    read_picture,
    scope_of,
)
from replicator.pipeline.verify.comparison.in_step import TopicAnswers, found_in_step, is_in_step
from replicator.pipeline.verify.comparison.order import out_of_order
from replicator.pipeline.verify.comparison.rows import BEHIND, COMPARED, DAMAGED, GONE, PROBE, READ, FindingRow
from replicator.pipeline.verify.comparison.scope import Scope, home_of
from replicator.pipeline.verify.comparison_runs import (
    LocalComparison,
    Runs,
    SparkComparison,
    Tally,
    add_found,
    plan_tasks,
)
from replicator.pipeline.verify.difference_files import DifferenceFiles, Pair
from replicator.pipeline.verify.hidden import look_at_hidden
from replicator.pipeline.verify.places import wrong_places
from replicator.pipeline.verify.plane import LinkState, VerifyPlane
from replicator.pipeline.verify.reachability import TopicRoutes, reachability_of
from replicator.pipeline.verify.report import (
    FAULTS,
    ClusterCounts,
    DamagedBlock,
    Finding,
    VerifyReport,
    format_report,
    joined_findings,
)
from replicator.topology import Link
from snapshots.position import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["VerifyReport", "VerifySettings", "format_report", "verify"]

SETTLE_SECONDS: Final = 10.0
"""Time for links and sync to bring messages on their way. A link that lost its connection is back within 5 s."""
POLL_SECONDS: Final = 0.5
WORKING: Final = frozenset({"", "copying", "idle", "paused"})
"""States of links that need no remark, or that are remarked on elsewhere."""
LOOKS: Final = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
"""Times at which topics with different acknowledgements are compared again, as shares of the settling time. A topic
that lacks messages is compared as often, without a pause, if more of it was trimmed meanwhile. Its markers may be
trimmed every second, and one comparison may take as long on a busy machine."""
GONE_NAMED_MAX: Final = 20
"""Most topics that a remark names. More would fill a terminal."""
SMALL_MESSAGES: Final = 500_000
SMALL_ENTRIES: Final = 200_000
"""Limits over all clusters. Below both, a comparison takes less time than starting Spark."""


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """Options of one comparison; see docs/verify.md."""

    selection: Selection = field(default_factory=Selection)
    settle_seconds: float = SETTLE_SECONDS
    parquet: Path | None = None
    digests: bool = True
    """Whether a topic counts as compared if all clusters have equal digests of it. If False, every log is read by
    verify."""


def verify(
    spark: SparkSession | Callable[[], SparkSession] | None,
    clusters: Mapping[str, str],
    links: Sequence[Link],
    topics: Collection[str] | None = None,
    *,
    wanted: Wanted | None = None,
    settings: VerifySettings | None = None,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Compare ``clusters`` (name to worker URL) over ``links``, in ``topics``, in those that are ``wanted``, or in all.

    ``spark`` is a session for the comparison, or a function that starts one if there is much to compare. With None, or
    if there is little, it runs in this process. Topics that no link carries, by its patterns or a namespace's clusters,
    are not compared; forwarded ones are.

    The call blocks for the length of the job. Raises :class:`PeerUnavailable` if no worker answers. Raises
    :class:`UnexpectedAnswer` for a worker of another cluster, or wrong answers. Raises :class:`BadOption` for a topic
    that no cluster has, or a link of a cluster that is not given.
    """
    settings = settings or VerifySettings()
    for link in links:
        for name in (link.source, link.destination):
            if name not in clusters:
                raise BadOption("links", f"{link}: cluster {name} has no url: give its worker's address as well")
    if topics is not None:
        wanted = named_filter(topics)
    files = None if settings.parquet is None else DifferenceFiles(settings.parquet)
    return _Verification(spark, clusters, links, topics, wanted or (lambda _: True), settings, files, progress).run()


@dataclass(slots=True)
class _Verification:
    """One run of verify."""

    spark: SparkSession | Callable[[], SparkSession] | None
    clusters: Mapping[str, str]
    links: Sequence[Link]
    topics: Collection[str] | None
    wanted: Wanted
    settings: VerifySettings
    files: DifferenceFiles | None
    progress: Progress
    remarks: list[str] = field(default_factory=list)
    away: dict[str, str] = field(default_factory=dict)
    """Clusters that went away after they were compared, each with the reason."""

    def run(self) -> VerifyReport:
        for _ in range(len(self.clusters)):
            try:
                return self._run()
            except PeerUnavailable as error:
                lost = error  # what went away on the way is left out when all are asked again
                if self.files is not None:
                    self.files.start_over()
        raise lost

    def _run(self) -> VerifyReport:
        started = time.monotonic()
        self.away.clear()
        picture = read_picture(self.clusters, self._is_wanted, progress=self.progress)
        self._check_topics(picture)
        in_step, counted = self._equal_topics(picture)
        scope = scope_of(picture, self.links, in_step)
        self._remark_deleted(scope)
        compared = self._compare(picture, scope)
        tallies = [*counted, *self._look_again(picture, compared)]
        came_not = self._stalled_pairs(picture, tallies)
        tallies = [
            replace(tally, kind="missing") if tally.kind == BEHIND and _pair(tally) in came_not else tally
            for tally in tallies
        ]
        duplicates = look_at_hidden(picture)
        more = [*self._gaps(picture), *wrong_places(picture, _notes(tallies, PROBE), self.away), *duplicates.differing]
        found = [(each.kind, each.topic) for each in (*compared, *tallies)]
        found += [(each.kind, each.topic) for each in more]
        suspect = {topic for kind, topic in found if kind in FAULTS or kind == BEHIND}
        gone = deleted_since(picture, suspect).union(picture.gone, duplicates.gone)
        gone.update(topic for kind, topic in found if kind == GONE)
        tallies = [tally for tally in tallies if tally.topic not in gone]
        more = [each for each in more if each.topic not in gone]
        if gone:
            self.remarks.append(f"not compared, because a cluster deleted them meanwhile: {_named(sorted(gone))}")
        if self.files is not None:
            reordered = [note for tally in tallies for note in tally.notes if note.kind == "reordered"]
            self.files.finish(came_not, more + reordered, gone)
        findings = joined_findings([*_findings(tallies), *map(_finding, more)])
        self._remark(picture)
        counts: dict[str, Any] = {
            fault: sum(finding.count for finding in findings if finding.fault == fault) for fault in FAULTS
        }
        return VerifyReport(
            **counts,
            messages=sum(tally.count for tally in tallies if tally.kind == COMPARED),
            clusters={
                state.name: _cluster_counts(tallies, state.name, duplicates.messages[state.name])
                for state in picture.clusters
            },
            topics=tuple(sorted({*picture.topics, *(finding.topic for finding in findings)} - gone)),
            findings=tuple(sorted(findings, key=lambda finding: (list(FAULTS).index(finding.fault), finding.topic))),
            mappings=_count_mappings(picture),
            subscriptions=_count_subscriptions(picture),
            seconds=time.monotonic() - started,
            behind=sum(tally.count for tally in tallies if tally.kind == BEHIND),
            unreachable={**picture.unreachable, **self.away},
            remarks=tuple(dict.fromkeys(self.remarks)),
            damaged=_damaged(tallies),
        )

    def _is_wanted(self, topic: str) -> bool:
        return topic != EPOCHS_TOPIC and self.wanted(topic)

    def _check_topics(self, picture: ClusterStates) -> None:
        found = {*picture.topics, *picture.gone}
        unknown = sorted(name for name in self.topics or () if not any(map(named_filter([name]), found)))
        if unknown and not picture.unreachable:
            raise BadOption("topic", f"no cluster has {', '.join(map(_full_name, unknown))}")
        self.remarks += [f"no cluster that answered has {_full_name(name)}" for name in unknown]

    def _equal_topics(self, picture: ClusterStates) -> tuple[set[str], list[Tally]]:
        """Return the topics that digests prove to agree, and their tallies for the report.

        Both are empty if digests are not to be used, or if a worker makes none.
        """
        is_session = self.spark is not None and not callable(self.spark)
        if not self.settings.digests or self.settings.selection.by_heads or is_session:
            return set(), []
        digests = read_digests(picture, self.progress)
        if len(digests) < len(picture.clusters):
            return set(), []  # a worker of an older version makes none
        ways = TopicRoutes(links_between(picture, self.links))
        found: set[str] = set()
        tallies: dict[tuple[Any, ...], Tally] = {}
        for topic in picture.topics:
            having = [state for state in picture.clusters if topic in state.topics]
            answers = TopicAnswers(
                {state.name: digests[state.name].get(topic) for state in having},
                {state.name: state.mappings.get(topic, ()) for state in having},
                {state.name: [each.name for each in state.subscriptions.get(topic, ())] for state in having},
            )
            if is_in_step(answers, ways.of(topic, allowed_clusters(picture, topic))):
                found.add(topic)
                for each in found_in_step(topic, answers):
                    add_found(tallies, each)
        return found, list(tallies.values())

    def _runs(self, picture: ClusterStates, scope: Scope) -> Runs:
        if self.spark is None:
            return LocalComparison(self.progress)
        if not callable(self.spark):
            return SparkComparison(self.spark)
        entries = sum(standing.entries for topic in scope.topics for standing in topic.standings.values())
        messages = sum(topic.messages for state in picture.clusters for topic in state.topics.values())
        if entries <= SMALL_ENTRIES and messages <= SMALL_MESSAGES:
            return LocalComparison(self.progress)
        self.spark = self.spark()
        return SparkComparison(self.spark)

    def _compare(self, picture: ClusterStates, scope: Scope, topics: Collection[str] = ()) -> list[Tally]:
        """Compare topics, and return the findings. ``topics`` were compared before; it is empty for the first time."""
        runs = self._runs(picture, scope)
        tasks = plan_tasks(scope, lambda topic, cluster: _messages_each(picture, scope, topic, cluster))
        if not tasks:
            return []
        write_to = None if self.files is None else self.files.next_look(topics)
        tallies = runs.compare(tasks, scope, self.settings.selection, write_to)
        suspect = out_of_order(note for tally in tallies for note in tally.notes)
        if not suspect:
            return tallies
        numbers = {topic.name: number for number, topic in enumerate(scope.topics)}
        logs = {(numbers[topic], scope.clusters.index(cluster)) for topic, cluster in suspect}
        chosen = [kept for task in tasks if (kept := [each for each in task if (each.topic, each.cluster) in logs])]
        found = runs.reordered(chosen, scope, self.settings.selection, logs)
        return [
            *tallies,
            *(Tally(each.kind, each.topic, each.cluster, None, 1, [str(each.detail)], [each]) for each in found),
        ]

    # Differences that time may heal.

    def _look_again(self, picture: ClusterStates, tallies: list[Tally]) -> list[Tally]:
        """Compare differences once more that may be due to messages on their way, or to trimming meanwhile.

        Differences in topics of a cluster that is away stay as they are. It is named if it is still away at the end.
        """
        began = time.monotonic()
        for share in LOOKS:
            differing = {tally.topic for tally in tallies if tally.kind == "ack_mismatch"}
            lacking = {tally.topic for tally in tallies if tally.kind in ("missing", "mismapped")}
            if not differing and not lacking:
                break
            while differing and (left := began + share * self.settings.settle_seconds - time.monotonic()) > 0:
                time.sleep(min(left, POLL_SECONDS))
            now = read_again(picture, differing | lacking)
            here = {state.name for state in now.clusters}
            lost = [state for state in picture.clusters if state.name not in here]
            self.away = {state.name: f"went away meanwhile: {now.unreachable[state.name]}" for state in lost}
            changed = {topic for topic in lacking if _is_trimmed(picture, now, topic)}
            changed |= {topic for topic in differing if _is_acknowledged(picture, now, topic)}
            changed = {topic for topic in changed if not any(topic in state.topics for state in lost)}
            if changed:
                fresh = self._compare(now, self._scope_of(now, changed), changed)
                tallies = [tally for tally in tallies if tally.topic not in changed] + fresh
        return tallies

    def _scope_of(self, picture: ClusterStates, topics: Collection[str]) -> Scope:
        """Return the scope of the comparison, restricted to ``topics``."""
        scope = scope_of(picture, self.links)
        return replace(scope, topics=tuple(topic for topic in scope.topics if topic.name in topics))

    def _stalled_pairs(self, picture: ClusterStates, tallies: Iterable[Tally]) -> set[Pair]:
        """Return the pairs that stay behind: during the wait, the destination's high-water mark does not move.

        That of a destination that is away does not move either. It is named if it is still away at the end.
        """
        waiting = [tally for tally in tallies if tally.kind == BEHIND and not self._is_held(picture, tally)]
        deadline = time.monotonic() + self.settings.settle_seconds
        states = {state.name: state for state in picture.clusters}
        while waiting:
            for name in {str(tally.cluster) for tally in waiting}:
                try:
                    with VerifyPlane(states[name].url) as worker:
                        now = worker.standings()
                except PeerUnavailable as error:
                    self.away[name] = f"went away while it was waited for: {error}"
                    continue
                self.away.pop(name, None)
                before = states[name].standings
                waiting = [
                    tally for tally in waiting if tally.cluster != name or _mark(now, tally) == _mark(before, tally)
                ]
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
        return {_pair(tally) for tally in waiting}

    def _is_held(self, picture: ClusterStates, tally: Tally) -> bool:
        """Return whether every link that could bring the missing entries is paused, or carried by a backfill."""
        held = {link.key for state in picture.clusters for link in state.links if _is_held(link)}
        if not held:
            return False
        going = [link for link in self.links if link.key not in held]
        if (tally.other, tally.cluster) in reachability_of(
            tally.topic, going, allowed_clusters(picture, tally.topic)
        ).messages:
            return False
        self.remarks += [
            f"link {link.key} is paused: what it does not bring is not missing"
            for state in picture.clusters
            for link in state.links
            if link.paused
        ]
        return True

    def _gaps(self, picture: ClusterStates) -> Iterable[FindingRow]:
        for state in picture.clusters:
            for link in state.links:
                for topic, reason in link.stopped.items():
                    if self._is_wanted(topic):
                        text = f"link {link.key}: {reason}"
                        yield FindingRow("gaps", topic, 1, cluster=link.destination, other=state.name, detail=text)

    def _remark_deleted(self, scope: Scope) -> None:
        deleted = [
            f"{topic.name} (by {name})"
            for topic in scope.topics
            for number, name in enumerate(scope.clusters)
            if topic.deleted_at(number, name)
        ]
        if deleted:
            self.remarks.append(f"deleted, and kept by other clusters: {_named(deleted)}")

    def _remark(self, picture: ClusterStates) -> None:
        for state in picture.clusters:
            if state.no_mappings is not None:
                self.remarks.append(f"snapshot mappings of {state.name} were not compared: {state.no_mappings}")
            self.remarks += [
                f"link {link.key} is {link.state}{f': {link.detail}' if link.detail else ''}"
                for link in state.links
                if link.state not in WORKING
            ]
        selection = self.settings.selection
        if selection.sample is not None:
            self.remarks.append(
                f"a sample: the contents of {selection.sample:.3g} of all blocks of messages were read; entries, their "
                "order, mappings and acknowledgements were compared in full, and so were the checksums that blocks "
                "state, but bytes that rotted on a disk are found only in the blocks that were read"
            )
        if selection.since_ms is not None:
            self.remarks.append("only blocks that were published since then were compared")


def _named(topics: Sequence[str]) -> str:
    """Return ``topics`` in words, for a remark; at most :data:`GONE_NAMED_MAX` are named."""
    more = f" and {len(topics) - GONE_NAMED_MAX} more" if len(topics) > GONE_NAMED_MAX else ""
    return f"{', '.join(topics[:GONE_NAMED_MAX])}{more}"


def _full_name(topic: str) -> str:
    from replicator.engine.topic_name import parse_topic

    return str(parse_topic(topic))


def _count_mappings(picture: ClusterStates) -> int:
    """Return the number of snapshot mappings between clusters that answered."""
    names = {state.name for state in picture.clusters}
    of_topics = (each for state in picture.clusters for each in state.mappings.values())
    return sum(mapping.peer in names for each in of_topics for mapping in each)


def _count_subscriptions(picture: ClusterStates) -> int:
    """Return the number of pairs of topic and subscription that are replicated in at least one cluster."""
    states = (
        (topic, each.name, each.replicated)
        for state in picture.clusters
        for subscriptions in (state.told, state.subscriptions)
        for topic, of_topic in subscriptions.items()
        for each in of_topic
    )
    return len({(topic, name) for topic, name, replicated in states if replicated})


def _messages_each(picture: ClusterStates, scope: Scope, topic: int, cluster: int) -> float:
    state = picture.clusters[cluster].topics.get(scope.topics[topic].name)
    return state.messages / max(state.entries, 1) if state is not None else 1.0


def _is_trimmed(before: ClusterStates, now: ClusterStates, topic: str) -> bool:
    """Return whether a cluster has trimmed more of a topic since ``before``, or deleted the topic."""
    earlier = {state.name: state.standings.get(topic) for state in before.clusters}
    return any(
        first is not None and (later is None or later.trimmed != first.trimmed)
        for state in now.clusters
        for first, later in [(earlier[state.name], state.standings.get(topic))]
    )


def _is_acknowledged(before: ClusterStates, now: ClusterStates, topic: str) -> bool:
    """Return whether a subscription of ``topic`` has changed in any cluster since ``before``."""
    earlier = {state.name: state.subscriptions.get(topic) for state in before.clusters}
    return any(state.subscriptions.get(topic) != earlier[state.name] for state in now.clusters)


def _is_held(link: LinkState) -> bool:
    """Return whether the link is expected to lag: it is paused, or a backfill carries it, topic by topic."""
    return link.paused or link.state == "backfilling"


def _mark(standings: Mapping[str, object], tally: Tally) -> object:
    standing = standings.get(tally.topic)
    marks = getattr(standing, "high_water", None)
    return None if marks is None else [mark for origin, mark in marks.items() if home_of(origin) == tally.other]


def _pair(tally: Tally) -> Pair:
    return tally.topic, tally.cluster, tally.other


def _finding(found: FindingRow) -> Finding:
    return Finding(found.kind, found.topic, found.count, (str(found.detail),))


def _notes(tallies: Iterable[Tally], kind: str) -> list[FindingRow]:
    return [note for tally in tallies if tally.kind == kind for note in tally.notes]


def _damaged(tallies: Iterable[Tally]) -> tuple[DamagedBlock, ...]:
    """Return each damaged block once, although tasks that share a block both find it."""
    found = {
        (str(note.cluster), note.topic, Position(int(note.ledger or 0), int(note.entry or 0))): str(note.detail)
        for note in _notes(tallies, DAMAGED)
    }
    return tuple(sorted(DamagedBlock(*key, reason) for key, reason in found.items()))


def _findings(tallies: Iterable[Tally]) -> Iterable[Finding]:
    for tally in tallies:
        if tally.kind == "mismapped":
            details = sorted({str(note.detail) for note in tally.notes})
            yield Finding("mismapped", tally.topic, len(details), tuple(details))
        elif tally.kind in FAULTS:
            yield Finding(tally.kind, tally.topic, tally.count, tuple(tally.examples))


def _cluster_counts(tallies: Iterable[Tally], cluster: str, duplicates: int) -> ClusterCounts:
    messages, markers = 0, dict[str, int]()
    for tally in tallies:
        if tally.kind == READ and tally.cluster == cluster:
            if tally.other is None:
                messages += tally.count
            else:
                markers[tally.other] = markers.get(tally.other, 0) + tally.count
    return ClusterCounts(messages, markers, duplicates)
