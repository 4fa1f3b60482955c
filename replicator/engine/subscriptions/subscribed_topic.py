"""Interface of a topic for its subscriptions, and for the part of the topic that creates them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from replicator.engine.admission import Admission
from replicator.engine.compaction.compaction import Compaction
from replicator.engine.layered_policies import LayeredPolicies
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.origins import Origins
from replicator.engine.log.topic_reading import TopicReading
from replicator.engine.log.writer import Writer
from replicator.engine.subscriptions.failover import FailoverRegistry
from replicator.engine.subscriptions.starting import Starting
from replicator.engine.topics.catalog_index import Namespace
from replicator.running.turns import FairScheduler
from replicator.tracing.tracing import Tracing


class SubscribedTopic(Protocol):
    """Interface of a topic for its subscriptions."""

    name: str
    cluster: str
    partition: int
    topic_id: int
    incarnation: int
    log: LogIndex
    origins: Origins
    starting: Starting
    loop: asyncio.AbstractEventLoop
    writer: Writer
    failover: FailoverRegistry
    admission: Admission
    dispatch_turns: FairScheduler
    namespace: Namespace
    policies: LayeredPolicies
    reading: TopicReading
    compaction: Compaction
    tracing: Tracing | None

    def check_there(self) -> None:
        """Raise an error if the topic is being deleted."""
