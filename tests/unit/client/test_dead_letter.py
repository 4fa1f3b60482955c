"""Dead letters: the messages that are given up, and the properties of their copies."""

from __future__ import annotations

import pytest
from client_support import delivery

from replicator.client.consuming.dead_letter import DeadLetterTracker, full_policy, letter_properties, retry_properties
from replicator.client.message import Message, messages_of
from replicator.client.settings import ConsumerDeadLetterPolicy
from replicator.engine.log.entry import encode_entry
from replicator.engine.types import Delivery
from replicator.metadata.metadata_pb2 import KeyValue, MessageMetadata
from snapshots.position import Position

TOPIC = "persistent://public/default/t"


def _message(**properties: str) -> Message:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.properties.extend(KeyValue(key=key, value=value) for key, value in properties.items())
    entry = encode_entry(metadata, b"x")
    (message,) = messages_of(Delivery(Position(1, 2), 0, 1, None, entry, "us-east", Position(1, 2)), TOPIC, -1)
    return message


def _at(entry: int) -> Position:
    return Position(1, entry)


def test_topics_are_named_after_topic_and_subscription_unless_they_are_given() -> None:
    policy = full_policy(ConsumerDeadLetterPolicy(3), TOPIC, "s")
    assert (policy.dead_letter_topic, policy.retry_letter_topic) == (f"{TOPIC}-s-DLQ", f"{TOPIC}-s-RETRY")
    own = ConsumerDeadLetterPolicy(3, "graves", "keeper", "again")
    assert full_policy(own, TOPIC, "s") == own
    assert full_policy(None, TOPIC, "s").max_redeliver_count == 16


def test_a_copy_says_where_it_comes_from_unless_it_does_already() -> None:
    assert letter_properties(_message(a="1"), "s") == {
        "a": "1",
        "REAL_TOPIC": TOPIC,
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": "1:2:-1",
        "ORIGIN_MESSAGE_IDY_TIME": "1:2:-1",
    }
    copied = letter_properties(_message(REAL_TOPIC="first", ORIGIN_MESSAGE_ID="9:9:-1"), "s")
    assert (copied["REAL_TOPIC"], copied["ORIGIN_MESSAGE_ID"]) == ("first", "9:9:-1")


def test_the_id_of_a_message_in_a_batch_ends_with_its_index() -> None:
    _, second = messages_of(delivery(4, b"a", b"b"), TOPIC, -1)
    assert letter_properties(second, "s")["ORIGIN_MESSAGE_ID"] == "1:4:-1:1"


@pytest.mark.parametrize(("written", "retries"), [(None, 1), ("1", 2), ("15", 16), ("many", 1), ("-3", 1), ("²", 1)])
def test_retries_are_counted_and_a_count_that_is_none_starts_anew(written: str | None, retries: int) -> None:
    message = _message() if written is None else _message(RECONSUMETIMES=written)
    properties, counted = retry_properties(message, "s", 50, {"own": "1"})
    assert counted == retries
    assert (properties["RECONSUMETIMES"], properties["DELAY_TIME"], properties["own"]) == (str(retries), "50", "1")


def test_only_rejected_messages_on_their_last_chance_are_given_up() -> None:
    tracker: DeadLetterTracker[str] = DeadLetterTracker(2)
    tracker.show(_at(0), -1, 1, "has another chance")
    tracker.show(_at(1), -1, 2, "last chance")
    tracker.show(_at(2), 0, 2, "rejected")
    tracker.show(_at(2), 1, 2, "in hand")
    for entry in (0, 1):
        tracker.reject(_at(entry))
    tracker.reject(_at(2), 0)
    assert tracker.take_rejected(_at(0)) is None
    assert tracker.take_rejected(_at(1)) == ["last chance"]
    assert tracker.take_rejected(_at(2)) == ["rejected"]
    assert tracker.take_rejected(_at(2)) == [], "the other one is with the application: nothing to redeliver"
    tracker.remove(_at(2), 1)
    assert tracker.take_rejected(_at(2)) is None
    assert not tracker.is_over(2)
    assert tracker.is_over(3)


def test_an_acknowledged_message_is_not_given_up() -> None:
    tracker: DeadLetterTracker[str] = DeadLetterTracker(1)
    tracker.show(_at(0), -1, 1, "a")
    tracker.remove(_at(0))
    tracker.reject(_at(0))
    assert tracker.take_rejected(_at(0)) is None
