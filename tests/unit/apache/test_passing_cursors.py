"""Cursors that go with their reader, told from subscriptions with few requests."""

from __future__ import annotations

import asyncio

from replicator.apache.reader_cursors import KNOWN_SECONDS, ReaderCursors


class Brokers:
    """Brokers' answers about one topic; each request is counted."""

    def __init__(self, *lasting: str) -> None:
        self.lasting = list(lasting)
        self.requests = 0
        self.now = 0.0
        self.passing = ReaderCursors(self, "t", lambda: self.now)

    async def durable_subscriptions(self, topic: str) -> list[str]:
        self.requests += 1
        return self.lasting

    def among(self, *unknown: str) -> set[str]:
        return set(asyncio.run(self.passing.among(set(unknown))))


def test_nothing_is_asked_where_every_name_is_known() -> None:
    brokers = Brokers("work")
    assert brokers.among() == set()
    assert brokers.requests == 0


def test_a_reader_is_asked_about_once() -> None:
    brokers = Brokers("work")
    assert brokers.among("reader-1", "work") == {"reader-1"}
    for _ in range(10):
        assert brokers.among("reader-1") == {"reader-1"}
    assert brokers.requests == 1


def test_another_name_is_asked_about_at_once() -> None:
    brokers = Brokers()
    assert brokers.among("reader-1") == {"reader-1"}
    brokers.lasting = ["work"]
    assert brokers.among("reader-1", "reader-2", "work") == {"reader-1", "reader-2"}
    assert brokers.among("reader-1", "reader-2") == {"reader-1", "reader-2"}
    assert brokers.requests == 2


def test_a_subscription_by_the_name_of_a_reader_that_has_gone_is_noticed() -> None:
    brokers = Brokers()
    assert brokers.among("name") == {"name"}
    brokers.lasting = ["name"]
    brokers.now += KNOWN_SECONDS
    assert brokers.among("name") == set()


def test_a_name_that_was_gone_is_asked_about_again() -> None:
    brokers = Brokers()
    assert brokers.among("name") == {"name"}
    assert brokers.among("other") == {"other"}
    brokers.lasting = ["name"]
    assert brokers.among("name") == set()
