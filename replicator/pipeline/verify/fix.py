"""Repair ``verify --fix``: it heals findings without losing anything, and leaves the rest to an operator.

1. Acknowledgements that one side lacks: every cluster announces the whole state of the topic's subscriptions again.
   Merging is idempotent and only grows (invariant 6), so this can repeat nothing and take nothing back.
2. Mappings: the index of the topic is made again from the log of the cluster that has it.
3. A topic that a link has stopped at without a gap is tried again at once.
4. A damaged block: its worker fetches the same block from a cluster that has it, like after its own discovery of one
   (:mod:`replicator.worker.mending`). The checksums prove that it is the block that was there (invariant 2).

Gaps, and messages that are missing, double, out of order or otherwise corrupted, are not touched: each way out of these
deletes something or gives something up. The command that does it is printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer
from replicator.pipeline.verify.cluster_state import Progress, Wanted, no_progress
from replicator.pipeline.verify.plane import LinkState, VerifyPlane
from replicator.pipeline.verify.report import DamagedBlock, VerifyReport
from replicator.pipeline.verify.verify import VerifySettings, verify
from replicator.topology import Link

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REBUILD_SECONDS_MAX: Final = 600
"""Longest time for a rebuild of the index. No measured one was so slow."""
POLL_SECONDS: Final = 0.2
TOLD_AT_ONCE: Final = 500
"""Limit of topics per request to announce subscription states."""
NAMED_AT_ONCE: Final = 10
"""Limit of positions in one line."""
_LOST: Final = ("missing", "duplicated", "reordered", "corrupted")


def fix_and_verify(
    spark: SparkSession | Callable[[], SparkSession] | None,
    clusters: Mapping[str, str],
    links: Sequence[Link],
    topics: Collection[str] | None,
    wanted: Wanted | None,
    settings: VerifySettings,
    file: Path,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Verify, do the safe repairs, and verify again if anything was done. Raises the errors of :func:`verify`.

    The report is of the second time; ``steps`` has what was done and what was not. ``file`` is for the commands in it.
    """
    once = replace(settings, parquet=None)
    before = verify(spark, clusters, links, topics, wanted=wanted, settings=once, progress=progress)
    reachable = {name: url for name, url in clusters.items() if name not in before.unreachable}
    done = list(_fixed(before, reachable))
    report = before
    if done or settings.parquet is not None:
        report = verify(spark, clusters, links, topics, wanted=wanted, settings=settings, progress=progress)
    return replace(report, steps=(*done, *_left(report, reachable, file)))


def _fixed(report: VerifyReport, clusters: Mapping[str, str]) -> Iterator[str]:
    """Do the safe repairs, and yield a line about each."""
    for name, url in clusters.items():
        yield from _mended(name, url, [each for each in report.damaged if each.cluster == name])
    of = {kind: sorted({each.topic for each in report.findings if each.fault == kind}) for kind in _kinds(report)}
    for name, url in clusters.items():
        if told := of.get("ack_mismatch"):
            yield from _attempt(f"{name} tells all acknowledgements of {_some(told)}", partial(_tell, url, told))
        for topic in of.get("mismapped", ()):
            yield from _attempt(f"{name} makes its mappings of {topic} again", partial(_rebuild, url, topic))
        for link in _stopped(url) if "gaps" in of else ():
            if not link.paused and set(link.stopped) - set(link.gaps):
                text = f"link {link.key} tries again: {_some(sorted(set(link.stopped) - set(link.gaps)))}"
                yield from _attempt(text, partial(_call, url, f"links/{quote(link.key, safe='')}/resume"))


