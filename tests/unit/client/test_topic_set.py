from __future__ import annotations

import pytest

from replicator.client.consuming.topic_set import (
    POLL_ANSWER_SECONDS_MAX,
    POLL_PAUSE_SECONDS,
    RETRY_FIRST_SECONDS,
    RETRY_MAX_SECONDS,
    Action,
    CloseConsumers,
    Poll,
    SubscribeTopic,
    TopicSet,
)
from replicator.engine.topics.topic_list import topic_list_hash

PERIOD_SECONDS = 60.0


def hash_of(names: str) -> str:
    return topic_list_hash(names)


def fresh(name: str) -> SubscribeTopic:
    return SubscribeTopic(name, from_start=True)


def first(name: str) -> SubscribeTopic:
    return SubscribeTopic(name, from_start=False)


def consuming(names: str, partitions: int = 0) -> TopicSet:
    """Return a set at time 0 after a first listing, with everything subscribed to."""
    core = TopicSet(period_seconds=PERIOD_SECONDS, now=0.0)
    core.connected(0.0)
    assert core.listed(names, hash_of(names), 0.0) == [first(name) for name in names]
    for name in names:
        assert core.subscribed(name, partitions, 0.0) == []
    assert core.settled
    return core


def test_a_listing_is_subscribed_to_and_another_one_lets_go_of_what_it_lacks() -> None:
    core = consuming("ab")
    assert core.listed("bc", hash_of("bc"), 1.0) == [CloseConsumers("a"), fresh("c")]
    assert not core.settled
    core.on_closed("a", 1.0)
    core.subscribed("c", 0, 1.0)
    assert core.settled
    assert core.listed(None, hash_of("bc"), 2.0) == []


def test_no_topics_yet_is_a_list_like_any_other() -> None:
    core = consuming("")
    assert core.settled
    assert core.changed("a", "", hash_of("a"), 1.0) == [fresh("a")]


def test_a_notification_that_gives_the_clusters_list_is_applied() -> None:
    core = consuming("ab")
    assert core.changed("c", "a", hash_of("bc"), 1.0) == [fresh("c"), CloseConsumers("a")]
    assert core.hash == hash_of("bc")


def test_after_a_missed_notification_additions_are_believed_and_deletions_asked_about() -> None:
    core = consuming("ab")
    late = POLL_PAUSE_SECONDS
    assert core.changed("d", "a", hash_of("bcd"), late) == [fresh("d"), Poll(hash_of("abd"))]
    assert core.listed("bcd", hash_of("bcd"), late) == [CloseConsumers("a"), fresh("c")]


def test_a_poll_that_is_asked_for_waits_until_the_last_one_is_some_time_ago() -> None:
    core = consuming("a")
    assert core.changed("b", "", "other", 0.1) == [fresh("b")]
    assert core.next_at() == POLL_PAUSE_SECONDS
    assert core.tick(POLL_PAUSE_SECONDS) == [Poll(hash_of("ab"))]
    assert core.changed("c", "", "other", 1.1) == [fresh("c")], "one poll at a time"
    assert core.tick(5.0) == []


@pytest.mark.parametrize("frames", [("add", "list"), ("list", "add")])
def test_watcher_and_poll_in_any_order_subscribe_once(frames: tuple[str, str]) -> None:
    core = consuming("a")
    actions: list[Action] = []
    for frame in frames:
        actions += (
            core.changed("b", "", hash_of("ab"), 1.0) if frame == "add" else core.listed("ab", hash_of("ab"), 1.0)
        )
    assert actions == [fresh("b")]


def test_a_repeated_notification_changes_nothing() -> None:
    core = consuming("a")
    assert core.changed("b", "", hash_of("ab"), 1.0) == [fresh("b")]
    assert core.changed("b", "", hash_of("ab"), 1.0) == []


def test_a_listing_that_something_overtook_is_asked_for_again() -> None:
    core = consuming("a")
    core.changed("b", "", hash_of("ab"), 0.5)
    assert core.listed(None, hash_of("a"), POLL_PAUSE_SECONDS) == [Poll(hash_of("ab"))]


def test_a_topic_that_was_deleted_and_made_anew_is_subscribed_to_again() -> None:
    core = consuming("ab")
    assert core.changed("a", "a", hash_of("ab"), 1.0) == [fresh("a")]
    assert core.changed("a", "a", hash_of("ab"), 1.0) == [], "one attempt at a time"
    assert core.subscribed("a", 0, 1.0) == [fresh("a")], "but another one after it"
    assert core.subscribed("a", 0, 1.0) == []


def test_a_topic_that_comes_back_while_it_is_let_go_of_is_subscribed_to_after_that() -> None:
    core = consuming("ab")
    assert core.changed("", "a", hash_of("b"), 1.0) == [CloseConsumers("a")]
    assert core.changed("a", "", hash_of("ab"), 1.0) == []
    assert core.on_closed("a", 1.0) == [fresh("a")]


def test_a_topic_that_is_deleted_while_it_is_subscribed_to_is_let_go_of_after_that() -> None:
    core = consuming("a")
    assert core.changed("b", "", hash_of("ab"), 1.0) == [fresh("b")]
    assert core.changed("", "b", hash_of("a"), 1.0) == []
    assert core.subscribed("b", 0, 1.0) == [CloseConsumers("b")]
    assert core.on_closed("b", 1.0) == []


