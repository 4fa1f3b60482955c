"""Roundtrip: publishes a few messages at one cluster, and consumes them there and where its own links copy them.

It tells somebody who has just installed or changed clusters, within seconds and without Spark, that they work. A drill
tests failovers.

0. The workers of all clusters that are watched must answer, else no topic is made.
1. Topics that interrupted roundtrips left are removed, unless a cluster is beside Apache Pulsar brokers, whose clients
   its worker does not know. A roundtrip holds a consumer in its cluster until it ends, so a topic without clients
   belongs to an ended one.
2. A topic with a new name is made, so nobody else's messages are touched.
3. The cluster, and each cluster that a direct link carries the topic to, get a subscription that reads the topic from
   its beginning. With ``--no-links`` only the first cluster gets one.
4. Every message must come to each subscription, once and in order.
5. The topic is always removed at the end, from all clusters that it may have reached, even those that were not watched.
   Links copy a topic, but not its deletion. The topic is removed from its first cluster first, so that no link brings
   it again.
6. The namespace is removed from the clusters that did not have it before, unless somebody else has a topic there.
   Clusters beside Apache Pulsar are left out.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

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
from replicator.operating.admin_client import AdminClient, namespace_path, namespaces_path, topic_path, topics_path
from replicator.operating.errors import AdminError, InvalidAddress, NotThere, RequestRefused, WorkerUnavailable
from replicator.operating.plan import probe_workers
from replicator.operating.topic_removal import NOT_FOUND, RemainingTopic, remove_topic
from replicator.running.short_tasks import to_the_end
from replicator.running.timeouts import timeout, timeout_at
from replicator.security.access import Access, access
from replicator.topology import Cluster, Topology

SUBSCRIPTION: Final = "roundtrip"
TOPIC_PREFIX: Final = "replicator-roundtrip-"
REMEDY: Final = "`replicator roundtrip -f FILE --remove-left` removes it"
QUIET_LOOKS: Final = 4
"""Rounds that must find the topic nowhere, half a second each. Links may still bring it to clusters that were not
watched."""
UNUSED_SECONDS: Final = 1.0
"""Pause between two checks whether a topic has clients: a topic that is just being made has none for a moment."""
LOOK_SECONDS_MAX: Final = 10.0
REMOVAL_SECONDS_MAX: Final = 10.0
REMOVAL_SHARE: Final = 0.25
"""Share of a roundtrip's time that is kept for the removal of its topic; :data:`REMOVAL_SECONDS_MAX` at most."""
_RETRY_SECONDS_MAX: Final = 2.0
_RANDOM_BYTES: Final = 4
_RANDOM: Final = re.compile(f"[0-9a-f]{{{2 * _RANDOM_BYTES}}}")


class NotArrived(NotThere):
    """Messages did not arrive in time."""


class NotRemoved(NotThere):
    """Error for a topic of a roundtrip that could not be removed from some cluster."""


