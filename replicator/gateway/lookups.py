"""Answers about topics: where one is served, how many partitions it has, and which topics a namespace has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, InvalidPattern, InvalidTopicName, NamespaceNotFound, TopicNotFound
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.catalog_index import is_internal
from replicator.engine.topics.topic_list import sorted_list_hash
from replicator.engine.topics.topic_patterns import TopicPattern, parse_pattern
from replicator.gateway.connection import Connection
from replicator.gateway.producing import CLOSE_SECONDS_MAX
from replicator.gateway.refusals import moved_to_of, server_error
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)
from replicator.protocol.frames import Frame
from replicator.protocol.server import SESSIONS_MAX
from replicator.running.pacing import Pace
from replicator.security.errors import NotPermitted
from replicator.security.permissions import USING

T = BaseCommand.Type


def lookup(connection: Connection, frame: Frame) -> None:
    """LOOKUP: one worker serves all topics of its cluster, so every lookup is answered with its address.

    A cluster that another one serves sends clients there, and they find the way back by themselves: they look a topic
    up at the address that they were given, each time. One that is being switched, or does not know yet who serves it,
    lets them try again. Where only producers are sent away, consumers, who ask in the same way, are let in.

    "Try again" makes the clients in Java and Go close the connection. So it is said last: after its producers got their
    receipts, because they would send again, and after its consumers have finished.
    """
    waiting = connection.lookups_waiting
    if len(waiting) >= SESSIONS_MAX or not (waiting or _has_something_first(connection)):
        _answer(connection, frame)
        return
    waiting.append(frame)
    if len(waiting) == 1:
        connection.work(_answer_last(connection), "lookups during a switch")


def _has_something_first(connection: Connection) -> bool:
    fence = connection.admission.consumers
    if fence is None or moved_to_of(fence) is not None:
        return False
    finishing = connection.admission.finishing is not None and len(connection.state.consumers) > 0
    return finishing or bool(connection.unanswered)


async def _answer_last(connection: Connection) -> None:
    finishing = connection.admission.finishing
    if finishing is not None:
        await finishing.wait()
    if connection.unanswered:
        await asyncio.wait([session.answered() for session in connection.unanswered], timeout=CLOSE_SECONDS_MAX)
    waiting, connection.lookups_waiting = connection.lookups_waiting, []
    pace = Pace(connection.engine.turns, connection.share)
    for frame in waiting:
        _answer(connection, frame)
        await pace.step()


def _answer(connection: Connection, frame: Frame) -> None:
    wanted = frame.command.lookupTopic
    answer = CommandLookupTopicResponse(request_id=wanted.request_id)
    fence = connection.admission.consumers
    try:
        connection.guard.check_topic(connection.role, USING, wanted.topic)
        parse_topic(wanted.topic)
    except (InvalidTopicName, NotPermitted) as error:
        answer.response = CommandLookupTopicResponse.LookupType.Failed
        answer.error, answer.message = server_error(error), str(error)
    else:
        if fence is not None:
            _redirect(answer, fence)
            connection.send(BaseCommand(type=T.LOOKUP_RESPONSE, lookupTopicResponse=answer))
            return
        answer.response = CommandLookupTopicResponse.LookupType.Connect
        answer.brokerServiceUrl = connection.addresses.url
        if connection.addresses.tls_url is not None:
            answer.brokerServiceUrlTls = connection.addresses.tls_url
        answer.authoritative = True
    connection.send(BaseCommand(type=T.LOOKUP_RESPONSE, lookupTopicResponse=answer))


def _redirect(answer: CommandLookupTopicResponse, fence: EngineError) -> None:
    moved_to = moved_to_of(fence)
    if moved_to is None:
        answer.response = CommandLookupTopicResponse.LookupType.Failed
        answer.error, answer.message = ServerError.ServiceNotReady, str(fence)
    else:
        answer.response = CommandLookupTopicResponse.LookupType.Redirect
        answer.brokerServiceUrl = moved_to.url
        if moved_to.tls_url is not None:
            answer.brokerServiceUrlTls = moved_to.tls_url
        answer.authoritative = True


def partitions(connection: Connection, frame: Frame) -> None:
    """PARTITIONED_METADATA: how many partitions the topic has.

    A client that only asks must learn whether the topic is there: Java's takes the dead letter topic of an old name
    where it finds one. It is answered at once: only making a topic takes a task.
    """
    wanted = frame.command.partitionMetadata
    answer = CommandPartitionedTopicMetadataResponse(request_id=wanted.request_id)
    try:
        connection.guard.check_topic(connection.role, USING, wanted.topic)
        answer.partitions = connection.engine.partitioned.count(wanted.topic)
        if not answer.partitions and connection.engine.find(wanted.topic) is None:
            if wanted.metadata_auto_creation_enabled:
                connection.work(_partitions_made(connection, wanted.topic, answer), "partitions of a topic")
                return
            raise TopicNotFound(f"cluster {connection.engine.cluster!r} has no topic {wanted.topic!r}")
    except EngineError as error:
        _answer_partitions(connection, answer, error)
    else:
        _answer_partitions(connection, answer)


async def _partitions_made(connection: Connection, topic: str, answer: CommandPartitionedTopicMetadataResponse) -> None:
    """Answer for a topic that is made if the client is about to use it and policies make topics."""
    try:
        answer.partitions = await connection.engine.by_use.partitions(topic)
    except EngineError as error:
        _answer_partitions(connection, answer, error)
    else:
        _answer_partitions(connection, answer)


def _answer_partitions(
    connection: Connection, answer: CommandPartitionedTopicMetadataResponse, error: EngineError | None = None
) -> None:
    answer.response = CommandPartitionedTopicMetadataResponse.LookupType.Success
    if error is not None:
        answer.response = CommandPartitionedTopicMetadataResponse.LookupType.Failed
        answer.error, answer.message, answer.engine_error = server_error(error), str(error), error.code
    connection.send(BaseCommand(type=T.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer))


def topics_of_namespace(connection: Connection, frame: Frame) -> None:
    """GET_TOPICS_OF_NAMESPACE: list each partition by itself, as Apache Pulsar does. If this worker can read the
    pattern (:mod:`replicator.engine.topics.topic_patterns`), it matches the names, and says so. Otherwise the client
    gets all names, and matches them itself.
    """
    wanted = frame.command.getTopicsOfNamespace
    answer = CommandGetTopicsOfNamespaceResponse(request_id=wanted.request_id, filtered=False)
    names: list[str] = []
    try:
        connection.guard.check(connection.role, USING, wanted.namespace)
    except NotPermitted as error:
        connection.refuse(wanted.request_id, error)
        return
    if wanted.mode != CommandGetTopicsOfNamespace.Mode.NON_PERSISTENT:
        try:
            names = [name for name in connection.engine.catalog.topics(wanted.namespace) if not is_internal(name)]
        except NamespaceNotFound:
            names = []
        except EngineError as error:
            connection.refuse(wanted.request_id, error)
            return
    if wanted.topics_pattern:
        pattern = _pattern(wanted.topics_pattern, wanted.namespace)
        if pattern is not None:
            names = matching(pattern, names)
            answer.filtered = True
    answer.topics_hash = sorted_list_hash(names)
    answer.changed = not (wanted.HasField("topics_hash") and wanted.topics_hash == answer.topics_hash)
    if answer.changed:
        answer.topics.extend(names)
    connection.send(BaseCommand(type=T.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=answer))


def _pattern(text: str, namespace: str) -> TopicPattern | None:
    try:
        pattern = parse_pattern(text)
    except InvalidPattern:
        return None
    return pattern if pattern.namespace == namespace else None


def matching(pattern: TopicPattern, names: Iterable[str]) -> list[str]:
    """Return the names that match. A partition matches if its topic does."""
    return [name for name in names if pattern.matches(_without_partition(name.rpartition("/")[2]))]


def _without_partition(local_name: str) -> str:
    base, separator, number = local_name.rpartition("-partition-")
    return base if separator and number.isdigit() else local_name


def expanded(engine: Engine, name: str) -> tuple[str, ...]:
    """Return the topics that a consumer of ``name`` consumes: its partitions, or itself if it has none."""
    partitions = engine.partitioned.count(name)
    return tuple(f"{name}-partition-{number}" for number in range(partitions)) or (name,)
