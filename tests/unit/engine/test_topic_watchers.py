from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from random import Random
from typing import Any

import pytest
from engine_support import eventually

from replicator.engine.errors import EngineError, InvalidPattern
from replicator.engine.topics.topic_list import topic_list_hash
from replicator.engine.topics.topic_watch import TopicListing, TopicWatch
from replicator.engine.topics.topic_watchers import NOTIFY_PAUSE_SECONDS, TopicWatchers
from replicator.running.supervisor import Supervisor

NAMESPACE = "public/default"


def name(local: str) -> str:
    return f"persistent://{NAMESPACE}/{local}"


class Names:
    """A catalog of one namespace, and the watchers that hear of it unless told not to."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.watchers = TopicWatchers(self, Supervisor())

    def subscribable(self, namespace: str) -> Collection[str]:
        return list(self.names) if namespace == NAMESPACE else []

    def create(self, local: str, *, heard: bool = True) -> None:
        self.names.append(name(local))
        if heard:
            self.watchers.on_topic_created(name(local))

    def delete(self, local: str) -> None:
        self.names.remove(name(local))
        self.watchers.on_topic_deleted(name(local))


class Watcher:
    """Writes down what it is told, in order."""

    def __init__(self, names: Names, pattern: str, connection: Any = 1) -> None:
        self.told: list[Any] = []
        self.heard_at: list[float] = []
        self.watchers = names.watchers
        self.watch: TopicWatch = self.watchers.open(connection, pattern, self._changed)

    def _changed(self) -> None:
        changed = self.watch.take()
        assert changed is not None
        self.heard_at.append(asyncio.get_running_loop().time())
        self.told.append((changed.change.added, changed.change.deleted, changed.hash))

    def poll(self, known_hash: str | None = None) -> None:
        self.watchers.list(self.watch, known_hash, self.told.append)

    async def hears(self, count: int) -> list[Any]:
        await eventually(lambda: len(self.told) >= count, f"{count} answers (have {self.told})")
        return self.told


def run(scenario: Callable[[Names], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario(Names())

    asyncio.run(main())


def test_a_watcher_hears_of_topics_from_its_listing_on() -> None:
    async def scenario(names: Names) -> None:
        names.create("a1")
        names.create("b1")
        watcher = Watcher(names, "a.*")
        watcher.poll()
        listing = TopicListing(topic_list_hash([name("a1")]), (name("a1"),))
        assert await watcher.hears(1) == [listing]
        names.create("a2")
        names.create("b2")
        assert (await watcher.hears(2))[1] == ((name("a2"),), (), topic_list_hash([name("a1"), name("a2")]))
        names.delete("a1")
        assert (await watcher.hears(3))[2] == ((), (name("a1"),), topic_list_hash([name("a2")]))
        watcher.poll(topic_list_hash([name("a2")]))
        assert (await watcher.hears(4))[3] == TopicListing(topic_list_hash([name("a2")]), None)

    run(scenario)


def test_a_poll_finds_what_nobody_heard_of() -> None:
    async def scenario(names: Names) -> None:
        watcher, other = Watcher(names, "a.*"), Watcher(names, "a.*", 2)
        watcher.poll()
        other.poll()
        await watcher.hears(1)
        names.create("a1", heard=False)
        watcher.poll()
        assert (await watcher.hears(2))[1].names == (name("a1"),)
        assert (await other.hears(2))[1] == ((name("a1"),), (), topic_list_hash([name("a1")]))

    run(scenario)


def test_a_topic_that_gets_partitions_is_told_as_made_anew() -> None:
    async def scenario(names: Names) -> None:
        names.create("a1")
        watcher = Watcher(names, "a.*")
        watcher.poll()
        await watcher.hears(1)
        names.watchers.on_partitions(name("a1"), 8)
        names.watchers.on_partitions(name("a9"), 8)
        assert (await watcher.hears(2))[1] == ((name("a1"),), (name("a1"),), topic_list_hash([name("a1")]))

    run(scenario)


def test_what_happens_before_an_answer_is_in_it_and_what_happens_after_it_comes_after_it() -> None:
    async def scenario(names: Names) -> None:
        for number in range(500):
            names.create(f"a{number:03}")
        watcher = Watcher(names, "a.*")
        names.create("a500")
        watcher.poll()
        names.create("a501")
        await eventually(lambda: any(isinstance(each, TopicListing) for each in watcher.told), "an answer")
        names.create("a502")
        await eventually(lambda: any(name("a502") in each[0] for each in watcher.told if isinstance(each, tuple)), "it")
        known: set[str] = set()
        for each in watcher.told:
            if isinstance(each, TopicListing):
                assert each.names is not None
                known = set(each.names)
            else:
                known = (known - set(each[1])) | set(each[0])
        assert known == set(names.names)

    run(scenario)


def test_a_burst_of_topics_is_told_in_few_notifications() -> None:
    async def scenario(names: Names) -> None:
        watcher = Watcher(names, "a.*")
        watcher.poll()
        await watcher.hears(1)
        started = time.monotonic()
        for number in range(300):
            names.create(f"a{number}")
            await asyncio.sleep(0)
        await eventually(lambda: sum(len(each[0]) for each in watcher.told[1:]) == 300, "all of them")
        notifications = len(watcher.told) - 1
        assert notifications <= (time.monotonic() - started) / NOTIFY_PAUSE_SECONDS + 2
        pauses = [later - sooner for sooner, later in zip(watcher.heard_at, watcher.heard_at[1:], strict=False)]
        assert all(pause >= NOTIFY_PAUSE_SECONDS for pause in pauses)

    run(scenario)


def test_a_wake_that_comes_late_does_not_shorten_the_next_pause() -> None:
    """The event loop stood still until the pause was over: what comes next is told first, and then the wake comes."""

    async def scenario(names: Names) -> None:
        watcher = Watcher(names, "a.*")
        watcher.poll()
        await watcher.hears(1)
        names.create("a1")
        await watcher.hears(2)
        names.create("a2")
        for _ in range(10):
            await asyncio.sleep(0)  # it is matched, and told when the pause is over
        time.sleep(2 * NOTIFY_PAUSE_SECONDS)  # noqa: ASYNC251 - that is what stands still
        names.create("a3")
        await eventually(lambda: name("a3") in watcher.told[-1][0], "what came next")
        names.create("a4")
        await eventually(lambda: name("a4") in watcher.told[-1][0], "what came after it")
        pauses = [later - sooner for sooner, later in zip(watcher.heard_at, watcher.heard_at[1:], strict=False)]
        assert all(pause >= NOTIFY_PAUSE_SECONDS for pause in pauses)

    run(scenario)


def test_a_hostile_pattern_holds_up_neither_the_event_loop_nor_other_watchers() -> None:
    async def scenario(names: Names) -> None:
        random = Random(1)
        for number in range(2_000):
            names.create(f"{number:06}" + "".join(random.choices("ab", k=300)), heard=False)
        hostile = [Watcher(names, f"[0-9ab]*a[0-9ab]{{{length}}}c", "hostile") for length in range(150, 170)]
        for watcher in hostile:
            watcher.poll()
        watcher = Watcher(names, "0000.*")
        started = time.process_time()  # of all threads, and of no other process
        watcher.poll()
        longest = 0.0
        while not watcher.told:
            before = time.process_time()
            await asyncio.sleep(0)
            longest = max(longest, time.process_time() - before)
        assert time.process_time() - started < 2.0, "an honest poll waits for slices, not for hostile polls"
        assert not any(each.told for each in hostile), "they are at work for long"
        assert longest < 0.2
        for each in hostile:
            each.watchers.close(each.watch)
        await eventually(lambda: not names.watchers._task.running, "the end of work for those who left")

    run(scenario)


def test_who_watches_no_longer_gets_no_answer_and_the_work_ends() -> None:
    async def scenario(names: Names) -> None:
        names.create("a1")
        watcher = Watcher(names, "a.*")
        watcher.poll()
        names.watchers.close(watcher.watch)
        names.watchers.close(watcher.watch)
        await eventually(lambda: not names.watchers._task.running, "the end of the work")
        assert watcher.told == []
        assert len(names.watchers) == 0

    run(scenario)


def test_a_watcher_that_fails_does_not_hold_up_the_others() -> None:
    async def scenario(names: Names) -> None:
        broken, fine = Watcher(names, "a.*"), Watcher(names, "a.*")

        def fail(listing: TopicListing | EngineError) -> None:
            raise RuntimeError("a bug")

        names.watchers.list(broken.watch, None, fail)
        fine.poll()
        await fine.hears(1)

    run(scenario)


def test_a_pattern_that_cannot_be_read_is_refused_at_once() -> None:
    async def scenario(names: Names) -> None:
        with pytest.raises(InvalidPattern):
            names.watchers.open(1, "a(", lambda: None)
        assert len(names.watchers) == 0

    run(scenario)
