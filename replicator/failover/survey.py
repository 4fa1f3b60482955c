"""Answers of every cluster before a switch: its state, and the record that a switch builds upon."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from replicator.failover.epochs import FIRST, precedence, serving
from replicator.failover.errors import ClusterUnreachable, FailoverError, SwitchImpossible
from replicator.failover.peers import ASK_SECONDS_MAX, Peers, record_of
from snapshots.markers import FailoverEpoch

NEEDED_SECONDS_MAX: Final = 10.0
"""Longest wait for an answer without which nothing can be done. A busy worker may take some seconds."""


@dataclass(frozen=True, slots=True)
class Survey:
    """State of each cluster, or why it does not answer; ``base`` is the highest record of those that answer."""

    states: Mapping[str, dict[str, Any]]
    silent: Mapping[str, str]
    base: FailoverEpoch

    @classmethod
    async def of(cls, peers: Peers, clusters: Collection[str], needed: Collection[str] = ()) -> Survey:
        """Ask all ``clusters`` at once. Wait longer for those in ``needed``, because a switch needs their answers."""
        states: dict[str, dict[str, Any]] = {}
        silent: dict[str, str] = {}

        async def ask(cluster: str) -> None:
            try:
                seconds_max = NEEDED_SECONDS_MAX if cluster in needed else ASK_SECONDS_MAX
                states[cluster] = await peers.state(cluster, seconds_max=seconds_max)
            except FailoverError as error:
                silent[cluster] = str(error)

        await asyncio.gather(*map(ask, clusters))
        records = [record_of(name, state) for name, state in states.items()]
        return cls(states, silent, max(records, key=precedence, default=FIRST))

    def need(self, cluster: str, remedy: str = "") -> None:
        """Raise :class:`ClusterUnreachable` if the cluster does not answer."""
        if cluster in self.silent:
            raise ClusterUnreachable(f"the switch needs an answer from {cluster}: {self.silent[cluster]}{remedy}")

    def home_to_take_over(self, target: str, clusters: Collection[str]) -> str:
        """Return the only home that ``target`` does not serve, or the only one of those whose server does not
        answer.
        """
        candidates = [name for name in clusters if serving(self.base, name) != target]
        silent = [name for name in candidates if serving(self.base, name) in self.silent]
        for found in (candidates, silent):
            if len(found) == 1:
                return found[0]
        listed = ", ".join(candidates) or "none"
        raise SwitchImpossible(
            f"it is not clear whose clients {target} is to serve: give --for with the name of one of these clusters: "
            f"{listed}"
        )
