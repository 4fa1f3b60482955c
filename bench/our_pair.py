"""Two workers of ours, linked by the embedded engine, for group ``peers``: as in group ``copy``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.arrival import Arrival
from bench.cases import Case
from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.disk import settle
from bench.lag import TOPIC, Lag, lag_between
from bench.network import copy_once, publish_rates
from bench.pairs import Pair, System


class OurPair:
    """:class:`bench.pairs.Pair` of two workers of ours, linked by the embedded engine."""

    def __init__(self, clusters: TwoClusters) -> None:
        self._clusters = clusters

    def pids(self) -> Iterable[int]:
        return self._clusters.pids()

    async def fill(self, case: Case) -> None:
        await publish_rates(self._clusters.client_url(SOURCE), case)

    async def copy(self, case: Case) -> Arrival:
        await settle()
        return await copy_once(self._clusters, case)

    async def lag(self) -> Lag:
        return await lag_between(self._clusters.client_url(SOURCE), self._clusters.client_url(DESTINATION), TOPIC)


@asynccontextmanager
async def _started(directory: Path) -> AsyncIterator[Pair]:
    async with TwoClusters(directory) as clusters:
        await clusters.start(SOURCE)
        yield OurPair(clusters)


OURS: Final = System(
    "ours",
    "replicator, embedded engine",
    "synced in both clusters: each group commit",
    lambda: None,
    _started,
    ours=True,
)
