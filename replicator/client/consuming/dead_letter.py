"""Dead letters and retries: chooses the messages to give up, and the properties of their copies. Sans-IO.

Invariant 5 on the client's side: a message is acknowledged only when its copy is durable in the other topic, so that it
is in one of the two at every moment (in both for a short one: at least once).

Algorithm:
1. A message with ``max_redeliver_count`` redeliveries is on its last chance: it is kept here when the application
   receives it.
2. If it is then rejected (by a negative acknowledgement, or by its timeout), it is given up instead of redelivered. A
   batch is handled message by message: the others of its entry stay with the application.
3. A message with more redeliveries was on its last chance at a consumer without a policy, or one whose dead letter
   topic failed: it is given up without being shown.
4. A message that is to be consumed later goes to the retry topic with its count of retries, and to the dead letter
   topic when that count passes ``max_redeliver_count``.

Source: the documented behaviour and the property names of Pulsar's dead letter and retry letter topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from replicator.client.message import Message, MessageId
from replicator.client.settings import ConsumerDeadLetterPolicy
from snapshots.position import Position

RETRIES_MAX: Final = 16
"""Retry limit of a consumer with retries and without a policy; upstream's value."""

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_IDY_TIME: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""Older name of ``ORIGIN_MESSAGE_ID``, which older readers look for."""
RECONSUMETIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"

M = TypeVar("M")


def full_policy(policy: ConsumerDeadLetterPolicy | None, topic: str, subscription: str) -> ConsumerDeadLetterPolicy:
    """Return ``policy`` with defaults filled in for this topic (the whole one, not a partition) and subscription."""
    if policy is None:
        policy = ConsumerDeadLetterPolicy(RETRIES_MAX)
    return ConsumerDeadLetterPolicy(
        policy.max_redeliver_count,
        policy.dead_letter_topic or f"{topic}-{subscription}-DLQ",
        policy.initial_subscription_name,
        policy.retry_letter_topic or f"{topic}-{subscription}-RETRY",
    )


def letter_properties(message: Message, subscription: str) -> dict[str, str]:
    """Return the properties of a message's copy: its own, and those that name its source unless it has them already."""
    origin_id = message_id_text(message.message_id())
    return {
        REAL_TOPIC: message.topic_name(),
        REAL_SUBSCRIPTION: subscription,
        ORIGIN_MESSAGE_ID: origin_id,
        ORIGIN_MESSAGE_IDY_TIME: origin_id,
        **message.properties(),
    }


def retry_properties(
    message: Message, subscription: str, delay_ms: int, properties: Mapping[str, str] | None
) -> tuple[dict[str, str], int]:
    """Return the properties of a copy for the retry topic, and its new count of retries.

    They are those of :func:`letter_properties`, the application's, the delay and the count. A count that is not a
    number was not written by a consumer, and counts as none.
    """
    copied = {**letter_properties(message, subscription), **(properties or {})}
    written = copied.get(RECONSUMETIMES, "")
    retries = (int(written) if written.isascii() and written.isdigit() and len(written) < 10 else 0) + 1
    copied[RECONSUMETIMES] = str(retries)
    copied[DELAY_TIME] = str(delay_ms)
    return copied, retries


def message_id_text(message_id: MessageId) -> str:
    """Return ``ledger:entry:partition``, with ``:batch_index`` for a message of a batch."""
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    return text if message_id.batch_index() < 0 else f"{text}:{message_id.batch_index()}"


class DeadLetterTracker(Generic[M]):
    """Messages on their last chance that the application has in hand.

    Their number is bounded (invariant 11) by the unacknowledged messages that the cluster lets a consumer hold.
    """

    __slots__ = ("_max_redeliver_count", "_messages", "_rejected")

    def __init__(self, max_redeliver_count: int) -> None:
        self._max_redeliver_count = max_redeliver_count
        self._messages: dict[Position, dict[int, M]] = {}
        self._rejected: dict[Position, list[M]] = {}

    def is_over(self, redelivery_count: int) -> bool:
        """Return whether an entry with this count is given up without being shown."""
        return redelivery_count > self._max_redeliver_count

    def show(self, position: Position, batch_index: int, redelivery_count: int, message: M) -> None:
        """Keep a message that the application gets, if it is on its last chance."""
        if redelivery_count >= self._max_redeliver_count:
            self._messages.setdefault(position, {})[batch_index] = message

    def remove(self, position: Position, batch_index: int = -1) -> None:
        """Forget a message, because it was acknowledged; index -1 means its whole entry."""
        messages = self._messages.get(position)
        if messages is None:
            return
        if batch_index >= 0:
            messages.pop(batch_index, None)
        if batch_index < 0 or not messages:
            del self._messages[position]

    def reject(self, position: Position, batch_index: int = -1) -> None:
        """Mark a message as rejected by the application; index -1 means its whole entry."""
        messages = self._messages.get(position)
        if messages is None:
            return
        indexes = list(messages) if batch_index < 0 else [batch_index] if batch_index in messages else []
        rejected = self._rejected.setdefault(position, [])
        rejected.extend(messages.pop(index) for index in indexes)
        if not messages:
            del self._messages[position]

    def take_rejected(self, position: Position) -> list[M] | None:
        """Return the messages of this entry to give up instead of redelivering it; None to redeliver it."""
        rejected = self._rejected.pop(position, None)
        if rejected is None and position in self._messages:
            return []
        return rejected

    def clear(self) -> None:
        """Forget all messages.

        Either all unacknowledged ones come again and are tracked anew, or they no longer count, as after a seek.
        """
        self._messages.clear()
        self._rejected.clear()
