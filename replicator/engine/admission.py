"""Admission of clients to an engine: the fence of a failover, and the largest entry.

While a cluster is fenced, producers or consumers are refused with an error that names the cluster that serves them.
Links go on copying, and workers go on writing markers. The fence is one object for all topics of an engine. Each
publish checks it, so that it closes for all topics at once.

1. :meth:`Admission.fence` closes it: once it has returned, no publish reaches the writer's queue.
2. :mod:`replicator.engine.fencing` disconnects clients. In a planned switch consumers may finish first: from
   :meth:`Admission.pause_dispatch` on they get nothing more, and acknowledge the messages that they hold.
3. The writer takes requests in order. So when a row that is put after the fence is durable, so are earlier requests.

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
"""Name by which clients restrict a message to the cluster where they publish it."""


class RemoteUse(Protocol):
    """Interface that asks other clusters whether consumers use a subscription there."""

    async def check_unused(self, subscription: str, topics: Sequence[str]) -> None:
        """Raise :class:`SubscriptionBusy` if another cluster has consumers of ``subscription`` on one of ``topics``.

        A cluster that does not answer in time counts as having none.
        """


class Admission:
    """Errors with which producers and consumers are refused; None while they are taken."""

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
        """Limit of a message's payload in bytes, which clients are told."""
        self.entry_bytes_max = message_bytes_max + METADATA_ROOM_BYTES
        """Limit of the bytes of an entry that a producer may publish. Links copy larger ones that another cluster
        took."""
        self.clusters: Collection[str] = ()
        """Clusters of the topology. The code that runs links sets it."""
        self.passed_on_by: Callable[[str], Collection[str]] = lambda topic: ()
        """Function that returns the clusters to which links pass on messages of a topic from here. The code that runs
        links sets it."""
        self.clients_elsewhere: EngineError | None = None
        """Error for all clients if this engine serves none, such as beside Apache Pulsar."""
        self.use_elsewhere: RemoteUse | None = None
        """Asks other clusters before an unforced deletion of a subscription. The code that runs the worker sets it."""
        self.producers: EngineError | None = None
        self.consumers: EngineError | None = None
        self.finishing: asyncio.Event | None = None
        """Event that exists while consumers finish. It is set, and removed, when they have finished."""

    def fence(self, producers: EngineError | None, consumers: EngineError | None) -> None:
        self.producers = producers
        self.consumers = consumers

    @property
    def dispatch_paused(self) -> bool:
        """Whether connected consumers get nothing more, while their acknowledgements are still taken."""
        return self.finishing is not None

    def pause_dispatch(self) -> asyncio.Event:
        """Pause dispatch until :meth:`finished`."""
        if self.finishing is None:
            self.finishing = asyncio.Event()
        return self.finishing

    def finished(self) -> None:
        """End the pause of dispatch, because consumers have finished, or the switch was given up."""
        if self.finishing is not None:
            self.finishing.set()
            self.finishing = None

    def check_entry(self, size_bytes: int) -> None:
        """Raise :class:`MessageTooLarge` for an entry that no producer may publish."""
        if size_bytes > self.entry_bytes_max:
            raise MessageTooLarge(
                f"entry of {size_bytes} bytes is over the cluster's limit of {self.entry_bytes_max} bytes "
                "(store.message_size_max of the topology): send it in chunks, or smaller batches"
            )

    def only(self, topic: str, named: frozenset[str]) -> frozenset[str]:
        """Return the clusters that may have a message, from the clusters that the message names.

        Raises :class:`NotAllowedError` if a cluster that is not named passes the topic on. It would tell the next
        cluster that it lacks the message. That cluster might be named, and would then miss a message that comes later,
        or would take it for a loss.
        """
        # Others can be no clusters; what is not UTF-8 comes as bytes.
        only = frozenset(each for each in named if isinstance(each, str) and each != LOCAL and is_cluster(each))
        try:
            encode_only(only)
        except BlockCorrupt as error:
            raise NotAllowedError(f"{topic}: {error}") from None
        if forwarders := ", ".join(sorted(set(self.passed_on_by(topic)) - only)):
            raise NotAllowedError(
                f"{topic}: the message's list of replication clusters lacks {forwarders}, and a cluster that forwards "
                f"this topic to others has to get all its messages: add {forwarders} to the list, use a topic that is "
                "not forwarded, or send the message without such a list"
            )
        return only

    def knows_of(self, named: frozenset[str]) -> bool:
        """Return whether a message names a cluster of the topology, or only the cluster where it was published."""
        return LOCAL in named or not named.isdisjoint(self.clusters)

    def check_producer(self) -> None:
        """Raise an error if no producer is taken, which says why."""
        if self.clients_elsewhere is not None:
            raise self.clients_elsewhere.with_traceback(None)
        if self.producers is not None:
            raise self.producers.with_traceback(None)

    def check_consumer(self) -> None:
        """Raise an error if no consumer is taken, which says why."""
        if self.clients_elsewhere is not None:
            raise self.clients_elsewhere.with_traceback(None)
        if self.consumers is not None:
            raise self.consumers.with_traceback(None)
