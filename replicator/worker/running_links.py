"""The links that leave one cluster, as they run: started, replaced and taken away as the topology says.

A link is replaced when anything about it differs that is decided when it is made: its route (its own fields, what the
links beside it carry, the origins that it brings) or its destination's address. The new one asks the
destination what it has and goes on from there (invariant 2), and between the two nothing is trimmed: the old one's hold
on the logs ends in the same turn of the event loop in which the new one's begins.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from replicator.api.linked_sources import IncomingLink
from replicator.engine.engine import Engine
from replicator.links.gap_ending import LinkIndex
from replicator.links.link import Link
from replicator.links.planner import NOBODY_ASKED, carrier_name
from replicator.links.route import Route
from replicator.operating.start_checks import RUNS
from replicator.peering.runs import EARLIER_MAX, Run, RunVerdict
from replicator.topology import SPARK, Topology
from replicator.topology.paths import passed_on_by

_REFUSED: Final = (RunVerdict.TWIN, RunVerdict.DISMISSED)


def _shown(run: Run) -> dict[str, Any]:
    return {"id": run.id, "host": run.host, "started_at_ms": run.started_at_ms}


def incoming(topology: Topology, cluster: str) -> list[IncomingLink]:
    """Return the links that lead to ``cluster``, each with the origins that it may bring."""
    return [IncomingLink(link.source, link.name, topology.origins_over(link)) for link in topology.links_to(cluster)]


async def begin_run(engine: Engine) -> Run:
    """Return a new run: this start of the worker, with the earlier runs of the store. Store it before anything is
    announced."""
    earlier = [str(each) for each in engine.store.meta(RUNS) or ()]
    run = Run(uuid.uuid4().hex, tuple(earlier[:EARLIER_MAX]), socket.gethostname(), engine.started_at_ms)
    await engine.remember(RUNS, [run.id, *run.earlier][:EARLIER_MAX])
    return run


class RunningLinks:
    """Running links that leave ``engine``'s cluster.

    ``index`` is told how far the links' topics are copied. ``on_lost_copy`` is called with a topic whose copy at a
    destination shrank. ``run``, if given, is announced to destinations.
    """

    def __init__(
        self,
        engine: Engine,
        index: LinkIndex | None = None,
        on_lost_copy: Callable[[str], None] | None = None,
        *,
        run: Run | None = None,
    ) -> None:
        self.run = run or Run("")
        self._engine = engine
        self._index = index
        self._on_lost_copy = on_lost_copy
        self._running: dict[str, Link] = {}
        self._waits_for = NOBODY_ASKED
        self._topology = Topology((), ())
        engine.admission.passed_on_by = self.passed_on_by

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._running.values()))

    def find(self, key: str) -> Link | None:
        """Return the running link ``key``, such as ``A>B`` or ``A>B#name``; None if there is none."""
        return self._running.get(key)

    def run_status(self) -> dict[str, Any]:
        """Return this worker's run, and the other runs of its store that destinations reported: their twins.

        Each twin has the destination and the link that reported it, and whether the destination serves it.
        """
        twins = []
        for link in self:
            if (answer := link.run_answer) is None:
                continue
            others = {each.id: each for each in answer.twins if each.id != self.run.id}
            if answer.served is not None and answer.served.id != self.run.id and answer.standing in _REFUSED:
                others[answer.served.id] = answer.served
            for each in others.values():
                served = answer.served is not None and each.id == answer.served.id
                twins.append({"peer": link.to, "link": link.key, "served": served, **_shown(each)})
        return {**_shown(self.run), "twins": twins}

    def passed_on_by(self, topic: str) -> frozenset[str]:
        """Return the clusters that pass on messages of ``topic`` that are published here."""
        own, topology = self._engine.cluster, self._topology
        carrying = (link.route.link for link in self if link.carries(topic))  # it also asks the namespace's policy
        others = (each for each in topology.links if each.source != own and topology.carries(each, topic))
        return passed_on_by(own, (*carrying, *others))

    async def change(self, topology: Topology) -> None:
        """Run the links of ``topology`` from now on. Links that did not change go on undisturbed."""
        wanted = {
            link.key: (Route.of(topology, link), topology.cluster(link.destination).address)
            for link in topology.links_from(self._engine.cluster)
        }
        self._topology = topology
        self._engine.admission.clusters = frozenset(each.name for each in topology.clusters)
        ending = {key: link for key, link in self._running.items() if wanted.get(key) != (link.route, link.address)}
        await asyncio.gather(*(link.stop() for link in ending.values()))
        for key, link in ending.items():  # no await from here on: see above
            link.detach()
            del self._running[key]
            if self._index is not None:
                self._index.link_gone(key)
        before = self._running
        self._running = {}
        for key, (route, address) in wanted.items():
            self._running[key] = before.get(key) or self._start(route, address)

    async def stop(self) -> None:
        """Stop all links. Messages that they keep from retention stay kept: they go on when the worker is back."""
        await asyncio.gather(*(link.stop() for link in self))

    @property
    def carried_by_spark(self) -> int:
        """Number of links that Spark must carry."""
        return sum(link.route.engine == SPARK for link in self)

    def driver_ended(self, pid: int) -> None:
        """Release the links of a Spark driver that has ended. They wait for the next driver."""
        for link in self:
            holder = link.planner.carriers.holder
            if holder is not None and holder.startswith(carrier_name(pid)):
                link.planner.release(holder)

    def waits_for(self, what: str) -> None:
        """Set the reason that links show while no carrier has asked for them, such as why there is no driver."""
        self._waits_for = what
        for link in self:
            link.planner.waits_for(what)

    def pauses_put_back(self) -> None:
        """Let each link pause or go on as the store says, after settings were put back."""
        for link in self:
            link.pause_put_back()

    def opened(self, source: str) -> None:
        """Let the link to ``source`` try again at once, since the link from there has opened a stream."""
        for link in self:
            if link.to == source:
                link.nudge()

    def _start(self, route: Route, address: str) -> Link:
        link = Link(
            self._engine,
            route.link.destination,
            address,
            route=route,
            index=self._index,
            on_lost_copy=self._on_lost_copy,
            run=self.run if self.run.id else None,
        )
        link.planner.waits_for(self._waits_for)
        link.update_index()  # an index that forgot the one before it knows nothing of topics that do not move
        link.start()
        return link
