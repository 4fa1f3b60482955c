"""Requests of a backfill's driver to its two workers: plans, progress, copies and subscription states.

It uses blocking HTTP with a connection for each larger request: a driver asks a few times a second at most.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import psutil

from replicator.pipeline.backfill.progress import Amount
from replicator.pipeline.backfill.states import Topics, topics_by_name
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import LinkTaken, NoSuchLink, PipelineError, UnexpectedAnswer
from replicator.pipeline.live.link_plans import LinkPlans, Plan
from replicator.topology import Cluster

ASKED_AT_ONCE: Final = 8
"""Limit of topics whose subscriptions are asked for at the same time."""
NAMED_MAX: Final = 2_000
"""Limit of topics per request about copies. With the longest names that is half a megabyte."""
TOLD_MAX: Final = 1_000
"""Limit of topics per request to announce subscription states."""

SETTLED_SECONDS_MAX: Final = 3.0
SETTLED_LOOK_SECONDS: Final = 0.05

_CARRIER: Final = re.compile(r"process (\d+) on (\S+) since ([0-9TZ:-]+)")


class SourceLink:
    """Link at its source's worker, which a backfill takes over as ``carrier``."""

    def __init__(self, source: Cluster, key: str, topics: Sequence[str]) -> None:
        self._url = source.url
        self._key = key
        self._topics = list(topics)
        self.carrier = carrier_name()

    def state(self) -> tuple[str, str]:
        """Return the link's state and its detail.

        Raises :class:`LinkTaken` if another backfill has the link, :class:`NoSuchLink` if the worker does not run it,
        and the errors of :class:`DataPlane`.
        """
        with DataPlane(self._url) as worker:
            try:
                link = worker.call("GET", f"/replication/v1/links/{quote(self._key, safe='')}")
            except UnexpectedAnswer as error:
                if error.code != "LinkNotFound":
                    raise
                raise NoSuchLink(
                    f"the worker at {self._url} does not run link {self._key} yet: `replicator apply` has it read the "
                    "topology again"
                ) from None
            state, detail = str(link["state"]), str(link["detail"])
            holder = _CARRIER.search(detail) if state == "backfilling" else None
            if holder is not None and holder[0] != self.carrier and not has_ended(holder[0]):
                raise LinkTaken(
                    f"link {self._key} is being backfilled by {holder[0]}: wait for that backfill, or stop it"
                )
            return state, detail

    def plan(self, *, lanes: int, bytes_max: int, wait_ms: int) -> Plan:
        """Take the link over, if that is not done yet, and return a plan.

        If another backfill holds the link and its process, on this machine, has ended, release its hold first. Raises
        :class:`LinkTaken` if another one holds it, and the errors of :class:`DataPlane`.
        """
        with DataPlane(self._url) as worker:
            plans = LinkPlans(worker, self._key)
            ask: Callable[[], Plan] = lambda: plans.plan(  # noqa: E731
                self.carrier,
                kind="backfill",
                lanes=lanes,
                bytes_max=bytes_max,
                wait_ms=wait_ms,
                topics=self._topics,
            )
            try:
                return ask()
            except LinkTaken as error:
                holder = _CARRIER.search(str(error))
                if holder is None or not has_ended(holder[0]):
                    raise
                plans.release(holder[0])
                self._settled(worker)
                return ask()

    def _settled(self, worker: DataPlane) -> None:
        """Wait until the link carries itself again: a change of the carrier ends plans that are made meanwhile."""
        deadline = time.monotonic() + SETTLED_SECONDS_MAX
        while time.monotonic() < deadline:
            link = worker.call("GET", f"/replication/v1/links/{quote(self._key, safe='')}")
            if link["state"] not in ("backfilling", "connecting"):
                return
            time.sleep(SETTLED_LOOK_SECONDS)

    def done(self, plan: Plan, reports: list[dict[str, Any]]) -> None:
        with DataPlane(self._url) as worker, suppress(PipelineError):  # else it is planned again
            LinkPlans(worker, self._key).done(plan.id, reports)

    def failed(self, plan: Plan, error: str) -> None:
        with DataPlane(self._url) as worker, suppress(PipelineError):
            LinkPlans(worker, self._key).failed(plan.id, error)

    def release(self) -> None:
        with DataPlane(self._url) as worker:
            LinkPlans(worker, self._key).release(self.carrier)

    def progress(self) -> Amount:
        """Return the amount that is left. The call also shows that this backfill lives. Raises the errors of
        :class:`DataPlane`."""
        path = f"/pipeline/v1/links/{quote(self._key, safe='')}/progress"
        with DataPlane(self._url) as worker:
            answer = worker.call("POST", path, {"carrier": self.carrier, "topics": self._topics})
        return Amount(*(int(answer[name]) for name in Amount.__slots__))

    def stopped(self) -> tuple[str, dict[str, str]]:
        """Return the link's state, and the topics that it cannot continue, with reasons and gaps."""
        with DataPlane(self._url) as worker:
            answer = worker.call("GET", f"/replication/v1/links/{quote(self._key, safe='')}")
        gaps = {str(gap["topic"]): f"gap {gap['kind']}: {gap['detail']}" for gap in answer["gaps"]}
        said = f"{answer['state']}: {answer['detail']}" if answer["detail"] else str(answer["state"])
        return said, {**{str(topic): str(reason) for topic, reason in answer["halted"].items()}, **gaps}


