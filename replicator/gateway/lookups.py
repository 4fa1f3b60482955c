"""Where a topic is served, how many partitions it has, and which topics a namespace has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replicator.engine.errors import EngineError
from replicator.engine.topics.topic_list import topic_list_hash
from replicator.gateway.refusals import server_error
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)

if TYPE_CHECKING:
    from replicator.engine.engine import Engine
    from replicator.gateway.connection import Connection

T = BaseCommand.Type


@dataclass(frozen=True, slots=True)
class Addresses:
    """What lookups answer: where clients reach this worker."""

    url: str
    """``pulsar://host:port``."""
    tls_url: str | None = None


def found(wanted: CommandLookupTopic, addresses: Addresses) -> BaseCommand:
    """One worker serves all topics of its cluster, so every lookup is answered with its address."""
    answer = CommandLookupTopicResponse(
        request_id=wanted.request_id,
        response=CommandLookupTopicResponse.LookupType.Connect,
        brokerServiceUrl=addresses.url,
        authoritative=True,
        proxy_through_service_url=False,
    )
    if addresses.tls_url is not None:
        answer.brokerServiceUrlTls = addresses.tls_url
    return BaseCommand(type=T.LOOKUP_RESPONSE, lookupTopicResponse=answer)


def not_found(wanted: CommandLookupTopic, error: ServerError, message: str) -> BaseCommand:
    answer = CommandLookupTopicResponse(
        request_id=wanted.request_id,
        response=CommandLookupTopicResponse.LookupType.Failed,
        error=error,
        message=message,
    )
    return BaseCommand(type=T.LOOKUP_RESPONSE, lookupTopicResponse=answer)


async def partitions(connection: Connection, wanted: CommandPartitionedTopicMetadata) -> None:
    """How many partitions the topic has; it is made if the client is about to use it and policies make topics."""
    answer = CommandPartitionedTopicMetadataResponse(request_id=wanted.request_id)
    try:
        if wanted.metadata_auto_creation_enabled:
            answer.partitions = await connection.engine.partitions_for_use(wanted.topic)
        else:
            answer.partitions = connection.engine.partitions(wanted.topic)
        answer.response = CommandPartitionedTopicMetadataResponse.LookupType.Success
    except EngineError as error:
        answer.response = CommandPartitionedTopicMetadataResponse.LookupType.Failed
        answer.error, answer.message = server_error(error), str(error)
    connection.send(BaseCommand(type=T.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer))


def topics(engine: Engine, wanted: CommandGetTopicsOfNamespace) -> BaseCommand:
    """All topics of a namespace, each partition by itself, as upstream; the client filters them by its pattern."""
    prefix = f"persistent://{wanted.namespace}/"
    names = sorted(topic.name for topic in engine.topics() if topic.name.startswith(prefix))
    if wanted.mode == CommandGetTopicsOfNamespace.Mode.NON_PERSISTENT:
        names = []
    now = topic_list_hash(names)
    answer = CommandGetTopicsOfNamespaceResponse(request_id=wanted.request_id, topics_hash=now, filtered=False)
    answer.changed = not (wanted.HasField("topics_hash") and wanted.topics_hash == now)
    if answer.changed:
        answer.topics.extend(names)
    return BaseCommand(type=T.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=answer)
