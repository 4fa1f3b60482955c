"""The replicator itself under drill: its workers on a stage (:mod:`replicator.drills.stage`), asked over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import aiohttp

from replicator import __version__
from replicator.drills.errors import DrillError
from replicator.drills.scenarios.cast import Cast
from replicator.drills.scenarios.settling import unsettled_work
from replicator.drills.stage import Stage
from replicator.drills.systems.seen import undelivered
from replicator.drills.systems.system import Failover, Findings, StepTimedOut, Tools
from replicator.drills.traffic.ack_watcher import AckWatcher
from replicator.drills.traffic.active import ActiveCluster, Drill
from replicator.drills.traffic.clients import DrillClients
from replicator.drills.traffic.making import make_clients
from replicator.drills.traffic.tail_reader import TailReader
from replicator.failover.peers import Peers
from replicator.failover.rules import differences
from replicator.failover.switch import Switch
from replicator.index.drill_reports import EXACT
from replicator.operating.plan import ask_rules
from replicator.operating.processes import exit_reason
from replicator.operating.status import fetch
from replicator.running.connecting import why_no_answer
from replicator.security.asking import worker_session
from replicator.topology import SPARK, Topology
from snapshots.position import BEFORE_ALL, Position

NAME: Final = "replicator"
FIRST_MESSAGES: Final = 100
"""Messages that are copied and acknowledged everywhere before a drill whose clusters start slowly is measured."""
POLL_SECONDS: Final = 0.1
HIGH_WATER_TRIES: Final = 20
"""Most readings of a high-water mark until it no longer moves: frames from before the cut are still being read."""
HIGH_WATER_SECONDS_MAX: Final = 60.0
"""Longest wait for a high-water mark, on a machine that is busy with the drill. No measure includes this time."""
ANSWER_SECONDS_MAX: Final = 5.0
VERIFY_SECONDS_MAX: Final = 600.0
COUNTED: Final = ("mappings", "updates_sent", "updates_applied")
UPDATE_MARKER: Final = "subscription_update"


class OwnSystem:
    """See :class:`~replicator.drills.systems.system.System`."""

    lacks: ClassVar[tuple[str, ...]] = ()
    """Fields of the report for which this system has nothing."""

    def __init__(self, stage: Stage, cast: Cast, topics: tuple[str, ...], client: str, out_dir: Path) -> None:
        self._stage = stage
        self._topology = stage.topology
        self._client = client
        self._out_dir = out_dir
        self.cast = cast
        self.topics = topics
        self.clusters: tuple[str, ...] = stage.topology.names
        self.first_messages = FIRST_MESSAGES if self._starts_slowly() else 0
        self.links = tuple(dict.fromkeys((link.source, link.destination) for link in stage.topology.links))
        self.running: Mapping[str, asyncio.Event] = stage.workers.running
        self.kill = stage.workers.kill
        self.start_again = stage.workers.start_again
        self.tools = Tools(
            _failover(stage.topology), stage.faults, stage.databases, stage.workers.lose_disk, self._named_lost
        )

    def _starts_slowly(self) -> bool:
        """Return whether the first messages may take seconds to be copied, unlike later ones.

        Spark compiles its code while it copies the first batches.
        """
        return any(self._topology.engine_of(link) == SPARK for link in self._topology.links)

    def clients(self, active: ActiveCluster) -> DrillClients:
        return make_clients(
            self._client, self._topology, active, self._out_dir, self._stage.client_access, topics=len(self.topics)
        )

    def watchers(self, drill: Drill) -> Sequence[Coroutine[Any, Any, None]]:
        urls = {cluster.name: cluster.pulsar_url for cluster in self._topology.clusters}
        return [
            watcher.run()
            for name in self.cast.pair
            for watcher in (
                TailReader(drill, name, urls[name], self.running[name], self._stage.client_access),
                AckWatcher(drill, name, self._topology.cluster(name).url, self.running[name]),
            )
        ]

    def background_work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        for name in self.clusters:
            yield f"the watch over {name}'s worker", self._stage.workers.watch(name)
        if self._stage.secrets is not None:
            yield "the exchange of certificates", self._stage.secrets.exchange(self._topology)

    async def _named_lost(self, name: str) -> Sequence[Position]:
        """Return, for each topic, the position after which the status of ``name`` says that all is lost.

        The status names no position if nothing of the topic came back: all of it is lost.
        """
        async with _session(HIGH_WATER_SECONDS_MAX) as session:
            status = await fetch(session, self._topology.cluster(name).address)
        if "topics" not in status:
            raise StepTimedOut(f"the worker of {name} does not say what it lost: {status.get('error')}")
        named = {row["name"]: row.get("taken_back") for row in status["topics"]}
        found = [named.get(topic) for topic in self.topics]
        return [Position.parse(upto) if upto else BEFORE_ALL for upto in found]

    async def high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        params = {"origin": self._topology.origin_of_clients(origin)}
        if len(self.topics) == 1:  # else all of the cluster's are asked for, at one moment and in a short request
            params["topic"] = self.topics[0]
        url = f"{self._topology.cluster(name).url}/replication/v1/high-water"
        try:
            async with (
                _session(HIGH_WATER_SECONDS_MAX) as session,
                session.get(url, params=params) as response,
            ):
                rows: Mapping[str, Any] = (await response.json())["topics"]
        except TimeoutError:
            raise StepTimedOut(
                f"the worker of {name} did not say in {HIGH_WATER_SECONDS_MAX:.0f} s which messages it has; see the "
                "workers' logs in the drill's directory"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise StepTimedOut(
                f"the worker of {name} did not say which messages it has: {why_no_answer(error, '')}; see the workers' "
                "logs in the drill's directory"
            ) from None
        found = [rows.get(topic) for topic in self.topics]
        return [Position.parse(row["position"]) if row else BEFORE_ALL for row in found]

    async def last_high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        before = await self.high_waters(drill, name, origin=origin)
        for _ in range(HIGH_WATER_TRIES):
            await asyncio.sleep(POLL_SECONDS)
            now = await self.high_waters(drill, name, origin=origin)
            if now == before:
                break
            before = now
        return before

    async def counters(self, name: str) -> Mapping[str, int]:
        async with _session() as session:
            found = (await fetch(session, self._topology.cluster(name).address)).get("counters", {})
        return {counter: found[counter] for counter in COUNTED if counter in found}

    async def unmet_start_condition(self, drill: Drill) -> str | None:
        return undelivered(drill.observations, drill.active.name) or await self.unsettled_work(drill)

    async def unsettled_work(self, drill: Drill) -> str | None:
        return unsettled_work(
            self._topology,
            self.topics,
            [each.name for each in drill.observations.subscriptions],
            drill.active.name,
            await self._statuses(),
            databases=self._stage.databases is not None,
        )

    async def findings(self) -> Findings:
        statuses = await self._statuses()
        mappings = await self._count_mappings()
        differing = await self._differences()
        verified = await self._verified()
        topology = self._topology
        return Findings(
            system=NAME,
            engine=" and ".join(sorted({topology.engine_of(link) for link in topology.links})) or "none",
            sync=getattr(topology.sync, "mode", EXACT),
            lacks=self.lacks,
            verify=verified,
            snapshot_mappings=mappings,
            subscription_updates=None if verified is None else _updates(verified),
            stores={name: _store_of(status) for name, status in statuses.items()},
            configuration=_configuration(topology),
            more={
                "differences": differing,
                "connections": {name: status["clients"]["accepted"] for name, status in statuses.items()},
                "databases": {name: status["database"]["state"] for name, status in statuses.items()},
                "worker_tracebacks": self._stage.workers.tracebacks(),
                **self._more(),
            },
        )

    async def _statuses(self) -> dict[str, dict[str, Any]]:
        async with _session() as session:
            return {each.name: await fetch(session, each.address) for each in self._topology.clusters}

    async def _count_mappings(self) -> int:
        """Return how many snapshot mappings the Postgres servers of all clusters hold, without unreachable ones."""
        total = 0
        async with worker_session(timeout=aiohttp.ClientTimeout(total=2 * ANSWER_SECONDS_MAX)) as session:
            for cluster in self._topology.clusters:
                url = f"{cluster.url}/replication/v1/mappings"
                for topic in self.topics:
                    async with session.get(url, params={"topic": topic}) as response:
                        total += len((await response.json()).get("mappings", ()))
        return total

    async def _differences(self) -> list[str]:
        """Return the differences in permissions and policies that clients find after a switch of the pair."""
        rules = await ask_rules(self._topology)
        primary, secondary = self.cast.pair
        if silent := [name for name in (primary, secondary) if name not in rules]:
            return [f"{' and '.join(silent)} did not report permissions and policies: nothing was compared"]
        return differences(rules[primary], rules[secondary])

    async def _verified(self) -> dict[str, Any] | None:
        """Return the report of ``verify``."""
        return await asyncio.to_thread(self._verify)

    def _more(self) -> dict[str, Any]:
        """Return fields of the report that only this kind of clusters has."""
        return {}

    def _verify(self) -> dict[str, Any]:
        """Run ``replicator verify`` as a user would, and return its report. Its log goes to verify.log."""
        file = str(self._stage.topology_file)
        command = [sys.executable, "-m", "replicator.cli", "verify", "--file", file]
        command += [part for topic in self.topics for part in ("--topic", topic)]
        with (self._out_dir / "verify.log").open("wb") as log:
            done = subprocess.run(
                [*command, "--output", "json"],
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=VERIFY_SECONDS_MAX,
                check=False,
            )
        if done.returncode not in (0, 1):
            raise DrillError(f"`replicator verify` {exit_reason(done.returncode)}; see {self._out_dir / 'verify.log'}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report


def _failover(topology: Topology) -> Failover:
    """Return a function that runs ``replicator failover`` or ``failback``, as an operator would."""

    async def fail_over(source: str, to: str, planned: bool, back: bool) -> dict[str, Any]:
        async with Peers({cluster.name: cluster.address for cluster in topology.clusters}) as peers:
            switch = Switch(topology, peers)
            report = await (switch.failback(to) if back else switch.failover(source, to, planned=planned))
        if report.outcome != "done":
            raise DrillError(f"the failover from {source} to {to} was {report.outcome}: {report.reason}")
        return dict(report.as_json())

    return fail_over


def _store_of(status: Mapping[str, Any]) -> dict[str, Any]:
    restored = status.get("restored") or {}
    return {
        "state": (status.get("start") or {}).get("state", "serving"),
        "named_losses": list(restored.get("lost", ())),
        "nobody_had": list((status.get("start") or {}).get("lost", ())),
        "reclaimed_messages": restored.get("reclaimed_messages", 0),
    }


def _updates(verified: dict[str, Any]) -> int:
    """Return how many update markers arrived everywhere.

    Each is written in one cluster and copied to the other, so the larger count is the right one.
    """
    return max((counts["markers"].get(UPDATE_MARKER, 0) for counts in verified["clusters"].values()), default=0)


def _configuration(topology: Topology) -> dict[str, dict[str, str]]:
    return {
        "versions": {"replicator": __version__, "python": sys.version.split()[0]},
        "sync": {name: str(value) for name, value in topology.sync.model_dump().items()},
    }


def _session(seconds: float = ANSWER_SECONDS_MAX) -> aiohttp.ClientSession:
    return worker_session(timeout=aiohttp.ClientTimeout(total=seconds))
