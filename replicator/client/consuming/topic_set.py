"""Decisions of a pattern consumer: which topics to subscribe to, and which to let go of. Sans-IO.

Invariants: a topic is subscribed to by at most one running attempt, and not while it is being let go of. After a
listing has arrived and its actions are done, the consumed topics are those of the listing, whatever was lost, repeated
or out of order before.

Algorithm:

1. The names that the cluster is believed to have are kept with their hash, which goes out with every poll. A listing
   replaces them; one without names says that they are right.
2. A notification is checked by its hash: applied to the names that are known here it must give the cluster's. Then
   nothing was missed. If not, its additions are believed at once, because subscribing to a missing topic does no harm;
   its deletions are not, because letting go of an existing topic would; and a poll is asked for.
3. A name that was deleted and made anew, or has got more partitions, is subscribed to again: that finds its partitions
   and connects to those that are not connected.
4. A subscription that fails or ends is tried again after growing pauses, for as long as the name is in the list. An
   error that says that its topic is gone asks for a poll too.
5. Polls go out every period, and sooner when one is asked for, but one at a time, and not more often than every
   :data:`POLL_PAUSE_SECONDS`. With each poll of the period, partitioned topics are subscribed to again, to find
   new partitions: the list has only the topic's name.

Times are seconds of a clock that only goes forward; the caller passes them in.

Source: PIP-145; the seed on subscriptions by regular expressions: notifications are not part of the creation, so that
only polls make sure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from replicator.engine.topics.topic_list import topic_list_change, topic_list_hash

POLL_PAUSE_SECONDS: Final = 1.0
"""Shortest pause between polls that are asked for. A lost notification costs at most this, if another one follows
it."""
POLL_ANSWER_SECONDS_MAX: Final = 30.0
"""Time after which a poll counts as lost, and the next one may go out."""
RETRY_FIRST_SECONDS: Final = 0.1
RETRY_MAX_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class SubscribeTopic:
    """Subscribe to a topic, or to its missing parts; answered by ``subscribed`` or ``failed``.

    With ``from_start`` a new subscription begins at the first message, because the topic or partition was created while
    the pattern was watched.
    """

    topic: str
    from_start: bool


@dataclass(frozen=True, slots=True)
class CloseConsumers:
    """Close a topic's consumers; answered by ``on_closed``."""

    topic: str


@dataclass(frozen=True, slots=True)
class Poll:
    """Ask the cluster for the list; answered by ``listed``."""

    hash: str


Action = SubscribeTopic | CloseConsumers | Poll


class _Stage(Enum):
    SUBSCRIBING = auto()
    SUBSCRIBED = auto()
    LETTING_GO = auto()
    WAITING = auto()
    """Waiting for the next attempt."""


@dataclass(slots=True)
class _Topic:
    stage: _Stage
    failures: int = 0
    partitions: int = 0
    again: bool = False
    """Whether the topic changed while it was being subscribed to."""


