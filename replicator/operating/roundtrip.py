"""A few messages that go the whole way: published at a cluster, copied over its links, consumed everywhere, removed.

It tells somebody who has just installed or changed clusters that they work, in seconds and without Spark of its own.
What holds in a failover is a drill's to find out.

1. A topic with a name of its own is made, so nobody else's messages are touched.
2. A subscription at the cluster, and one at each cluster that a link carries the topic to, read from its beginning.
3. Every message has to come to each of them, once and in order.
4. The topic is removed from all of them, whatever happened; the cluster where it began first, so that no link brings
   it again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_never, wait_exponential

from replicator.client import (
    AuthenticationError,
    AuthenticationToken,
    AuthorizationError,
    Client,
    Consumer,
    InitialPosition,
    InvalidConfiguration,
    MultiTopicsConsumer,
    NotAllowedError,
    PulsarException,
    ServiceUnitNotReady,
    TopicNotFound,
)
from replicator.client.authentication import AuthenticationTLS
from replicator.engine.errors import EngineError
from replicator.engine.topic_name import SCHEME, parse_namespace
from replicator.operating.admin_client import AdminClient, topic_path
from replicator.operating.errors import AdminError, InvalidAddress, NotThere, RequestRefused, WorkerUnavailable
from replicator.running.timeouts import timeout
from replicator.security.access import Access, access
from replicator.topology import Cluster, Topology

SUBSCRIPTION: Final = "roundtrip"
TOPIC_PREFIX: Final = "replicator-roundtrip-"
_RETRY_SECONDS_MAX: Final = 2.0
_NOT_FOUND: Final = 404

log = structlog.get_logger(__name__)


class NotArrived(NotThere):
    """Messages that did not come in time."""


async def run_roundtrip(
    topology: Topology, name: str, *, namespace: str, messages: int, with_links: bool, seconds_max: float
) -> list[str]:
    """What was seen, a line a cluster. Raises :class:`NotArrived`, :class:`AdminError`, :class:`TopologyError`."""
    home = topology.cluster(name)
    try:
        topic = f"{SCHEME}{parse_namespace(namespace)}/{TOPIC_PREFIX}{name}-{secrets.token_hex(4)}"
    except EngineError as error:
        raise InvalidAddress(f"--namespace: {error}") from None
    away = [
        cluster
        for cluster in topology.clusters
        if with_links and topology.link_carrying(name, cluster.name, topic) is not None
    ]
    payloads = [f"{name} {number}".encode() for number in range(messages)]
    try:
        return await _watched(home, away, topic, payloads, seconds_max)
    finally:
        await _remove(topic, [home, *away])


async def _watched(
    home: Cluster, away: list[Cluster], topic: str, payloads: list[bytes], seconds_max: float
) -> list[str]:
    lines: list[str] = []
    waits_for = home.name
    try:
        async with timeout(seconds_max):
            async with _consumer(home, topic) as consumer:
                started = time.monotonic()
                await _publish(home, topic, payloads)
                lines.append(f"{home.name}: {len(payloads)} messages published in {_ms_since(started)} ms")
                await _consume(home, consumer, payloads)
                lines.append(f"{home.name}: all consumed {_ms_since(started)} ms after they were begun")
            for cluster in away:
                waits_for = cluster.name
                async with _consumer(cluster, topic) as consumer:
                    await _consume(cluster, consumer, payloads)
                lines.append(f"{cluster.name}: all copied and consumed {_ms_since(started)} ms after they were begun")
    except TimeoutError:
        if not lines:
            raise WorkerUnavailable(
                f"{home.name} at {home.pulsar_url}: took no messages in {seconds_max:g} s"
            ) from None
        seen = "; ".join(lines)
        raise NotArrived(f"{waits_for}: not every message came within {seconds_max:g} s ({seen})") from None
    return lines


async def _publish(cluster: Cluster, topic: str, payloads: list[bytes]) -> None:
    async with _client(cluster) as client:
        producer = await client.create_producer(topic)
        for payload in payloads:
            await producer.send(payload)


async def _consume(cluster: Cluster, consumer: Consumer | MultiTopicsConsumer, payloads: list[bytes]) -> None:
    """All of them, once and in order."""
    for number, expected in enumerate(payloads):
        message = await consumer.receive()
        if message.data() != expected:
            raise NotArrived(
                f"{cluster.name}: message {number} of {len(payloads)} is {message.data()[:80]!r}, and should be "
                f"{expected!r}"
            )
        await consumer.acknowledge(message)


@asynccontextmanager
async def _consumer(cluster: Cluster, topic: str) -> AsyncIterator[Consumer | MultiTopicsConsumer]:
    """Where namespaces are not made by use, the topic is there when the link has brought it."""
    async with _client(cluster) as client:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((TopicNotFound, ServiceUnitNotReady)),
            wait=wait_exponential(multiplier=0.1, max=_RETRY_SECONDS_MAX),
            stop=stop_never,  # until the whole has taken too long
        )
        consumer: Consumer | MultiTopicsConsumer = await retrying(
            client.subscribe, topic, SUBSCRIPTION, initial_position=InitialPosition.Earliest, ack_receipt_enabled=True
        )
        yield consumer


@asynccontextmanager
async def _client(cluster: Cluster) -> AsyncIterator[Client]:
    """A client that shows what this process shows. Raises :class:`AdminError`."""
    try:
        async with Client(cluster.pulsar_url, **_options(access())) as client:
            yield client
    except (AuthenticationError, AuthorizationError, NotAllowedError, InvalidConfiguration) as error:
        raise RequestRefused(0, error.error(), f"{cluster.name}: {error.error()}: {error}") from None
    except PulsarException as error:
        raise WorkerUnavailable(f"{cluster.name} at {cluster.pulsar_url}: {error.error()}: {error}") from None


def _options(shown: Access) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if shown.token_file is not None or shown.token is not None:
        options["authentication"] = AuthenticationToken(lambda: shown.current_token() or "")
    elif shown.certificate is not None and shown.key is not None:
        options["authentication"] = AuthenticationTLS(str(shown.certificate), str(shown.key))
    if shown.trust is not None:
        options["tls_trust_certs_file_path"] = str(shown.trust)
    return options


async def _remove(topic: str, clusters: list[Cluster]) -> None:
    """From where it is; a cluster that does not answer keeps it, which the log of this command says."""
    for cluster in clusters:
        async with AdminClient(cluster.url) as admin:
            try:
                await admin.call("DELETE", topic_path(topic), force="true")
            except RequestRefused as error:
                if error.status != _NOT_FOUND:
                    log.warning("topic not removed", cluster=cluster.name, topic=topic, reason=str(error))
            except AdminError as error:
                log.warning("topic not removed", cluster=cluster.name, topic=topic, reason=str(error))


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
