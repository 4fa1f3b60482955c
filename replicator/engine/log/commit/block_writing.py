"""Base class of the parts of a transaction that write finished blocks, of this cluster or another."""

from __future__ import annotations

from typing import Any

from replicator.engine.log.commit.appending import LogAppender
from replicator.engine.log.commit.deduplicating import GroupDeduplication
from replicator.engine.log.requests import Committed


class BlockWriting:
    """Base of :class:`.copying.BlockCopies` and :class:`.reclaiming.Reclaims`."""

    __slots__ = ("_appender", "_cluster", "_committed", "_dbs", "_deduplication")

    def __init__(
        self,
        dbs: dict[str, Any],
        cluster: str,
        appender: LogAppender,
        deduplication: GroupDeduplication,
        committed: Committed,
    ) -> None:
        self._dbs = dbs
        self._cluster = cluster
        self._appender = appender
        self._deduplication = deduplication
        self._committed = committed