def copies(
    cluster: Cluster,
    names: Collection[str] | None = None,
    earlier: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> Topics:
    """Return the state of topics in a cluster: all topics, or those in ``names``.

    ``earlier`` has positions of earlier lives by topic and origin. The answer says which of them the cluster lacks.
    Raise the errors of :class:`DataPlane`.
    """
    found: dict[str, Mapping[str, Any]] = {}
    with DataPlane(cluster.url) as worker:
        for batch in [None] if names is None else _batches(names, NAMED_MAX):
            asked = {name: earlier[name] for name in batch or () if name in earlier} if earlier else {}
            body: dict[str, Any] = {"earlier": asked} if batch is None else {"earlier": asked, "names": batch}
            found |= topics_by_name(worker.call("POST", "/failover/v1/topics", body))
    return found


def check_cluster(cluster: Cluster) -> None:
    """Check that the worker of ``cluster`` answers.

    Raises the errors of :class:`DataPlane`, and :class:`UnexpectedAnswer` if another cluster's worker answers."""
    with DataPlane(cluster.url) as worker:
        answering = worker.call("GET", "/failover/v1/state").get("cluster")
    if answering != cluster.name:
        raise UnexpectedAnswer(
            f"worker at {cluster.url} is of cluster {answering}, not {cluster.name}: correct its address in the "
            "topology"
        )


def ack_vectors(cluster: Cluster, topics: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return the exact state of the replicated subscriptions, by topic. Missing topics are left out."""

    def ask(topic: str) -> Mapping[str, Any] | None:
        with DataPlane(cluster.url) as worker:
            try:
                return worker.call("GET", "/replication/v1/ack-vectors", topic=topic)
            except UnexpectedAnswer as error:
                if error.code == "TopicNotFound":
                    return None
                raise

    names = list(topics)
    with ThreadPoolExecutor(max_workers=ASKED_AT_ONCE) as pool:
        return {topic: state for topic, state in zip(names, pool.map(ask, names), strict=True) if state is not None}


def tell(cluster: Cluster, topics: Sequence[str]) -> None:
    """Make the worker announce the whole state of every replicated subscription of these topics."""
    with DataPlane(cluster.url) as worker:
        for batch in _batches(topics, TOLD_MAX):
            worker.call("POST", "/replication/v1/ack-vectors/tell", {"topics": batch})


def _batches(names: Collection[str], size: int) -> Iterator[list[str]]:
    listed = list(names)
    for first in range(0, len(listed), size):
        yield listed[first : first + size]


def carrier_name() -> str:
    """Return the carrier name of this process. Other operators see it at a link that a backfill has."""
    started = psutil.Process().create_time()
    return f"process {os.getpid()} on {platform.node() or 'localhost'} since {_when(started)}"


def has_ended(carrier: str) -> bool:
    """Return whether the carrier was a process of this machine that has ended."""
    match = _CARRIER.fullmatch(carrier)
    if match is None or match[2] != (platform.node() or "localhost"):
        return False
    try:
        process = psutil.Process(int(match[1]))
        return process.status() == psutil.STATUS_ZOMBIE or _when(process.create_time()) != match[3]
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
