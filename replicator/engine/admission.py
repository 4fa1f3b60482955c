"""What an engine takes of clients: the fence of a failover as topics see it, and the largest entry.

While a cluster is fenced, producers or consumers are refused with an error that names who serves them; what links copy
and workers write in markers goes on. The fence is one object for all topics of an engine, looked at by each publish, so
that it closes at once for all of them.

1. :meth:`Admission.fence` closes it: from its return on no publish reaches the writer's queue.
2. :mod:`replicator.engine.fencing` lets go of those that are connected. In a planned switch consumers may finish first:
   from :meth:`Admission.let_finish` on they get nothing more, and acknowledge what they hold.
3. The writer takes requests in order: what was queued before the fence is durable when a row that is put after it is.

Invariant 1 (DESIGN §3): a publish that was confirmed before the fence stays confirmed, and is copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from replicator.engine.errors import BlockCorrupt, EngineError, MessageTooLarge, NotAllowedError
from replicator.engine.log.cluster_names import encode_only, is_cluster
from replicator.engine.log.entry import MESSAGE_BYTES_MAX, METADATA_ROOM_BYTES

LOCAL: Final = "__local__"
"""How clients name no cluster but the one where they publish."""


class UseElsewhere(Protocol):
    """Interface that asks other clusters whether consumers use a subscription there."""

    async def check_unused(self, subscription: str, topics: Sequence[str]) -> None:
        """Raise :class:`SubscriptionBusy` if another cluster has consumers of ``subscription`` on one of ``topics``.

        A cluster that does not answer in time counts as having none.
        """


class Admission:
    """Why producers and consumers are refused; None while they are taken."""

    __slots__ = (
        "clients_elsewhere",
        "clusters",
        "consumers",
        "entry_bytes_max",
        "finishing",
        "message_bytes_max",
        "passed_on_by",
        "producers",
        "use_elsewhere",
    )

    def __init__(self, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self.message_bytes_max = message_bytes_max
        """Of a message's payload; what clients are told."""
        self.entry_bytes_max = message_bytes_max + METADATA_ROOM_BYTES
        """What a producer may publish. Links copy larger ones, which another cluster took."""
        self.clusters: Collection[str] = ()
        """Those of the topology; whoever runs links sets it."""
        self.passed_on_by: Callable[[str], Collection[str]] = lambda topic: ()
        """The clusters that pass on what is published to a topic here; whoever runs links sets it."""
        self.clients_elsewhere: EngineError | None = None
        """Set where this engine serves no clients at all, such as beside Apache Pulsar."""
        self.use_elsewhere: UseElsewhere | None = None
        """Asks other clusters before an unforced deletion of a subscription. The code that runs the worker sets it."""
        self.producers: EngineError | None = None
        self.consumers: EngineError | None = None
        self.finishing: asyncio.Event | None = None
        """While consumers finish; it is set when that is over, and no more here then."""

    def fence(self, producers: EngineError | None, consumers: EngineError | None) -> None:
        self.producers = producers
        self.consumers = consumers

    @property
    def dispatch_paused(self) -> bool:
        """Consumers that are connected get nothing more, and their acknowledgements are taken."""
        return self.finishing is not None

    def let_finish(self) -> asyncio.Event:
        """Pause dispatch until :meth:`finished`."""
        if self.finishing is None:
            self.finishing = asyncio.Event()
        return self.finishing

    def finished(self) -> None:
        """Consumers have finished, or the switch was given up."""
        if self.finishing is not None:
            self.finishing.set()
            self.finishing = None

    def check_entry(self, size_bytes: int) -> None:
        """Raises :class:`MessageTooLarge` for an entry that no producer may publish."""
        if size_bytes > self.entry_bytes_max:
            raise MessageTooLarge(
                f"entry of {size_bytes} bytes is over the cluster's limit of {self.entry_bytes_max} bytes "
                "(store.message_size_max of the topology): send it in chunks, or smaller batches"
            )

    def only(self, topic: str, named: frozenset[str]) -> frozenset[str]:
        """The clusters that may have a message which names those to which it is to be copied.

        Raises :class:`NotAllowedError` where a cluster that is not named passes the topic on. It would pass on that it
        lacks the message: to one that is to have it, where the message could come later and be missing, or to one that
        would take it for a loss.
        """
        # Others can be no clusters; what is not UTF-8 comes as bytes.
        only = frozenset(each for each in named if isinstance(each, str) and each != LOCAL and is_cluster(each))
        try:
            encode_only(only)
        except BlockCorrupt as error:
            raise NotAllowedError(f"{topic}: {error}") from None
        if passing := ", ".join(sorted(set(self.passed_on_by(topic)) - only)):
            raise NotAllowedError(
                f"{topic}: the message is not to be copied to {passing}, and {passing} would pass on to others what "
                f"links bring of this topic: name {passing} too, use a topic that is not forwarded, or send it without "
                "replication clusters"
            )
        return only

    def knows_of(self, named: frozenset[str]) -> bool:
        """Whether a message names clusters of the topology, or none but the one where it was published."""
        return LOCAL in named or not named.isdisjoint(self.clusters)

    def check_producer(self) -> None:
        """Raises why no producer is taken."""
        if self.clients_elsewhere is not None:
            raise self.clients_elsewhere.with_traceback(None)
        if self.producers is not None:
            raise self.producers.with_traceback(None)

    def check_consumer(self) -> None:
        """Raises why no consumer is taken."""
        if self.clients_elsewhere is not None:
            raise self.clients_elsewhere.with_traceback(None)
        if self.consumers is not None:
            raise self.consumers.with_traceback(None)
