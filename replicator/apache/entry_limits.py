"""The limits that brokers' policies set to one entry of a topic, and which of them an entry exceeds. Pure.

A broker refuses an entry that exceeds one, and takes those that are under way behind it. So the bridge compares before
it sends. Brokers compare in the same way: the size is that of metadata and payload together, and the delay counts from
the publish time.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicator.engine.errors import EngineError
from replicator.engine.log.entry import decode_entry


@dataclass(frozen=True, slots=True)
class EntryLimits:
    """Limits that the brokers' policies set for each entry of one topic: its size, and the delay of its delivery.

    A limit of 0 means that there is none, or that it is not known.
    """

    bytes_max: int = 0
    delay_ms_max: int = 0

    def exceeded(self, entry: bytes, delay_ms: int, broker_bytes_max: int) -> str:
        """Return which limit ``entry`` exceeds, and what lets it in; empty if it exceeds none.

        ``broker_bytes_max`` is the size that the broker takes on its connection.
        """
        if len(entry) > broker_bytes_max:
            return f"the brokers take {broker_bytes_max} bytes at most; raise their maxMessageSize"
        if 0 < self.bytes_max < len(entry) and not _is_chunk(entry):
            return (
                f"the topic's policy maxMessageSize is {self.bytes_max}; raise it to {len(entry)} or more, or remove it"
            )
        if 0 < self.delay_ms_max < delay_ms:
            return (
                f"it is to be delivered {delay_ms} ms after it was published, and the policy maxDeliveryDelayInMillis "
                f"of the topic or its namespace is {self.delay_ms_max}; raise or remove it"
            )
        return ""


def _is_chunk(entry: bytes) -> bool:
    """Return whether ``entry`` is a part of a chunked message: the policy of a topic does not count for it."""
    try:
        metadata, _ = decode_entry(entry, check=False)
    except EngineError:
        return False
    return metadata.num_chunks_from_msg > 1