def _mended(name: str, url: str, damaged: Sequence[DamagedBlock]) -> Iterator[str]:
    """Mend damaged blocks. This comes first: a link that stopped at such a block continues when it is whole."""
    whole: dict[str, list[str]] = {}
    with VerifyPlane(url) as worker:
        for block in damaged:
            text = f"{name} mends {block.topic} at {block.position}"
            try:
                outcome, reason = worker.mend(block.topic, block.position)
            except UnexpectedAnswer as error:
                yield f"not done: {text}: {error}"
            except PeerUnavailable as error:
                yield f"not done: {text}, and the damaged blocks after it: {error}"
                break
            else:
                if reason:
                    yield f"not done: {text}: no cluster gave it whole: {reason}"
                elif outcome in ("mended", "sound"):  # it was found, and mended, by the worker itself meanwhile
                    whole.setdefault(block.topic, []).append(str(block.position))
    for topic, positions in whole.items():
        for start in range(0, len(positions), NAMED_AT_ONCE):
            yield f"done: {name} mended {topic} at {', '.join(positions[start : start + NAMED_AT_ONCE])}"


def _kinds(report: VerifyReport) -> list[str]:
    return sorted({each.fault for each in report.findings})


def _attempt(text: str, action: Callable[[], None]) -> Iterator[str]:
    try:
        action()
    except (PeerUnavailable, UnexpectedAnswer) as error:
        yield f"not done: {text}: {error}"
    else:
        yield f"done: {text}"


def _tell(url: str, topics: Sequence[str]) -> None:
    with VerifyPlane(url) as worker:
        for start in range(0, len(topics), TOLD_AT_ONCE):
            told = list(topics[start : start + TOLD_AT_ONCE])
            worker.call("POST", "/replication/v1/ack-vectors/tell", {"topics": told})


def _rebuild(url: str, topic: str) -> None:
    """Rebuild the index of a topic.

    Raises :class:`UnexpectedAnswer` if it fails, or has not ended after :data:`REBUILD_SECONDS_MAX`."""
    path = "/replication/v1/mapping/rebuild"
    with VerifyPlane(url) as worker:
        worker.call("POST", path, topic=topic)
        deadline = time.monotonic() + REBUILD_SECONDS_MAX
        while (progress := worker.call("GET", path)).get("state") == "running":
            if time.monotonic() > deadline:
                raise UnexpectedAnswer(
                    f"the rebuild of the index runs for more than {REBUILD_SECONDS_MAX} s: `replicator mapping "
                    "rebuild` shows how far it is"
                )
            time.sleep(POLL_SECONDS)
        if progress.get("state") == "failed":
            raise UnexpectedAnswer(str(progress.get("detail")))


def _call(url: str, path: str) -> None:
    with VerifyPlane(url) as worker:
        worker.call("POST", f"/replication/v1/{path}")


def _stopped(url: str) -> list[LinkState]:
    try:
        with VerifyPlane(url) as worker:
            return [link for link in worker.link_states() if link.stopped]
    except PeerUnavailable:
        return []  # it has gone since; the next verification says so


def _left(report: VerifyReport, clusters: Mapping[str, str], file: Path) -> Iterator[str]:
    """Yield the decisions that are left to an operator, with the commands."""
    for name, url in clusters.items():
        if any(each.fault == "gaps" for each in report.findings):
            for link in _stopped(url):
                for topic, (kind, policies) in link.gaps.items():
                    named = link.key.partition("#")[2]
                    if not policies:
                        yield f"left: link {link.key} has a gap ({kind}) in {topic}: {link.stopped[topic]}"
                        continue
                    yield (
                        f"left: link {link.key} has a gap ({kind}) in {topic}: replicator links resolve -f {file} "
                        f"--from {name} --to {link.destination}{f' --name {named}' if named else ''} --topic {topic} "
                        f"--policy {'|'.join(policies)}"
                    )
        try:
            with VerifyPlane(url) as worker:
                paused = [link for link in worker.link_states() if link.paused]
        except PeerUnavailable:
            paused = []
        for link in paused:
            yield (
                f"left: link {link.key} is paused: replicator links resume -f {file} --from {name} "
                f"--to {link.destination}"
            )
    for finding in report.findings:
        if finding.fault in _LOST:
            yield (
                f"left: {finding.count:,} {finding.fault} in {finding.topic}: every way out deletes something; "
                "docs/verify.md says which there are"
            )


def _some(topics: Sequence[str]) -> str:
    return topics[0] if len(topics) == 1 else f"{topics[0]} and {len(topics) - 1} more"