def test_what_fails_is_tried_again_after_growing_pauses() -> None:
    core = TopicSet(period_seconds=10_000, now=0.0)
    core.connected(0.0)
    core.listed("", hash_of(""), 0.0)
    core.changed("a", "", hash_of("a"), 0.0)
    now, pauses = 0.0, []
    for _ in range(12):
        assert core.failed("a", now, gone=False) == []
        pauses.append(core.next_at() - now)
        now += pauses[-1]
        assert fresh("a") in core.tick(now)
    assert pauses[:3] == pytest.approx([RETRY_FIRST_SECONDS, 2 * RETRY_FIRST_SECONDS, 4 * RETRY_FIRST_SECONDS])
    assert max(pauses) == pytest.approx(RETRY_MAX_SECONDS)
    core.subscribed("a", 0, now)
    assert core.ended("a", now + 5) == [Poll(hash_of("a"))]
    assert core.next_at() == pytest.approx(now + 5 + RETRY_FIRST_SECONDS), "a success ends the growth"


def test_a_topic_that_is_gone_is_asked_about_and_then_forgotten() -> None:
    core = consuming("ab")
    assert core.ended("a", 2.0) == [Poll(hash_of("ab"))]
    assert core.tick(3.0) == [fresh("a")]
    assert core.failed("a", 3.0, gone=True) == []
    assert core.listed("b", hash_of("b"), 3.0) == [CloseConsumers("a")]
    assert core.on_closed("a", 3.0) == []
    assert core.tick(3.0) == [Poll(hash_of("b"))], "the answer may be older than what was heard since"
    assert core.listed(None, hash_of("b"), 3.0) == []
    assert core.next_at() == PERIOD_SECONDS


def test_a_topic_that_ends_while_it_is_subscribed_to_is_subscribed_to_again() -> None:
    core = consuming("")
    core.changed("a", "", hash_of("a"), 0.0)
    core.ended("a", 0.5)
    assert core.subscribed("a", 0, 0.6) == [fresh("a")]


def test_topics_of_the_first_listing_begin_where_the_user_said_and_all_others_with_their_first_message() -> None:
    core = TopicSet(period_seconds=PERIOD_SECONDS, now=0.0)
    core.connected(0.0)
    assert core.listed("abc", hash_of("abc"), 0.0) == [first("a"), first("b"), first("c")]
    core.failed("a", 0.0, gone=False)
    assert core.tick(1.0) == [first("a")]
    core.failed("a", 1.0, gone=True)
    assert fresh("a") in core.tick(2.0), "it was gone: if it is there now, it was made meanwhile"
    assert core.changed("d", "b", hash_of("acd"), 2.0) == [fresh("d")]
    core.subscribed("b", 0, 2.0)
    core.on_closed("b", 2.0)
    assert core.changed("b", "", hash_of("abcd"), 3.0) == [fresh("b")]
    core.subscribed("c", 0, 3.0)
    core.ended("c", 3.0)
    assert fresh("c") in core.tick(4.0), "it had a subscription: if it has none, the topic was made meanwhile"


def test_a_poll_goes_out_every_period() -> None:
    core = consuming("a")
    assert core.tick(PERIOD_SECONDS - 1) == []
    assert core.next_at() == PERIOD_SECONDS
    assert core.tick(PERIOD_SECONDS) == [Poll(hash_of("a"))]
    assert core.listed(None, hash_of("a"), PERIOD_SECONDS) == []
    assert core.next_at() == 2 * PERIOD_SECONDS


def test_a_poll_that_is_not_answered_is_sent_again() -> None:
    core = TopicSet(period_seconds=PERIOD_SECONDS, now=0.0)
    core.connected(0.0)
    assert core.next_at() == POLL_ANSWER_SECONDS_MAX
    assert core.tick(POLL_ANSWER_SECONDS_MAX - 1) == []
    assert core.tick(POLL_ANSWER_SECONDS_MAX) == [Poll(core.hash)]


def test_nothing_is_polled_without_a_connection_and_retries_go_on() -> None:
    core = consuming("a")
    core.disconnected()
    assert core.ended("a", 10.0) == []
    assert core.tick(11.0) == [fresh("a")]
    assert core.tick(2 * PERIOD_SECONDS) == []
    core.connected(200.0)
    assert core.listed(None, hash_of("a"), 200.0) == []
    assert core.next_at() == 200.0 + PERIOD_SECONDS


def test_partitioned_topics_are_looked_at_again_with_each_poll_of_the_period() -> None:
    core = consuming("ab", partitions=4)
    assert core.tick(PERIOD_SECONDS) == [fresh("a"), fresh("b"), Poll(hash_of("ab"))]
    core.subscribed("a", 8, PERIOD_SECONDS)
    core.subscribed("b", 0, PERIOD_SECONDS)
    core.listed(None, hash_of("ab"), PERIOD_SECONDS)
    assert core.tick(2 * PERIOD_SECONDS) == [fresh("a"), Poll(hash_of("ab"))]


def test_a_topic_that_waits_for_its_next_attempt_gets_it_when_it_is_made_anew() -> None:
    core = consuming("a")
    core.ended("a", 2.0)
    assert core.changed("a", "a", hash_of("a"), 2.0) == [fresh("a")]
