"""Connector that follows the active cluster: it asks where its clients belong, and moves when that changes.

It polls the given addresses (one of each worker, ideally) every few seconds, and at once when a cluster refuses it or
is lost. Workers answer in the form that Pulsar's clients poll for a controlled failover, with the failover epoch in a
header. The answer with the greatest epoch is right. A lesser epoch than the known one is never followed, so that an old
primary that has not heard of its end cannot call its clients back.

When the address changes, every channel is lost with :class:`ConnectError`; its owner opens it again, at the new
address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import aiohttp

from replicator.client.errors import AlreadyClosed, ClusterFenced, ConnectError, InvalidUrl, PulsarException
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.client.tasks import client_supervisor
from replicator.client.wire.address import parse_addresses, written
from replicator.client.wire.channel import Connector, ConsumerChannel, ProducerChannel, TopicWatchChannel
from replicator.running.supervisor import SupervisedTask
from replicator.running.timeouts import timeout

EPOCH_HEADER: Final = "X-Replicator-Epoch"
ASK_SECONDS_MAX: Final = 3.0
"""Longest wait for one provider. A dead worker must not delay the answers of the others."""
FRESH_SECONDS: Final = 0.02
"""Time for which an answer counts, so that many channels that are opened again at once ask once."""
ANSWER_BYTES_MAX: Final = 64 * 1024

_log = logging.getLogger(__name__)

T = TypeVar("T")


class MovableConnector(Connector, Protocol):
    """Connector that can give up everything it has opened."""

    async def lose_all(self, error: PulsarException) -> None:
        """End every channel with ``error``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Address where clients belong. ``epoch`` is None from a provider without epochs, whose answer counts
    unconditionally."""

    url: str
    epoch: tuple[int, str, str] | None


def best_answer(answers: Sequence[Answer], known: Answer | None) -> Answer | None:
    """Return the answer to follow: the one with the greatest epoch, unless a greater one is known.

    If none has an epoch, return the first. Return None to stay."""
    numbered = [answer for answer in answers if answer.epoch is not None]
    if not numbered:
        return answers[0] if answers and (known is None or known.epoch is None) else None
    best = max(numbered, key=lambda answer: answer.epoch or (0, "", ""))
    if known is not None and known.epoch is not None and (best.epoch or (0, "", "")) < known.epoch:
        return None
    return best


class FollowingConnector:
    """Connector to the cluster that the ``providers`` name. ``connect`` makes a connector for an address."""

    def __init__(
        self,
        providers: Sequence[str],
        connect: Callable[[str], MovableConnector],
        *,
        default_url: str | None,
        check_interval_seconds: float,
    ) -> None:
        self._providers = tuple(providers)
        self._connect = connect
        self._default_url = default_url
        self._check_interval_seconds = check_interval_seconds
        self._known: Answer | None = None
        self._current: MovableConnector | None = None
        self._session: aiohttp.ClientSession | None = None
        self._polling: SupervisedTask | None = None
        self._checking = asyncio.Lock()
        self._checked_at = 0.0
        self._doubtful = False
        """Whether to ask the providers before the next attempt, because something could not be opened.

        A cluster that refuses may take its own clients a moment later."""
        self._closed = False

    @property
    def service_url(self) -> str | None:
        """Address where channels are opened now; None before the first."""
        return None if self._known is None else self._known.url

    async def open_producer(self, settings: ProducerSettings, topic_epoch: int | None = None) -> ProducerChannel:
        return await self._with(lambda connector: connector.open_producer(settings, topic_epoch))

    async def open_consumer(self, settings: ConsumerSettings) -> ConsumerChannel:
        return await self._with(lambda connector: connector.open_consumer(settings))

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        return await self._with(lambda connector: connector.partitions(topic, create=create))

    async def open_topic_watch(self, pattern: str, known_hash: str) -> TopicWatchChannel:
        return await self._with(lambda connector: connector.open_topic_watch(pattern, known_hash))

    async def close(self) -> None:
        self._closed = True
        if self._polling is not None:
            await self._polling.stop()
        if self._current is not None:
            await self._current.close()
        if self._session is not None:
            await self._session.close()

    async def _with(self, open_channel: Callable[[MovableConnector], Awaitable[T]]) -> T:
        """Open something at the present cluster.

        After a refusal or a failed connection, ask the providers at once whether there is another cluster, and raise an
        error that the caller retries."""
        connector = await self._present()
        try:
            channel = await open_channel(connector)
        except (ClusterFenced, ConnectError) as error:
            self._doubtful = True
            await self._check()
            raise ConnectError(str(error)) from error
        self._doubtful = False
        return channel

    async def _present(self) -> MovableConnector:
        if self._closed:
            raise AlreadyClosed("the client is closed: make a new one")
        if self._polling is None:
            self._polling = client_supervisor().start("following", "poll of the service URL", self._poll)
        fresh = asyncio.get_running_loop().time() - self._checked_at < FRESH_SECONDS
        if self._current is None or (self._doubtful and not fresh):
            await self._check()
        if self._current is None:
            raise ConnectError(
                f"none of {', '.join(self._providers)} says where to connect: see that these addresses answer, and "
                "that the cluster they name can be reached"
            )
        return self._current

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._check_interval_seconds)
            await self._check()

    async def _check(self) -> None:
        """Ask all providers, and move if the best answer names another address."""
        async with self._checking:
            if self._closed:
                return
            found = await asyncio.gather(*map(self._ask, self._providers))
            self._checked_at = asyncio.get_running_loop().time()
            best = best_answer([answer for answer in found if answer is not None], self._known)
            if best is None and self._known is None and self._default_url is not None:
                best = Answer(self._default_url, None)
            if best is not None and not self._closed:
                await self._follow(best)

    async def _follow(self, answer: Answer) -> None:
        before, self._known = self._known, answer
        if before is not None and before.url == answer.url:
            return
        former, self._current = self._current, self._connect(answer.url)
        if former is not None and before is not None:
            _log.warning("the active cluster is at %s now, and not at %s any more: moving", answer.url, before.url)
            await former.lose_all(ConnectError(f"{before.url}: its clients are served at {answer.url} now"))
            await former.close()

    async def _ask(self, provider: str) -> Answer | None:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            async with (
                timeout(ASK_SECONDS_MAX),
                self._session.get(provider) as response,
            ):
                response.raise_for_status()
                if (response.content_length or 0) > ANSWER_BYTES_MAX:
                    raise ValueError("the answer is too long")  # noqa: TRY301 - reported as the other failures are
                body = await response.json()
                url = str(body["serviceUrl"])
                epoch = response.headers.get(EPOCH_HEADER)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            _log.debug("%s: %s", provider, error or type(error).__name__)
            return None
        try:
            url = written(parse_addresses(url))
        except InvalidUrl as error:
            _log.warning("%s: %s", provider, error)
            return None
        return Answer(url, None if epoch is None else _epoch(epoch))


def _epoch(header: str) -> tuple[int, str, str] | None:
    number, writer, record_id, *_ = [*header.split(" "), "", ""]
    return (int(number), writer, record_id) if number.isdecimal() and len(number) <= 20 else None
