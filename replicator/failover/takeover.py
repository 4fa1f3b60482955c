"""Writing a switch: the target takes over in the next epoch, and the other clusters are told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final

from replicator.failover.epochs import precedence
from replicator.failover.errors import FailoverError
from replicator.failover.peers import PATH, Peers
from replicator.failover.report import SwitchReport
from snapshots.markers import FailoverEpoch

WRITE_SECONDS_MAX: Final = 10.0
"""Shorter than the lease: a target that is silent for longer is asked by the source when the lease ends."""


class Takeover:
    """Takeover of the switch of ``report``, built upon the record ``base``."""

    def __init__(
        self,
        peers: Peers,
        clusters: Collection[str],
        base: FailoverEpoch,
        report: SwitchReport,
        *,
        keep_consumers: bool,
    ) -> None:
        self._peers = peers
        self._clusters = clusters
        self._report = report
        self.base = base
        self.keep_consumers = keep_consumers

    async def propose(self) -> Any:
        """Let the target take over. Return its answer: the record, and the source's messages that it has. Raise
        :class:`SwitchRefused` and :class:`ClusterUnreachable`.
        """
        body = {
            "kind": self._report.kind,
            "homes": list(self._report.homes),
            "expected": list(precedence(self.base)),
            "keep_consumers": self.keep_consumers,
        }
        return await self._peers.call(
            self._report.target, "POST", f"{PATH}/propose", body, seconds_max=WRITE_SECONDS_MAX
        )

    async def announce_all(self, record: FailoverEpoch) -> None:
        """Tell the others; a cluster that does not answer learns by link, poll or at its start."""
        report = self._report

        async def announce(cluster: str) -> None:
            try:
                await self._peers.announce(cluster, record)
            except FailoverError as error:
                report.announced[cluster] = f"not told yet ({error}); it learns when it starts, or by links and polls"
            else:
                report.announced[cluster] = f"knows epoch {record.epoch}"

        await asyncio.gather(*(announce(name) for name in self._clusters if name != report.target))
