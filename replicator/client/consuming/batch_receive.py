"""Batch receive: chooses the messages that one call returns together. Sans-IO.

The limits are those of :class:`ConsumerBatchReceivePolicy`: the first one reached ends the batch. A message that would
exceed the limit of bytes goes into the next batch, unless the batch is empty: a message larger than the limit comes
alone.

Source: the documented behaviour of Pulsar's batch receive policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from replicator.client.settings import ConsumerBatchReceivePolicy

T = TypeVar("T")


class BatchCollector(Generic[T]):
    """Messages gathered so far for one batch receive."""

    __slots__ = ("_bytes", "_policy", "_sizes", "messages")

    def __init__(self, policy: ConsumerBatchReceivePolicy) -> None:
        self._policy = policy
        self._bytes = 0
        self._sizes: list[int] = []
        self.messages: list[T] = []

    @property
    def full(self) -> bool:
        """Whether the batch has reached a limit."""
        policy = self._policy
        return (0 < policy.max_num_message <= len(self.messages)) or (0 < policy.max_num_bytes <= self._bytes)

    def add(self, message: T, payload_bytes: int) -> bool:
        """Add a message. Return False if it belongs to the next batch, which ends this one."""
        if self.messages and 0 < self._policy.max_num_bytes < self._bytes + payload_bytes:
            return False
        self.messages.append(message)
        self._sizes.append(payload_bytes)
        self._bytes += payload_bytes
        return True

    def drop(self, void: Callable[[T], bool]) -> None:
        """Remove the messages for which ``void`` is true."""
        kept = [(message, size) for message, size in zip(self.messages, self._sizes, strict=True) if not void(message)]
        self.messages = [message for message, _ in kept]
        self._sizes = [size for _, size in kept]
        self._bytes = sum(self._sizes)
