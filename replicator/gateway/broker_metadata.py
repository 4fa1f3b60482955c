"""Broker metadata before an entry, for clients that ask for it, if the cluster gives it.

The index counts the messages of the topic in this cluster, from 0 on. As in Apache Pulsar, an entry has the index of
its last message: clients count back to the others of a batch. Links and markers leave no gaps in it, and trimming
changes no index. The time is when the entry was stored by the cluster that published it.
"""

from __future__ import annotations

from replicator.engine.topic import Topic
from replicator.engine.types import Delivery
from replicator.protocol.commands_pb2 import BrokerEntryMetadata
from replicator.protocol.frames import encode_broker_metadata
from snapshots.position import BEFORE_ALL, Position


class BrokerMetadataWriter:
    """Writer of broker metadata for one consumer. For successive entries it counts along; for others it looks the index
    up.
    """

    __slots__ = ("_following", "_messages_through", "_topic")

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._following = BEFORE_ALL
        """The position right after the entry before."""
        self._messages_through = 0

    def before(self, delivery: Delivery) -> bytes:
        """Return the metadata for an entry; empty if it is left in the compacted view only, because the number of
        messages before it is not known any more.
        """
        topic, position = self._topic, delivery.position
        if position not in topic.log:
            return b""
        if position == self._following:
            self._messages_through += delivery.batch_size
        else:
            self._messages_through = topic.reading.messages_through(position)
        self._following = Position(position.ledger, position.entry + 1)
        stored_at_ms = topic.reading.publish_time_ms(position)
        return encode_broker_metadata(
            BrokerEntryMetadata(broker_timestamp=stored_at_ms, index=self._messages_through - 1)
        )
