"""Dead letters and retries: which messages are given up, and what their copies say. Sans-IO.

Invariant 5 from the client's side: a message is acknowledged only when its copy is durable in the other topic, so
that it is in one of the two at every moment (in both for a short one: at least once).

Algorithm:
1. A message that comes with ``max_redeliver_count`` redeliveries is on its last chance: it is kept here when the
   application receives it.
2. Rejected (by a negative acknowledgement, or by its timeout), it is taken from here instead of being redelivered. In
   a batch this goes message by message: the others of its entry stay with the application.
3. What comes with more redeliveries than that was on its last chance at a consumer that knew no policy, or whose dead
   letter topic failed: it is given up without being shown.
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
"""Of a consumer with retries and without a policy of its own, as upstream."""

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_IDY_TIME: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""The older name of the same, which older readers look for."""
RECONSUMETIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"

M = TypeVar("M")


def full_policy(policy: ConsumerDeadLetterPolicy | None, topic: str, subscription: str) -> ConsumerDeadLetterPolicy:
    """``policy`` with its defaults filled in for this topic (the whole one, not a partition) and subscription."""
    if policy is None:
        policy = ConsumerDeadLetterPolicy(RETRIES_MAX)
    return ConsumerDeadLetterPolicy(
        policy.max_redeliver_count,
        policy.dead_letter_topic or f"{topic}-{subscription}-DLQ",
        policy.initial_subscription_name,
        policy.retry_letter_topic or f"{topic}-{subscription}-RETRY",
    )


def letter_properties(message: Message, subscription: str) -> dict[str, str]:
    """The properties of a message's copy: its own, and where it comes from, unless it says so already."""
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
    """As :func:`letter_properties`, with the application's own, the delay and the count of retries, and that count.

    A count that is not a number was not written by a consumer, and counts as none.
    """
    copied = {**letter_properties(message, subscription), **(properties or {})}
    written = copied.get(RECONSUMETIMES, "")
    retries = (int(written) if written.isascii() and written.isdigit() and len(written) < 10 else 0) + 1
    copied[RECONSUMETIMES] = str(retries)
    copied[DELAY_TIME] = str(delay_ms)
    return copied, retries


def message_id_text(message_id: MessageId) -> str:
    """``ledger:entry:partition``, with ``:batch_index`` for a message of a batch."""
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    return text if message_id.batch_index() < 0 else f"{text}:{message_id.batch_index()}"


class DeadLetterTracker(Generic[M]):
    """The messages on their last chance that the application has in hand.

    Bounded (invariant 11) by what the cluster lets a consumer hold unacknowledged.
    """

    __slots__ = ("_max_redeliver_count", "_messages", "_rejected")

    def __init__(self, max_redeliver_count: int) -> None:
        self._max_redeliver_count = max_redeliver_count
        self._messages: dict[Position, dict[int, M]] = {}
        self._rejected: dict[Position, list[M]] = {}

    def is_over(self, redelivery_count: int) -> bool:
        """Whether an entry that comes with this count is given up without being shown."""
        return redelivery_count > self._max_redeliver_count

    def show(self, position: Position, batch_index: int, redelivery_count: int, message: M) -> None:
        """The application gets this message."""
        if redelivery_count >= self._max_redeliver_count:
            self._messages.setdefault(position, {})[batch_index] = message

    def remove(self, position: Position, batch_index: int = -1) -> None:
        """The message was acknowledged; index -1 means its whole entry."""
        messages = self._messages.get(position)
        if messages is None:
            return
        if batch_index >= 0:
            messages.pop(batch_index, None)
        if batch_index < 0 or not messages:
            del self._messages[position]

    def reject(self, position: Position, batch_index: int = -1) -> None:
        """The application does not want this message; index -1 means its whole entry."""
        messages = self._messages.get(position)
        if messages is None:
            return
        indexes = list(messages) if batch_index < 0 else [batch_index] if batch_index in messages else []
        rejected = self._rejected.setdefault(position, [])
        rejected.extend(messages.pop(index) for index in indexes)
        if not messages:
            del self._messages[position]

    def take_rejected(self, position: Position) -> list[M] | None:
        """The messages of this entry to give up now, instead of its redelivery; None if it is to be redelivered."""
        rejected = self._rejected.pop(position, None)
        if rejected is None and position in self._messages:
            return []
        return rejected

    def clear(self) -> None:
        """All that is unacknowledged comes again, or nothing does."""
        self._messages.clear()
        self._rejected.clear()
