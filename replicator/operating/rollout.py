"""Comparison of a topology file with what workers run, and its rollout to all of them or to none.

Each worker reads its own file. A command sends only the digest of the topology to be used.

1. :func:`ask_workers` asks every worker of the file which topology it runs. Then it asks workers at further addresses
   that the answers name.
2. :class:`Rollout` compares the topologies with their paths resolved. Files of equal text in different folders name
   different directories. On another machine, a path under the file's folder counts as the same; on this machine it does
   not. The worker of a new cluster need not run yet: it reads the file when it starts. The worker of a cluster that is
   no longer in the file is not asked; the operator stops it.
3. :func:`carry_out` asks all workers to check the change (a dry run). Only if all agree are they asked to make it. A
   worker that crashes after that reads the file when it restarts; applying the file again does no harm.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Group, RenderableType
from rich.text import Text

from replicator.operating.json_types import RolloutAnswer
from replicator.running.connecting import is_of_this_machine, why_no_answer
from replicator.security.asking import worker_session, worker_url
from replicator.topology import Topology, TopologyError
from replicator.topology.diff import Change, diff_of_worker, digest, masked, moved, words
from replicator.topology.reader import parse_topology

ASK_SECONDS_MAX: Final = 3.0
"""Time limit of a worker's answer. From the next continent it takes a quarter of a second."""
RELOAD_SECONDS_MAX: Final = 60.0
"""Time limit of a reload. Links that are removed first finish what they are sending."""
ASKED_AT_ONCE_MAX: Final = 64
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""The largest answer: a topology file of the largest size, with JSON's escapes."""


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """Answer of one worker that was asked which topology it runs."""

    cluster: str
    address: str
    error: str | None = None
    """Why the worker did not answer, in words; None if it answered."""
    digest: str | None = None
    topology: Topology | None = None
    """The topology that it runs. None where it did not answer, or where this version cannot read the answer."""
    file: str | None = None
    """The file that it was started with, on its machine."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Topology file, compared with the topologies that the workers run."""

    topology: Topology
    workers: tuple[RunningWorker, ...]
    """Answers of the workers, one for each cluster of the topology, in the order of the file."""

    @property
    def digest(self) -> str:
        return digest(self.topology)

    @property
    def participants(self) -> tuple[RunningWorker, ...]:
        return tuple(worker for worker in self.workers if worker.error is None)

    @property
    def to_be_started(self) -> tuple[str, ...]:
        """Clusters that no running worker knows, and whose own workers do not answer."""
        known = {name for worker in self.participants if worker.topology for name in worker.topology.names}
        return tuple(worker.cluster for worker in self.workers if worker.error and worker.cluster not in known)

    @property
    def missing(self) -> tuple[RunningWorker, ...]:
        """Workers that should answer and do not."""
        starting = self.to_be_started if self.participants else ()
        return tuple(worker for worker in self.workers if worker.error and worker.cluster not in starting)

    @property
    def to_be_stopped(self) -> tuple[str, ...]:
        """Clusters that running workers know and the file does not."""
        known = (name for worker in self.participants if worker.topology for name in worker.topology.names)
        return tuple(dict.fromkeys(name for name in known if name not in self.topology.names))

    def changes_of(self, worker: RunningWorker) -> tuple[Change, ...]:
        """Return what the new file changes at one worker; empty if the topology that it runs is not known."""
        if worker.topology is None:
            return ()
        return diff_of_worker(worker.topology, masked(self.topology), worker.cluster)

    def changes(self) -> list[tuple[tuple[str, ...], tuple[Change, ...]]]:
        """Return the changes, grouped by workers that have the same changes. Workers that run the new file are left
        out."""
        groups: dict[tuple[str, ...], tuple[list[str], tuple[Change, ...]]] = {}
        for worker in self.participants:
            if changes := self.changes_of(worker):
                groups.setdefault(tuple(map(str, changes)), ([], changes))[0].append(worker.cluster)
        return [(tuple(names), changes) for names, changes in groups.values()]

    def is_up_to_date(self, worker: RunningWorker) -> bool:
        """Return whether a worker already runs the new file, also with the same resolved paths if it runs on this
        machine."""
        return worker.digest == self.digest and not self.changes_of(worker)

    @property
    def nothing_to_do(self) -> bool:
        """Return whether every worker that should answer does, and runs the topology."""
        return not self.missing and all(map(self.is_up_to_date, self.participants))

    def unsaved_changes(self, checked: Sequence[Outcome]) -> list[str]:
        """Return a line for each change that a worker agreed to make and that its own file does not have.

        A worker compares digests, which leave out the folders of files, and so cannot notice such a difference. A
        change that the worker named in its answer is in its file.
        """
        said = {outcome.cluster: outcome.changed for outcome in checked}
        return [
            f"{worker.cluster}: {change}: its worker reads another value in {worker.file or 'its own file'}; apply "
            "that file, or start the worker with this one"
            for worker in self.participants
            for change in self.changes_of(worker)
            if change.concerns(worker.cluster)
            and not change.in_digest
            and str(change) not in said.get(worker.cluster, ())
        ]

    def as_json(self) -> RolloutAnswer:
        return {
            "digest": self.digest,
            "running": {
                worker.cluster: {"digest": worker.digest, "same": self.is_up_to_date(worker), "error": worker.error}
                for worker in self.workers
            },
            "changes": [
                {"workers": list(names), "changes": [change.as_json() for change in changes]}
                for names, changes in self.changes()
            ],
            "to_be_started": list(self.to_be_started),
            "to_be_stopped": list(self.to_be_stopped),
        }

    def render(self) -> RenderableType:
        """Return the changes as text for people, one line for each."""
        lines: list[Text] = []
        groups = self.changes()
        for names, changes in groups:
            whose = "" if len(groups) == 1 and len(names) == len(self.participants) else f" for {', '.join(names)}"
            lines.append(Text(f"Changes{whose} against what runs:", style="bold"))
            lines += [Text(f"  {line}") for line in words(changes, self.topology.names)]
            restarts = sorted({cluster for change in changes for cluster in change.restarts})
            if restarts:
                lines.append(Text(f"  not under way: restart the worker of {', '.join(restarts)} with the new file"))
        if self.participants and not groups and all(worker.topology for worker in self.participants):
            lines.append(Text("Changes: none; the workers run it already."))
        lines += [
            Text(f"{worker.cluster}: runs a topology that this version cannot read")
            for worker in self.participants
            if worker.topology is None
        ]
        if self.participants and self.to_be_started:
            clusters = ", ".join(self.to_be_started)
            lines.append(Text(f"To be started: the worker of {clusters} (replicator worker, or SIGHUP for up)"))
        if self.to_be_stopped:
            lines.append(Text(f"To be stopped: the worker of {', '.join(self.to_be_stopped)}"))
        return Group(*lines)


