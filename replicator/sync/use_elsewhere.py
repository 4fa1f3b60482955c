"""Questions to other clusters before an unforced deletion of a subscription: do consumers use it there?

Invariants (DESIGN §3): 8, a cluster that does not answer delays a deletion by ``sync.in_use_timeout_ms`` at most, and
nothing else; 11, at most :data:`QUESTIONS_AT_ONCE_MAX` questions to one cluster are under way.

1. The worker asks at once all clusters that the deletion will be announced to: the clusters that receive the topic's
   markers.
2. The first answer with consumers refuses the deletion, and the error names that cluster. The other answers are not
   awaited.
3. A cluster that gives no valid answer counts as having no consumers, and a log line names it. It may be away or too
   slow, or its worker may be of a release without this route.
4. A consumer may connect right after its cluster answered. The tombstone protects it:
   :mod:`replicator.engine.subscriptions.deleting`.

The question is about all partitions of a topic together. A client that unsubscribes from a partitioned topic deletes
partition by partition, so either all deletions are refused, or none is. Equal questions at the same time share their
answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, SubscriptionBusy
from replicator.engine.topic import Topic
from replicator.engine.topic_name import check_subscription_name, parse_topic
from replicator.running.connecting import why_no_answer
from replicator.running.short_tasks import awaited, heard
from replicator.running.timeouts import timeout_at
from replicator.security.asking import worker_session, worker_url

ROUTE: Final = "/replication/v1/subscription-use"
"""``POST`` takes a :class:`UseQuestion`, and answers with a :class:`UseAnswer`."""
TOPICS_MAX: Final = 1_000
"""Topics in one question. More topics are asked for in several questions, one after another, within the same time."""
QUESTIONS_AT_ONCE_MAX: Final = 16
"""Questions under way to one cluster. The time limit of a question also runs while it waits for its turn."""
TOPICS_A_TURN: Final = 100
"""Topics whose peers are looked up in one turn of the event loop."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UseQuestion:
    """Question to one cluster: how many consumers does the replicated subscription have on each of the topics?"""

    subscription: str
    topics: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"subscription": self.subscription, "topics": list(self.topics)}

    @classmethod
    def from_json(cls, body: Any) -> UseQuestion:
        """Read a question from a JSON body.

        Raises ``ValueError`` if the body is malformed, and :class:`EngineError` for an invalid topic or subscription
        name.
        """
        match body:
            case {"subscription": str(subscription), "topics": [*topics]} if len(topics) <= TOPICS_MAX and all(
                isinstance(topic, str) for topic in topics
            ):
                check_subscription_name(subscription)
                return cls(subscription, tuple(str(parse_topic(topic)) for topic in topics))
        raise ValueError(
            "a cluster's question how many consumers a subscription has is malformed: expected a subscription, and a "
            f"list of at most {TOPICS_MAX} topic names, not {body!r:.80}; run the same version in all clusters"
        )


@dataclass(frozen=True, slots=True)
class UseAnswer:
    """Answer of one cluster: how many consumers are connected, by topic. Topics without consumers are left out."""

    cluster: str
    consumers: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"cluster": self.cluster, "consumers": dict(self.consumers)}

    @classmethod
    def from_json(cls, body: Any) -> UseAnswer:
        """Read an answer from a JSON body. Raises ``ValueError`` if the body is malformed."""
        match body:
            case {"cluster": str(cluster), "consumers": dict(consumers)} if all(
                isinstance(topic, str) and type(count) is int and count > 0 for topic, count in consumers.items()
            ):
                return cls(cluster, consumers)
        raise ValueError(
            "a cluster's answer to the question how many consumers a subscription has is malformed: expected a "
            f"cluster, and numbers of consumers by topic, not {body!r:.80}; run the same version in all clusters"
        )