class TopicSet:
    """Topics of one pattern consumer. Methods are events, and return the actions to do, in order."""

    def __init__(
        self, *, period_seconds: float, now: float, ignores: Callable[[str], bool] = lambda name: False
    ) -> None:
        self._period_seconds = period_seconds
        self._ignores = ignores
        """Return whether a name of the list is not to be consumed."""
        self._names: frozenset[str] = frozenset()
        self._hash = topic_list_hash(())
        self._first: frozenset[str] | None = None
        """Names of the first listing that were listed ever since and are not subscribed to yet; None before the
        listing."""
        self._topics: dict[str, _Topic] = {}
        self._retry_at: dict[str, float] = {}
        """Time of the next attempt for each waiting topic."""
        self._connected = False
        self._asked_at: float | None = None
        """Time at which the unanswered poll was sent; None if there is none."""
        self._polled_at = now
        self._poll_wanted = False
        self._period_over_at = now + period_seconds

    @property
    def names(self) -> frozenset[str]:
        """Names of topics that the cluster is believed to have."""
        return self._names

    @property
    def hash(self) -> str:
        """Hash of :attr:`names`."""
        return self._hash

    @property
    def settled(self) -> bool:
        """Whether exactly the wanted names are subscribed to, and nothing is on its way."""
        return self._topics.keys() == {name for name in self._names if not self._ignores(name)} and all(
            topic.stage is _Stage.SUBSCRIBED for topic in self._topics.values()
        )

    def next_at(self) -> float:
        """Return when :meth:`tick` is due, if nothing happens before."""
        at = min(self._period_over_at, min(self._retry_at.values(), default=self._period_over_at))
        if self._connected and self._asked_at is not None:
            at = min(at, self._asked_at + POLL_ANSWER_SECONDS_MAX)
        elif self._connected and self._poll_wanted:
            at = min(at, self._polled_at + POLL_PAUSE_SECONDS)
        return at

    # Events of the list.

    def connected(self, now: float) -> None:
        """Take note of a connection, over which a listing was asked for with :attr:`hash`."""
        self._connected = True
        self._poll_wanted = False
        self._asked_at = self._polled_at = now
        self._period_over_at = now + self._period_seconds

    def disconnected(self) -> None:
        """Take note that the connection is gone: notifications are missed, and polls have to wait."""
        self._connected = False
        self._asked_at = None

    def listed(self, names: Iterable[str] | None, names_hash: str, now: float) -> list[Action]:
        """Handle the answer to a poll. ``names`` is None if the list has the hash that was sent."""
        self._asked_at = None
        if names is not None:
            self._names = frozenset(names)
            self._hash = topic_list_hash(self._names)
        self._first = self._names if self._first is None else self._first & self._names
        actions = self._reconcile()
        if names_hash != self._hash:  # something came between the question and its answer
            actions += self._request_poll(now)
        return actions

    def changed(self, added: Iterable[str], deleted: Iterable[str], names_hash: str, now: float) -> list[Action]:
        """Handle a notification."""
        joined, left = frozenset(added), frozenset(deleted)
        names = (self._names - left) | joined
        complete = topic_list_hash(names) == names_hash
        if not complete:
            names = self._names | joined
        change = topic_list_change(self._names, names)
        self._names = names
        if self._first is not None:
            self._first -= left
        self._hash = names_hash if complete else topic_list_hash(names)
        actions = self._reconcile((*change.added, *change.deleted, *sorted(joined & left)))
        for name in sorted(joined & left):
            actions += self._made_anew(name)
        return actions if complete else actions + self._request_poll(now)

    # Results of the actions.

    def subscribed(self, name: str, partitions: int, now: float) -> list[Action]:
        """Take note that a topic is consumed. ``partitions`` is 0 for a topic that has none."""
        topic = self._topics[name]
        assert topic.stage is _Stage.SUBSCRIBING
        if self._first is not None:
            self._first -= {name}
        again, topic.again = topic.again, False
        topic.stage, topic.failures, topic.partitions = _Stage.SUBSCRIBED, 0, partitions
        if again and name in self._names:
            return self._subscribe(name)
        return self._reconcile((name,))

    def failed(self, name: str, now: float, *, gone: bool) -> list[Action]:
        """Take note that a topic is not, or not fully, consumed. ``gone`` says that the cluster has no such topic."""
        topic = self._topics[name]
        assert topic.stage is _Stage.SUBSCRIBING
        if gone and self._first is not None:
            self._first -= {name}
        return self._try_later(name, topic, now, poll=gone)

    def ended(self, name: str, now: float) -> list[Action]:
        """Take note that a subscribed topic is no longer, or not fully, consumed."""
        topic = self._topics.get(name)
        if topic is None or topic.stage in (_Stage.LETTING_GO, _Stage.WAITING):
            return []
        if topic.stage is _Stage.SUBSCRIBING:
            topic.again = True
            return self._request_poll(now)
        return self._try_later(name, topic, now, poll=True)

    def on_closed(self, name: str, now: float) -> list[Action]:
        """Take note that all consumers of a topic are closed."""
        assert self._topics[name].stage is _Stage.LETTING_GO
        del self._topics[name]
        return self._reconcile((name,))

    def tick(self, now: float) -> list[Action]:
        """Do what is due by ``now``: retries, lost polls, and the periodic poll."""
        actions: list[Action] = []
        for name in [name for name, retry_at in self._retry_at.items() if retry_at <= now]:
            actions += self._subscribe(name)
        if self._asked_at is not None and now >= self._asked_at + POLL_ANSWER_SECONDS_MAX:
            self._asked_at = None
            self._poll_wanted = True
        if now >= self._period_over_at:
            self._period_over_at = now + self._period_seconds
            for name, topic in self._topics.items():
                if topic.partitions and topic.stage is _Stage.SUBSCRIBED:
                    actions += self._subscribe(name)
            if self._connected and self._asked_at is None:
                return actions + self._poll(now)
        return actions + (self._request_poll(now) if self._poll_wanted else [])

    # Inside.

    def _reconcile(self, names: Iterable[str] | None = None) -> list[Action]:
        """Return the actions that bring these topics, or all, in line with the list."""
        actions: list[Action] = []
        for name in sorted(self._names | self._topics.keys()) if names is None else names:
            topic = self._topics.get(name)
            wanted = name in self._names and not self._ignores(name)
            match topic.stage if topic is not None else None:
                case None if wanted:
                    actions += self._subscribe(name)
                case _Stage.SUBSCRIBED | _Stage.WAITING if not wanted:
                    # A waiting topic may have open parts.
                    self._topics[name] = _Topic(_Stage.LETTING_GO)
                    self._retry_at.pop(name, None)
                    actions.append(CloseConsumers(name))
        return actions

    def _made_anew(self, name: str) -> list[Action]:
        topic = self._topics.get(name)
        if topic is None or topic.stage is _Stage.LETTING_GO:
            return []  # it is subscribed to when it is let go of
        if topic.stage is _Stage.SUBSCRIBING:
            topic.again = True
            return []
        return self._subscribe(name)

    def _subscribe(self, name: str) -> list[Action]:
        topic = self._topics.setdefault(name, _Topic(_Stage.SUBSCRIBING))
        topic.stage = _Stage.SUBSCRIBING
        self._retry_at.pop(name, None)
        return [SubscribeTopic(name, from_start=self._first is not None and name not in self._first)]

    def _try_later(self, name: str, topic: _Topic, now: float, *, poll: bool) -> list[Action]:
        again, topic.again = topic.again, False
        topic.stage = _Stage.WAITING
        pause_seconds = 0.0 if again else min(RETRY_FIRST_SECONDS * 2**topic.failures, RETRY_MAX_SECONDS)
        self._retry_at[name] = now + pause_seconds
        topic.failures = min(topic.failures + 1, 16)
        return self._reconcile((name,)) + (self._request_poll(now) if poll else [])

    def _request_poll(self, now: float) -> list[Action]:
        self._poll_wanted = True
        if not self._connected or self._asked_at is not None or now < self._polled_at + POLL_PAUSE_SECONDS:
            return []
        return self._poll(now)

    def _poll(self, now: float) -> list[Action]:
        self._poll_wanted = False
        self._asked_at = self._polled_at = now
        return [Poll(self._hash)]