async def ask_workers(topology: Topology) -> Rollout:
    """Ask every worker of the file which topology it runs; never raises for a worker."""
    async with _session(ASK_SECONDS_MAX) as session:
        file = topology.path or Path("topology.yaml")
        answers = await _ask_all(session, file, {cluster.name: cluster.address for cluster in topology.clusters})
        moved = {
            other.name: other.address
            for answer in answers.values()
            if answer.topology is not None
            for other in answer.topology.clusters
            if other.name in answers and answers[other.name].error and other.address != answers[other.name].address
        }
        for name, answer in (await _ask_all(session, file, moved)).items():
            if answer.error is None:
                answers[name] = answer
    return Rollout(topology, tuple(answers.values()))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answer of one worker that was asked to reload its file."""

    cluster: str
    changed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Reasons why the worker refuses; empty if it does not."""
    unavailable: bool = False
    """Whether the worker did not answer, so that it is not known whether it made the change."""


async def carry_out(rollout: Rollout, *, dry_run: bool) -> list[Outcome]:
    """Ask all workers that take part at once, to check or to change."""
    async with _session(RELOAD_SECONDS_MAX) as session:
        return await asyncio.gather(
            *(_reload(session, worker, rollout.digest, dry_run) for worker in rollout.participants)
        )


def _session(seconds: float) -> aiohttp.ClientSession:
    # trust_env stays off: a proxy's answer would say nothing of the worker.
    return worker_session(at_once_max=ASKED_AT_ONCE_MAX, timeout=aiohttp.ClientTimeout(total=seconds))