class RemoteUse:
    """Asks the workers of other clusters whether consumers use a subscription.

    ``peers`` returns the clusters to which deletions on a topic are announced.
    """

    def __init__(self, engine: Engine, peers: Callable[[Topic], frozenset[str]]) -> None:
        self._engine = engine
        self._peers = peers
        self._addresses: Mapping[str, str] = {}
        self._seconds = 0.0
        self._session: aiohttp.ClientSession | None = None
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._asking: dict[UseQuestion, asyncio.Task[None]] = {}

    def change(self, addresses: Mapping[str, str], timeout_ms: int) -> None:
        """Replace the workers' addresses, and the time to wait for answers. With a ``timeout_ms`` of 0 nobody is
        asked."""
        self._addresses, self._seconds = dict(addresses), timeout_ms / 1000

    async def stop(self) -> None:
        """Cancel all questions, and close the connections. Call this after everything that may wait for an answer has
        ended."""
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def check_unused(self, subscription: str, topics: Sequence[str]) -> None:
        """Raise :class:`SubscriptionBusy` if another cluster has consumers of ``subscription`` on one of ``topics``.

        A partition stands for all partitions of its topic. A cluster that does not answer in time counts as having
        none.
        """
        if not self._seconds:
            return
        question = UseQuestion(subscription, tuple(self._with_partitions(topics)))
        asking = self._asking.get(question)
        if asking is None:
            asking = self._asking[question] = awaited(self._check(question), "asking for consumers elsewhere")
            asking.add_done_callback(lambda task: self._asked(question, task))
        try:
            await asyncio.shield(asking)
        except SubscriptionBusy as error:
            raise SubscriptionBusy(str(error)) from None  # each caller gets an error of its own

    def _asked(self, question: UseQuestion, task: asyncio.Task[None]) -> None:
        self._asking.pop(question, None)
        heard(task)

    def _with_partitions(self, topics: Sequence[str]) -> list[str]:
        """Return ``topics``, each partition among them replaced by all partitions of its topic."""
        found: dict[str, None] = {}
        for topic in topics:
            whole = topic.rpartition("-partition-")[0] if parse_topic(topic).partition >= 0 else ""
            partitions = self._engine.partitioned.count(whole) if whole and whole not in found else 0
            found.update((f"{whole}-partition-{index}", None) for index in range(partitions))
            found[topic] = None
        return list(found)

    async def _check(self, question: UseQuestion) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        asked = await self._by_cluster(question)
        tasks = {
            awaited(self._ask(cluster, question.subscription, topics, deadline), f"asking {cluster} for consumers")
            for cluster, topics in asked.items()
        }
        silent: dict[str, str] = {}
        try:
            for answered in asyncio.as_completed(tasks):
                cluster, answer = await answered
                if isinstance(answer, str):
                    silent[cluster] = answer
                elif answer:
                    topic, count = next(iter(answer.items()))
                    raise SubscriptionBusy(
                        f"cluster {cluster} has {count} consumers of subscription {question.subscription!r} of "
                        f"{topic}, and a deletion would lose how far they are: disconnect them, or use force"
                    )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if silent:
            log.warning(
                "a subscription is deleted, but some clusters did not tell whether consumers use it",
                subscription=question.subscription,
                topic=question.topics[0],
                silent=silent,
            )

    async def _by_cluster(self, question: UseQuestion) -> dict[str, list[str]]:
        asked: dict[str, list[str]] = {}
        for number, name in enumerate(question.topics):
            if (topic := self._engine.find(name)) is not None:
                for cluster in self._peers(topic) & self._addresses.keys():
                    asked.setdefault(cluster, []).append(name)
            if number % TOPICS_A_TURN == TOPICS_A_TURN - 1:
                await asyncio.sleep(0)
        return asked

    async def _ask(
        self, cluster: str, subscription: str, topics: Sequence[str], deadline: float
    ) -> tuple[str, Mapping[str, int] | str]:
        """Return the cluster's name, with its consumers by topic, or the reason why it gave no valid answer by
        ``deadline``."""
        turns = self._turns.setdefault(cluster, asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX))
        try:
            async with timeout_at(deadline), turns:
                for part in _parts(topics):
                    if consumers := (await self._answer(cluster, UseQuestion(subscription, part))).consumers:
                        return cluster, consumers
        except TimeoutError:
            return cluster, f"no answer within {self._seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError, EngineError) as error:
            return cluster, why_no_answer(error, "")
        return cluster, {}

    async def _answer(self, cluster: str, question: UseQuestion) -> UseAnswer:
        if self._session is None:
            self._session = worker_session()
        url = f"{worker_url(self._addresses[cluster])}{ROUTE}"
        async with self._session.post(url, json=question.to_json()) as response:
            body = await response.json()
        if response.status == 404:
            raise ValueError(
                "its worker is of an earlier release, which cannot tell whether a subscription has consumers: upgrade "
                "it"
            )
        if response.status != 200:
            raise ValueError(f"status {response.status}: {body}"[:300])
        return UseAnswer.from_json(body)


def _parts(topics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for first in range(0, len(topics), TOPICS_MAX):
        yield tuple(topics[first : first + TOPICS_MAX])