async def run_roundtrip(
    topology: Topology,
    name: str,
    *,
    namespace: str,
    messages: int,
    with_links: bool,
    seconds_max: float,
    tell: Callable[[str], None],
) -> list[str]:
    """Publish messages at cluster ``name``, and consume them there and, with ``with_links``, where its links lead.

    Then remove the topic, and return a line of text for each cluster. All this takes ``seconds_max`` at most, or some
    seconds more if workers do not answer while the topic is removed. ``tell`` is called with notices for the user, such
    as topics of interrupted roundtrips that were removed.

    Raise :class:`NotArrived` if a message did not come in time, and :class:`NotRemoved` if the topic could not be
    removed. Raise :class:`AdminError` if a worker does not answer or refuses, and :class:`TopologyError` for an unknown
    cluster ``name``.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds_max
    removal_seconds = min(REMOVAL_SECONDS_MAX, seconds_max * REMOVAL_SHARE)
    home = topology.cluster(name)
    try:
        topic = f"{SCHEME}{parse_namespace(namespace)}/{TOPIC_PREFIX}{name}-{secrets.token_hex(_RANDOM_BYTES)}"
    except EngineError as error:
        raise InvalidAddress(f"--namespace: {error}") from None
    away = [
        cluster
        for cluster in topology.clusters
        if with_links and topology.link_carrying(name, cluster.name, topic) is not None
    ]
    reached = topology.reached_from(name, topic)
    payloads = [f"{name} {number}".encode() for number in range(messages)]
    there = [home, *(each for each in topology.clusters if each.name in reached)]
    await _need(topology, [home, *away], min(LOOK_SECONDS_MAX, seconds_max))
    lacking = await _lacking(there, namespace, removal_seconds)
    if all(cluster.apache is None for cluster in topology.clusters):  # a worker does not know the clients of brokers
        try:
            async with timeout_at(deadline - removal_seconds):
                for earlier in await remove_left(topology, namespace):
                    tell(f"removed the topic of an interrupted run: {earlier}")
        except TimeoutError:
            raise NotArrived(
                f"topics of interrupted runs could not be removed within {seconds_max:g} s; "
                "run it again with a longer --timeout"
            ) from None
    quiet = QUIET_LOOKS
    made: list[str] = []

    async def remove() -> list[RemainingTopic]:
        seconds = max(removal_seconds, deadline - clock())
        left = await remove_topic(there, topic, quiet_looks=quiet, seconds_max=seconds)
        if left and made:
            tell(f"{topic} could not be removed ({_named(left)}): {REMEDY}")
        await _remove_namespace(lacking, namespace, removal_seconds)
        return left

    try:
        lines = await _watched(home, away, topic, payloads, deadline - removal_seconds, made)
        quiet = 1 if reached <= {each.name for each in away} else QUIET_LOOKS  # else blocks may be on their way
    except NotArrived:  # perhaps because a worker went away: then raise that reason
        await _need(topology, [home, *away], removal_seconds)
        raise
    finally:
        left = await to_the_end(remove())
    # A cluster that was not watched may have been down all the time: then no link has copied the topic to it.
    unknown = [each for each in left if each.unavailable and each.cluster != name and not with_links]
    if len(unknown) < len(left):
        raise NotRemoved(
            f"every message came, but {topic} could not be removed; the output before names the clusters that may "
            "have it, and why"
        )
    return lines


async def _lacking(clusters: Sequence[Cluster], namespace: str, seconds_max: float) -> list[Cluster]:
    """Return those of ``clusters`` that answer that they have no such namespace."""

    async def lacks(cluster: Cluster) -> bool:
        try:
            async with timeout(seconds_max), AdminClient(cluster.url) as admin:
                return namespace not in await admin.call("GET", namespaces_path(namespace.partition("/")[0]))
        except RequestRefused as error:
            return error.status == NOT_FOUND  # there is no such tenant
        except (AdminError, TimeoutError):
            return False

    asked = [each for each in clusters if each.apache is None]
    lacking = await asyncio.gather(*map(lacks, asked))
    return [each for each, is_lacking in zip(asked, lacking, strict=True) if is_lacking]


async def _remove_namespace(clusters: Sequence[Cluster], namespace: str, seconds_max: float) -> None:
    """Remove a namespace that a roundtrip made by using it; a worker keeps it while it has topics."""
    for cluster in clusters:
        with suppress(AdminError, TimeoutError):
            async with timeout(seconds_max), AdminClient(cluster.url) as admin:
                await admin.call("DELETE", namespace_path(namespace))


async def _need(topology: Topology, needed: Sequence[Cluster], seconds_max: float) -> None:
    """Raise :class:`WorkerUnavailable` if the worker of any cluster in ``needed`` does not answer within
    ``seconds_max``."""
    probes = await probe_workers(topology, seconds_max)
    silent = [each for each in needed if not probes[each.name].reachable]
    if silent:
        named = "; ".join(f"{each.name} at {each.address}: {probes[each.name].detail}" for each in silent)
        raise WorkerUnavailable(
            f"workers do not answer: {named}; start them, or correct their addresses in the topology"
        )


def _named(left: list[RemainingTopic]) -> str:
    return "; ".join(map(str, left))


async def remove_left(topology: Topology, namespace: str, *, used_too: bool = False) -> list[str]:
    """Remove the topics that interrupted roundtrips left in ``namespace``, from all clusters that answer.

    Return the names of the topics. A topic is kept if clients are connected to it, or if the cluster where it was made
    does not answer: its roundtrip may still be working. With ``used_too`` such topics are removed as well. Raises
    :class:`NotRemoved` if a topic cannot be removed.
    """
    found = await _left_topics(topology, namespace, used_too=used_too)
    if found and not used_too:
        await asyncio.sleep(UNUSED_SECONDS)
        again = await _left_topics(topology, namespace, used_too=False)
        found = {topic: there for topic, there in again.items() if topic in found}
    problems: list[str] = []
    for topic, there in found.items():
        problems += [f"{topic}: {each}" for each in await remove_topic(there, topic)]
    if problems:
        raise NotRemoved(
            f"topics of earlier runs could not be removed: {'; '.join(problems)}. Mend that, and run it again with "
            "--remove-left"
        )
    return list(found)


async def _left_topics(topology: Topology, namespace: str, *, used_too: bool) -> dict[str, list[Cluster]]:
    """Return the topics of ended roundtrips, each with the clusters that answer; the cluster where it was made comes
    first.

    With ``used_too``, also return topics whose roundtrip may still be working.
    """
    answers = dict(
        zip(
            topology.names,
            await asyncio.gather(*(_topics_of_runs(each, namespace, topology.names) for each in topology.clusters)),
            strict=True,
        )
    )
    answering = [cluster for cluster in topology.clusters if answers[cluster.name] is not None]
    used: dict[str, bool] = {}
    for answer in answers.values():
        for topic, has_clients in (answer or {}).items():
            used[topic] = used.get(topic, False) or has_clients
    found: dict[str, list[Cluster]] = {}
    for topic, has_clients in used.items():
        home = _home_of(topic, topology.names)
        unknown = home is None or answers[home] is None
        if used_too or not (has_clients or unknown):
            found[topic] = sorted(answering, key=lambda cluster: cluster.name != home)
    return found


def _home_of(topic: str, clusters: Sequence[str]) -> str | None:
    """Return which of ``clusters`` made ``topic`` in a roundtrip; None if none of them did."""
    home, _, random = topic.rpartition(f"/{TOPIC_PREFIX}")[2].rpartition("-")
    made = f"{TOPIC_PREFIX}{home}-{random}" == topic.rpartition("/")[2] and _RANDOM.fullmatch(random)
    return home if made and home in clusters else None


async def _topics_of_runs(cluster: Cluster, namespace: str, clusters: Sequence[str]) -> dict[str, bool] | None:
    """Return a cluster's topics of roundtrips, each with whether a client is connected; None if its worker fails.

    Only topics of roundtrips that began at one of ``clusters`` count.
    """
    try:
        async with timeout(LOOK_SECONDS_MAX), AdminClient(cluster.url) as admin:
            names = [str(name) for name in await admin.call("GET", topics_path(namespace))]
            ours = [name for name in names if _home_of(name, clusters) is not None]
            return {name: _has_clients(await admin.call("GET", topic_path(name, "stats"))) for name in ours}
    except RequestRefused as error:
        return {} if error.status == NOT_FOUND else None  # the topic may have been deleted since the list
    except (AdminError, TimeoutError):
        return None


def _has_clients(stats: Any) -> bool:
    return bool(stats["publishers"]) or any(each["consumers"] for each in stats["subscriptions"].values())


async def _watched(
    home: Cluster, away: list[Cluster], topic: str, payloads: list[bytes], until: float, made: list[str]
) -> list[str]:
    """Publish ``payloads`` at ``home``, consume them in all clusters, and return a line of text for each cluster.

    This ends at ``until`` of the event loop's clock at the latest. ``made`` gets the name of the topic once it exists.
    """
    lines: list[str] = []
    waits_for = home.name
    try:
        async with timeout_at(until), _consumer(home, topic) as consumer:
            made.append(topic)
            started = time.monotonic()
            await _publish(home, topic, payloads)
            lines.append(f"{home.name}: {len(payloads)} messages published in {_ms_since(started)} ms")
            await _consume(home, consumer, payloads)
            lines.append(f"{home.name}: all consumed {_ms_since(started)} ms after publishing began")
            for cluster in away:  # meanwhile the consumer at home shows others that this roundtrip works
                waits_for = cluster.name
                async with _consumer(cluster, topic) as other:
                    await _consume(cluster, other, payloads)
                passed = f"{_ms_since(started)} ms after publishing began"
                lines.append(f"{cluster.name}: all copied and consumed {passed}")
    except TimeoutError:
        if not lines:
            raise WorkerUnavailable(
                f"{home.name} at {home.pulsar_url}: took no messages in time; see the log of its worker"
            ) from None
        seen = "; ".join(lines)
        raise NotArrived(
            f"{waits_for}: not every message came in time ({seen}); `replicator links list` shows what holds the "
            "links up"
        ) from None
    return lines


async def _publish(cluster: Cluster, topic: str, payloads: list[bytes]) -> None:
    async with _client(cluster) as client:
        producer = await client.create_producer(topic)
        for payload in payloads:
            await producer.send(payload)


async def _consume(cluster: Cluster, consumer: Consumer | MultiTopicsConsumer, payloads: list[bytes]) -> None:
    """Consume all messages, and check that each comes once and in order."""
    for number, expected in enumerate(payloads):
        message = await consumer.receive()
        if message.data() != expected:
            raise NotArrived(
                f"{cluster.name}: a message came twice, out of order or changed, or one was lost: message {number} of "
                f"{len(payloads)} is {message.data()[:80]!r}, and should be {expected!r}"
            )
        await consumer.acknowledge(message)


@asynccontextmanager
async def _consumer(cluster: Cluster, topic: str) -> AsyncIterator[Consumer | MultiTopicsConsumer]:
    """Yield a consumer. Repeat while the topic is missing: unless namespaces are made by use, it is there only when the
    link has brought it.
    """
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
    """Yield a client with this process's credentials. Raise :class:`AdminError`."""
    try:
        async with Client(cluster.pulsar_url, **_options(access())) as client:
            yield client
    except (AuthenticationError, AuthorizationError, NotAllowedError, InvalidConfiguration) as error:
        raise RequestRefused(0, error.error(), f"{cluster.name}: {error.error()}: {error}") from None
    except PulsarException as error:
        raise WorkerUnavailable(
            f"{cluster.name} at {cluster.pulsar_url}: the worker did not serve a client: {error.error()}: {error}"
        ) from None


def _options(shown: Access) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if shown.token_file is not None or shown.token is not None:
        options["authentication"] = AuthenticationToken(lambda: shown.current_token() or "")
    elif shown.certificate is not None and shown.key is not None:
        options["authentication"] = AuthenticationTLS(str(shown.certificate), str(shown.key))
    if shown.trust is not None:
        options["tls_trust_certs_file_path"] = str(shown.trust)
    return options


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