async def _ask_all(
    session: aiohttp.ClientSession, file: Path, addresses: Mapping[str, str]
) -> dict[str, RunningWorker]:
    asked = await asyncio.gather(*(_ask(session, file, name, address) for name, address in addresses.items()))
    return {worker.cluster: worker for worker in asked}


async def _ask(session: aiohttp.ClientSession, file: Path, cluster: str, address: str) -> RunningWorker:
    try:
        status, body = await _call(session, "GET", f"{worker_url(address)}/replication/v1/topology")
    except _NoAnswer as error:
        return RunningWorker(cluster, address, f"{address}: {error}")
    said, text = body.get("digest"), body.get("text")
    if status != 200 or not isinstance(said, str) or not isinstance(text, str):
        return RunningWorker(cluster, address, f"{address}: does not say which topology it runs: is it a worker?")
    if body.get("cluster") != cluster:
        return RunningWorker(cluster, address, f"{address}: serves {str(body.get('cluster'))[:80]!r}, not {cluster!r}")
    try:
        running = await asyncio.to_thread(_resolved, text, body.get("file"), file, address)
    except TopologyError:
        running = None
    return RunningWorker(cluster, address, None, said, running, body.get("file"))


def _resolved(text: str, theirs: object, ours: Path, address: str) -> Topology:
    """Return the topology that a worker runs, with its paths resolved so that they can be compared with ours.

    For a worker on this machine, paths are relative to the worker's own file. For a worker on another machine they are
    resolved as if its file lay in the folder of our file: folders there may have other names. Raises
    :class:`TopologyError`.
    """
    if not isinstance(theirs, str):
        return parse_topology(text, ours)
    running, folder = parse_topology(text, Path(theirs)), Path(theirs).parent
    if is_of_this_machine(address.rpartition(":")[0].strip("[]")) and folder.resolve() != ours.parent.resolve():
        return running
    return moved(running, folder, ours.absolute().parent)


async def _reload(session: aiohttp.ClientSession, worker: RunningWorker, expected: str, dry_run: bool) -> Outcome:
    url = f"{worker_url(worker.address)}/replication/v1/topology/reload"
    try:
        status, body = await _call(session, "POST", url, {"digest": expected, "dry_run": dry_run})
    except _NoAnswer as error:
        return Outcome(worker.cluster, problems=(f"{worker.address}: {error}",), unavailable=True)
    if status == 200:
        return Outcome(worker.cluster, changed=_texts(body.get("changed")))
    problems = _texts(body.get("problems")) or (str(body.get("message", f"HTTP status {status}")),)
    return Outcome(worker.cluster, problems=problems, unavailable=status >= 500)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


class _NoAnswer(Exception):
    """Text that says why a worker did not answer."""


async def _call(
    session: aiohttp.ClientSession, method: str, url: str, body: Mapping[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    try:
        async with session.request(method, url, json=body, allow_redirects=False) as response:
            raw = bytearray()
            async for piece in response.content.iter_any():
                raw += piece
                if len(raw) > ANSWER_BYTES_MAX:
                    raise _NoAnswer("its answer is too long for a worker's: correct its address in the topology")
            try:
                answer = json.loads(raw)
            except ValueError:
                answer = None
            return response.status, answer if isinstance(answer, dict) else {}
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _NoAnswer(why_no_answer(error)) from None


def problems_of(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a line for each reason why a worker refuses, with the worker's cluster."""
    return [f"{outcome.cluster}: {problem}" for outcome in outcomes for problem in outcome.problems]


def worst_status(outcomes: Sequence[Outcome]) -> int:
    """Return the exit status: 3 if a worker did not answer, else 2 if a worker refuses, else 0."""
    if any(outcome.unavailable for outcome in outcomes):
        return 3
    return 2 if any(outcome.problems for outcome in outcomes) else 0
