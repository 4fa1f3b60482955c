"""Whether an engine takes clients: the fence of a failover, as topics see it.

While a cluster is fenced, producers or consumers are refused with an error that names who serves them; what links copy
and workers write in markers goes on. The fence is one object for all topics of an engine, looked at by each publish, so
that it closes at once for all of them.

1. :meth:`Admission.fence` closes it: from its return on no publish reaches the writer's queue.
2. :mod:`replicator.engine.fencing` lets go of those that are connected.
3. The writer takes requests in order: what was queued before the fence is durable when a row that is put after it is.

Invariant 1 (DESIGN §3): a publish that was confirmed before the fence stays confirmed, and is copied.
"""

from __future__ import annotations

from replicator.engine.errors import EngineError


class Admission:
    """Why producers and consumers are refused; None while they are taken."""

    __slots__ = ("consumers", "dispatch_paused", "producers")

    def __init__(self) -> None:
        self.producers: EngineError | None = None
        self.consumers: EngineError | None = None
        self.dispatch_paused = False
        """Consumers that are connected get nothing more, and their acknowledgements are taken."""

    def fence(self, producers: EngineError | None, consumers: EngineError | None) -> None:
        self.producers = producers
        self.consumers = consumers

    def check_producer(self) -> None:
        """Raises why no producer is taken."""
        if self.producers is not None:
            raise self.producers.with_traceback(None)

    def check_consumer(self) -> None:
        """Raises why no consumer is taken."""
        if self.consumers is not None:
            raise self.consumers.with_traceback(None)
