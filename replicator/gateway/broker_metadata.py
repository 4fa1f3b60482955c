"""What stands before an entry for clients that ask for a broker's own metadata of it, where the cluster tells that.

The index of an entry counts the messages of the topic in this cluster, from 0 on: that of the entry's last message,
as upstream has it, so that clients find those of a batch by counting back. Links and markers are no gaps in it, and
trimming changes none. The time is when the entry was stored by the cluster that published it.
"""

from __future__ import annotations

from replicator.engine.topic import Topic
from replicator.engine.types import Delivery
from replicator.protocol.commands_pb2 import BrokerEntryMetadata
from replicator.protocol.frames import encode_broker_metadata
from snapshots.position import BEFORE_ALL, Position


class BrokerMetadataWriter:
    """Of one consumer. Counts along with entries that follow each other, and looks up where others lie."""

    __slots__ = ("_following", "_messages_through", "_topic")

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._following = BEFORE_ALL
        """The position right after the entry before."""
        self._messages_through = 0

    def before(self, delivery: Delivery) -> bytes:
        """Empty for an entry that is only left in the compacted view: how many came before it is not known any more."""
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
