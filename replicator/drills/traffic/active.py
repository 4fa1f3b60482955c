"""The cluster where a drill's clients are to be, and the state that they share."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from replicator.client.errors import AlreadyClosed, ClusterFenced, ConnectError, ServiceUnitNotReady, Timeout
from replicator.drills.observations import Observations
from replicator.drills.traffic.clients import DrillClients

POLL_SECONDS: Final = 0.05

LOST: Final = (ConnectError, AlreadyClosed, Timeout, ServiceUnitNotReady, ClusterFenced)
"""Errors of a client whose cluster died, cannot be reached, or is fenced."""


class ActiveCluster:
    """The cluster where clients are to be. The operator moves it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._moved = asyncio.Condition()

    async def move(self, name: str) -> None:
        self.name = name
        async with self._moved:
            self._moved.notify_all()

    async def moved_from(self, name: str) -> None:
        """Wait until clients are to be elsewhere than at ``name``."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.name != name)


@dataclass(slots=True)
class Drill:
    """State that all parts of one drill share."""

    topics: tuple[str, ...]
    observations: Observations
    active: ActiveCluster
    clients: DrillClients
    random: random.Random
    finished: asyncio.Event
    """Set when consumers may stop."""
    watching_sync: bool = True
    """Whether acknowledgement states are polled; nothing is measured from them after the first failover."""

    @property
    def topic(self) -> str:
        """Return the first topic. Some systems have only this one."""
        return self.topics[0]
