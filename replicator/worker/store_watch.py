"""Watch of a running worker: asks other clusters again and again whether its store is still the newest.

A cluster that did not answer at the start may know a newer store. A newer store may also have been started since, such
as one that was restored with the same topology. Then this worker must not serve any more, and ends itself. In turn, a
worker announces its store to clusters that know an earlier one. These ask the worker at this cluster's configured
address which store it has. If it has that store, a worker on the earlier one ends.

Each answer also tells the newest failover epoch that the other cluster knows. A cluster that takes back its messages
tells it in no other way, and that can last for hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from replicator.backup.topic_lives import answer_later, unasked
from replicator.engine.engine import Engine
from replicator.engine.restored import MARK, restored_mark
from replicator.failover.epochs import from_json
from replicator.running.supervisor import Supervisor
from replicator.topology import Topology
from replicator.worker.asking_peers import announce_later, ask_all
from replicator.worker.start_decision import older_store
from replicator.worker.store_start import START, Started
from snapshots.markers import FailoverEpoch

ASK_SECONDS: Final = 5.0
"""Pause between two rounds of questions."""
ANSWER_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class StoreWatch:
    """The watch of one worker. ``replaced`` is set when another store has taken the place of the worker's store.

    ``adopt`` is called with each failover epoch that another cluster tells.
    """

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        started: Started,
        supervisor: Supervisor,
        adopt: Callable[[FailoverEpoch], None],
        *,
        seconds: float = ASK_SECONDS,
    ) -> None:
        self._engine = engine
        self._started = started
        self._adopt = adopt
        self._unasked = dict(started.unasked)
        """Peers that did not answer since the start, each with the reason."""
        self._answered = False
        self._seconds = seconds
        self.replaced = asyncio.Event()
        self.reason = ""
        """Why the worker must end, in words; empty while its store is the newest."""
        self._peers: dict[str, str] = {}
        self.change(topology)
        self._task = supervisor.task("store watch", "asks whether the store is the newest", self._run)

    def change(self, topology: Topology) -> None:
        """Ask the clusters of ``topology`` from now on."""
        own = self._engine.cluster
        self._place = str(topology.cluster(own).data)
        self._peers = {each.name: each.address for each in topology.clusters if each.name != own}
        self._unasked = {name: why for name, why in self._unasked.items() if name in self._peers}

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    def status(self) -> dict[str, Any]:
        """Return how the worker started, which clusters could not be asked since, and what the first start on the store
        found to be lost."""
        row: Mapping[str, Any] = self._engine.store.meta(START) or {}
        return {
            "state": "replaced" if self.reason else "serving",
            "how": self._started.how.value,
            "database": self._started.index.value,
            "first_at_ms": row.get("at_ms"),
            "lost": list(row.get("lost", ())),
            "topics_taken_back": row.get("topics_taken_back", 0),
            "unasked": dict(self._unasked),
            "nobody_asked": self._started.nobody_asked and not self._answered,
        }

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._seconds)

    async def look(self) -> None:
        """Ask all peers once."""
        answers, silent = await ask_all(
            self._peers, self._engine.cluster, seconds=ANSWER_SECONDS, new=False, counted=False
        )
        self._answered = self._answered or bool(answers)
        self._unasked = {name: silent.get(name, why) for name, why in self._unasked.items() if name not in answers}
        for answer in answers.values():
            self._adopt(from_json(dict(answer.record)))
        own = self._engine.origin_stores.line
        reason = older_store(self._engine.cluster, self._place, own, answers)
        if reason is not None and not self.reason:
            self.reason = reason
            log.error("another store took the place of this one", cluster=self._engine.cluster, reason=reason)
            self.replaced.set()
        for name, answer in answers.items():
            address, newest = self._peers.get(name), answer.newest
            if address is not None and newest is not None and own.is_later(own.store, newest.line.store):
                await announce_later(address, self._engine.cluster, own)
        await self._take_back_remarks(answers)  # last, because a full store does not take it

    async def _take_back_remarks(self, answered: Collection[str]) -> None:
        """Take back the remark that a reclaim did not ask these clusters. Links name what only such a cluster has."""
        mark, own = restored_mark(self._engine.store), self._engine.cluster
        remarks = {name: unasked(name, own) for name in answered}
        asked = {} if mark is None else {name: text for name, text in remarks.items() if text in mark.lost}
        if not asked:
            return
        peers = {name: self._peers[name] for name in asked if name in self._peers}
        counted, _ = await ask_all(peers, own, seconds=ANSWER_SECONDS, new=False, counted=True)
        mark = restored_mark(self._engine.store)
        if mark is None or not counted:
            return
        instead = {asked[name]: answer_later(name, own) if answer.messages else "" for name, answer in counted.items()}
        lost = tuple(text for each in mark.lost if (text := instead.get(each, each)))
        await self._engine.remember(MARK, replace(mark, lost=lost).as_json())
