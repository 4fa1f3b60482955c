"""Watching patterns of topics on an engine: the asyncio shell of :mod:`replicator.engine.topics.topic_watch`.

Each watched pattern has a queue of events and polls, in order. One task works for :data:`SLICE_SECONDS` on each queue
in turn. So a hostile pattern delays others by slices, and the event loop by one slice at most. A poll sees the topics
that were created before it.

The first notification of a pattern is sent at once, and further ones at most every :data:`NOTIFY_PAUSE_SECONDS`. So a
client that creates thousands of topics causes a few notifications of many names, and not thousands for each watcher.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Final, Protocol

from replicator.engine.errors import EngineError, InvalidPattern
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.topics.topic_patterns import parse_pattern
from replicator.engine.topics.topic_watch import TopicListing, TopicWatch, TopicWatchRegistry, WatchedPattern
from replicator.running.supervisor import Supervisor

_log = logging.getLogger(__name__)

SLICE_SECONDS: Final = 0.002
NOTIFY_PAUSE_SECONDS: Final = 0.02
_OVER: Final = object()
JOBS_MAX: Final = 100_000
"""Limit of queued jobs of one pattern. The next poll finds topics that were created beyond the limit."""

Job = Iterator[None]


class TopicNames(Protocol):
    """Interface of the engine's catalog for watchers."""

    def subscribable(self, namespace: str) -> Collection[str]:
        """Return the full names to which consumers can subscribe in ``tenant/namespace``, a partitioned topic once.
        Empty if the namespace does not exist yet."""


class TopicWatchers(TopicListener[Topic]):
    """Watchers of one engine. The engine calls them as a :class:`TopicListener`."""

    def __init__(self, names: TopicNames, supervisor: Supervisor) -> None:
        self._names = names
        self._registry = TopicWatchRegistry()
        self._on_change: dict[TopicWatch, Callable[[], None]] = {}
        self._jobs: dict[WatchedPattern, deque[Job]] = {}
        self._ready: deque[WatchedPattern] = deque()
        self._not_before: dict[WatchedPattern, float] = {}
        self._waking: set[WatchedPattern] = set()
        """Patterns that are notified when their pause is over."""
        self._task = supervisor.task("topic watchers", "topic watchers", self._work, until_done=True)

    def __len__(self) -> int:
        """Return the number of watchers."""
        return len(self._registry)

    def open(self, connection: Hashable, pattern: str, on_change: Callable[[], None]) -> TopicWatch:
        """Add a watcher. After the first listing, ``on_change`` is called when :meth:`TopicWatch.take` has a change.

        Raises :class:`InvalidPattern`, :class:`TooManyWatchers`.
        """
        watch = self._registry.open(connection, parse_pattern(pattern))
        self._on_change[watch] = on_change
        return watch

    def list(
        self, watch: TopicWatch, known_hash: str | None, answer: Callable[[TopicListing | EngineError], None]
    ) -> None:
        """Call ``answer`` with the names that the pattern matches now, or :class:`InvalidPattern` if they are too many.

        From that call on, :meth:`TopicWatch.take` returns later changes. A watch that is closed before gets no answer.
        """
        self._add_job(watch.pattern, self._listing(watch, known_hash, answer))

    def close(self, watch: TopicWatch) -> None:
        """Remove a watcher. Idempotent."""
        self._registry.close(watch)
        self._on_change.pop(watch, None)
        if not watch.pattern.watches:
            self._not_before.pop(watch.pattern, None)

    # What the engine tells.

    def on_topic_created(self, topic_name: str) -> None:
        """Note that consumers can subscribe to the topic from now on."""
        for pattern in self._registry.watching(topic_name):
            self._add_job(pattern, _once(pattern.created, topic_name))

    def on_topic_deleted(self, topic_name: str) -> None:
        """Note that consumers cannot subscribe to the topic any more."""
        for pattern in self._registry.watching(topic_name):
            self._add_job(pattern, _once(pattern.deleted, topic_name))

    def on_partitions(self, topic_name: str, partitions: int) -> None:
        """Report the topic as deleted and created again, so that its consumers look up its partitions again."""
        for pattern in self._registry.watching(topic_name):
            self._add_job(pattern, _once(pattern.made_anew, topic_name))

    # Working.

    def _listing(
        self, watch: TopicWatch, known_hash: str | None, answer: Callable[[TopicListing | EngineError], None]
    ) -> Job:
        namespace = watch.pattern.pattern.namespace
        names = self._names.subscribable(namespace)
        for _ in watch.pattern.refresh(self._registry.topics(namespace, names)):
            if watch not in watch.pattern.watches:
                return  # a refresh that is not finished has changed nothing
            yield
        if watch in watch.pattern.watches:
            try:
                listing: TopicListing | EngineError = watch.listing(known_hash)
            except InvalidPattern as error:
                listing = error
            answer(listing)

    def _add_job(self, pattern: WatchedPattern, job: Job) -> None:
        jobs = self._jobs.get(pattern)
        if jobs is None:
            jobs = self._jobs[pattern] = deque()
            self._ready.append(pattern)
        if len(jobs) >= JOBS_MAX:
            _log.warning("pattern %s: more topics come and go than can be matched", pattern.pattern)
            return
        jobs.append(job)
        self._task.start()

    async def _work(self) -> None:
        while self._ready:
            pattern = self._ready.popleft()
            jobs = self._jobs[pattern]
            _run_jobs(jobs, time.perf_counter() + SLICE_SECONDS)
            if jobs:
                self._ready.append(pattern)
            else:
                del self._jobs[pattern]
            self._notify(pattern)
            await asyncio.sleep(0)

    def _notify(self, pattern: WatchedPattern) -> None:
        """Notify the watchers that have changes to take, now or when the pause is over."""
        if not any(watch.pending for watch in pattern.watches):
            return
        loop = asyncio.get_running_loop()
        not_before = self._not_before.get(pattern, 0.0)
        if not_before > loop.time():
            if pattern not in self._waking:
                self._waking.add(pattern)
                loop.call_at(not_before, self._wake, pattern)
            return
        for watch in list(pattern.watches):
            if watch.pending and (on_change := self._on_change.get(watch)) is not None:
                on_change()
        # The pause begins after the last notification: on a busy machine, notifying takes a part of it.
        self._not_before[pattern] = loop.time() + NOTIFY_PAUSE_SECONDS

    def _wake(self, pattern: WatchedPattern) -> None:
        self._waking.discard(pattern)
        self._notify(pattern)


def _once(call: Callable[[str], None], name: str) -> Job:
    call(name)
    yield


def _run_jobs(jobs: deque[Job], until: float) -> None:
    """Do steps of jobs until the time ``until``, at least one step."""
    while jobs:
        try:
            over = next(jobs[0], _OVER) is _OVER
        except Exception:  # noqa: BLE001 - a bug; the other jobs are not to stand still for it
            _log.exception("a job of a watched pattern failed")
            over = True
        if over:
            jobs.popleft()
        if time.perf_counter() >= until:
            return
