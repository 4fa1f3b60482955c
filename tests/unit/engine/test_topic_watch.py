from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import InvalidPattern, TooManyWatchers
from replicator.engine.topics import topic_watch
from replicator.engine.topics.topic_list import topic_list_hash
from replicator.engine.topics.topic_patterns import parse_pattern
from replicator.engine.topics.topic_watch import (
    TopicListing,
    TopicsChanged,
    TopicWatch,
    TopicWatchRegistry,
    WatchedPattern,
)

NAMESPACE = "public/default"


def name(local: str) -> str:
    return f"persistent://{NAMESPACE}/{local}"


def names(*locals_: str) -> tuple[str, ...]:
    return tuple(name(local) for local in locals_)


def listed(registry: TopicWatchRegistry, watch: TopicWatch, topics: set[str], known: str | None = None) -> TopicListing:
    """Return the result of a whole poll."""
    for _ in watch.pattern.refresh(registry.topics(NAMESPACE, topics)):
        pass
    return watch.listing(known)


def told(watch: TopicWatch) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Added and deleted; the hash has to be that of all names."""
    changed = watch.take()
    assert changed is not None
    assert changed.hash == topic_list_hash(watch.pattern.names)
    return changed.change.added, changed.change.deleted


def watching(*topics: str, pattern: str = "a.*") -> tuple[TopicWatchRegistry, TopicWatch]:
    registry = TopicWatchRegistry()
    watch = registry.open(1, parse_pattern(pattern))
    listed(registry, watch, set(names(*topics)))
    return registry, watch


def the_pattern(registry: TopicWatchRegistry) -> WatchedPattern:
    (pattern,) = registry.watching(name("a"))
    return pattern


def test_a_listing_has_the_names_that_match_and_their_hash() -> None:
    registry, watch = watching()
    listing = listed(registry, watch, {*names("a2", "b", "a1")})
    assert listing == TopicListing(topic_list_hash(names("a1", "a2")), names("a1", "a2"))


def test_a_listing_whose_hash_is_known_has_no_names() -> None:
    registry, watch = watching("a1", "b")
    known = topic_list_hash(names("a1"))
    assert listed(registry, watch, set(names("a1", "b")), known) == TopicListing(known, None)
    assert listed(registry, watch, set(names("a1", "b", "c")), known) == TopicListing(known, None)
    assert listed(registry, watch, set(names("a1", "a2")), known).names == names("a1", "a2")


def test_a_watcher_is_told_of_what_matches_and_nothing_else() -> None:
    registry, watch = watching("a1")
    pattern = the_pattern(registry)
    for local in ("a2", "b", "xa"):
        pattern.created(name(local))
    pattern.deleted(name("c"))
    assert told(watch) == (names("a2"), ())
    assert watch.take() is None
    pattern.deleted(name("a1"))
    assert told(watch) == ((), names("a1"))


def test_a_watcher_is_told_of_nothing_before_its_first_listing() -> None:
    registry = TopicWatchRegistry()
    watch = registry.open(1, parse_pattern("a.*"))
    watch.pattern.created(name("a1"))
    assert watch.take() is None
    assert listed(registry, watch, set(names("a1"))).names == names("a1")
    assert watch.take() is None


def test_what_came_and_went_between_two_notifications_is_told_once_or_not_at_all() -> None:
    registry, watch = watching("a1", "a2")
    pattern = the_pattern(registry)
    pattern.created(name("a3"))
    pattern.deleted(name("a3"))  # never told
    pattern.deleted(name("a1"))
    pattern.created(name("a1"))
    pattern.deleted(name("a1"))
    assert told(watch) == ((), names("a1"))
    pattern.deleted(name("a2"))
    pattern.created(name("a2"))
    assert told(watch) == (names("a2"), names("a2")), "deleted and made anew: both"


def test_a_listing_takes_the_place_of_what_was_not_told_but_of_what_was_made_anew() -> None:
    registry, watch = watching("a1", "a2")
    pattern = the_pattern(registry)
    pattern.created(name("a3"))
    pattern.deleted(name("a2"))
    pattern.deleted(name("a1"))
    pattern.created(name("a1"))
    assert listed(registry, watch, set(names("a1", "a3"))).names == names("a1", "a3")
    assert told(watch) == (names("a1"), names("a1"))


def test_what_a_poll_of_one_finds_is_told_to_the_others() -> None:
    registry, first = watching("a1")
    second = registry.open(2, parse_pattern("a.*"))
    listed(registry, second, set(names("a1")))
    missed = set(names("a2"))  # neither creation nor deletion was heard of
    assert listed(registry, second, missed).names == names("a2")
    assert told(first) == (names("a2"), names("a1"))
    assert second.take() is None


def test_what_a_listing_has_already_is_not_told_again() -> None:
    registry, watch = watching("a1")
    listed(registry, watch, set(names("a1", "a2")))
    the_pattern(registry).created(name("a2"))  # heard of after the catalog had it
    assert watch.take() is None


def test_only_names_that_are_new_are_matched() -> None:
    registry, watch = watching(*(f"a{number}" for number in range(50)), *(f"b{number}" for number in range(50)))
    topics = registry.topics(NAMESPACE, {*watch.pattern.names, *names(*(f"b{number}" for number in range(50)))})
    assert list(watch.pattern.refresh(topics)) == []
    assert len(list(watch.pattern.refresh(topics | set(names("a99", "c"))))) == 2


def test_a_refresh_that_is_given_up_changes_nothing() -> None:
    registry, watch = watching("a1")
    steps = watch.pattern.refresh(registry.topics(NAMESPACE, names("a2", "a3")))
    next(steps)
    steps.close()
    assert watch.pattern.names == set(names("a1"))
    assert listed(registry, watch, set(names("a2", "a3"))).names == names("a2", "a3")
    assert watch.take() is None


def test_more_changes_than_fit_are_told_as_a_hash_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "CHANGED_NAMES_MAX", 3)
    registry, watch = watching("a0")
    for number in range(1, 5):
        the_pattern(registry).created(name(f"a{number}"))
    assert told(watch) == ((), ())
    the_pattern(registry).created(name("a9"))
    assert told(watch) == (names("a9"), ()), "after that it is told of changes again"


def test_watchers_of_equal_patterns_share_their_names() -> None:
    registry = TopicWatchRegistry()
    first = registry.open(1, parse_pattern("a.*"))
    second = registry.open(2, parse_pattern("persistent://public/default/a.*"))
    assert first.pattern is second.pattern
    registry.close(first)
    assert registry.watching(name("a")) == [second.pattern]
    registry.close(second)
    registry.close(second)
    assert registry.watching(name("a")) == []
    assert len(registry) == 0


def test_patterns_are_found_by_their_namespace() -> None:
    registry = TopicWatchRegistry()
    watch = registry.open(1, parse_pattern("t/n/.*"))
    registry.open(1, parse_pattern("t/other/.*"))
    assert registry.watching("persistent://t/n/x") == [watch.pattern]
    assert registry.watching("persistent://t/third/x") == []


def test_a_connection_has_a_limit_of_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "WATCHES_PER_CONNECTION_MAX", 2)
    registry = TopicWatchRegistry()
    watch = registry.open(1, parse_pattern("a"))
    registry.open(1, parse_pattern("a"))
    with pytest.raises(TooManyWatchers, match="over this connection"):
        registry.open(1, parse_pattern("a"))
    registry.open(2, parse_pattern("a"))
    registry.close(watch)
    registry.open(1, parse_pattern("b"))


def test_a_worker_has_limits_of_watchers_and_of_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "WATCHES_MAX", 3)
    monkeypatch.setattr(topic_watch, "PATTERNS_MAX", 2)
    registry = TopicWatchRegistry()
    registry.open(1, parse_pattern("a"))
    registry.open(2, parse_pattern("b"))
    with pytest.raises(TooManyWatchers, match="different patterns"):
        registry.open(3, parse_pattern("c"))
    registry.open(3, parse_pattern("b"))
    with pytest.raises(TooManyWatchers, match="watchers"):
        registry.open(4, parse_pattern("a"))


def test_a_pattern_that_matches_too_many_topics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "LISTED_NAMES_MAX", 2)
    registry, watch = watching("a1", "a2")
    with pytest.raises(InvalidPattern, match="matches 3 topics"):
        listed(registry, watch, set(names("a1", "a2", "a3")))


LOCALS = st.sampled_from(["a1", "a2", "a3", "b1"])
EVENTS = st.lists(
    st.tuples(st.sampled_from(["created", "deleted", "take", "list", "miss created", "miss deleted"]), LOCALS)
)


@given(EVENTS)
def test_who_applies_what_it_is_told_knows_what_the_pattern_knows(events: list[tuple[str, str]]) -> None:
    registry, watch = watching()
    topics: set[str] = set()
    known: set[str] = set()

    def apply(changed: TopicsChanged | None) -> None:
        if changed is not None:
            known.difference_update(changed.change.deleted)
            known.update(changed.change.added)
            assert topic_list_hash(known) == changed.hash

    def poll() -> None:
        listing = listed(registry, watch, topics, topic_list_hash(known))
        if listing.names is not None:
            known.clear()
            known.update(listing.names)
        assert topic_list_hash(known) == listing.hash
        assert known == {topic for topic in topics if "/a" in topic}

    for event, local in events:
        topic = name(local)
        match event:
            case "created" | "miss created" if topic not in topics:
                topics.add(topic)
                if event == "created":
                    watch.pattern.created(topic)
            case "deleted" | "miss deleted" if topic in topics:
                topics.remove(topic)
                if event == "deleted":
                    watch.pattern.deleted(topic)
            case "take":
                apply(watch.take())
            case "list":
                poll()
    apply(watch.take())
    poll()
    assert watch.take() is None or not known.symmetric_difference(watch.pattern.names)


def test_answers_of_one_list_share_its_names() -> None:
    registry, first = watching("a1", "a2")
    second = registry.open(2, parse_pattern("a.*"))
    topics = set(names("a1", "a2"))
    assert listed(registry, first, topics).names is listed(registry, second, topics).names
    the_pattern(registry).created(name("a3"))
    assert listed(registry, first, topics | set(names("a3"))).names == names("a1", "a2", "a3")
