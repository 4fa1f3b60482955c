"""Schemas on the wire: what producers and consumers bring, GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

from typing import Any

from replicator.engine.errors import EngineError
from replicator.engine.schemas.schema import TopicSchema
from replicator.gateway.connection import Connection
from replicator.gateway.refusals import server_error
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchemaResponse,
)
from replicator.protocol.frames import Frame
from replicator.protocol.schemas import schema_from, schema_on_the_wire
from replicator.security.permissions import USING, Action

T = BaseCommand.Type


def schema_of(command: Any) -> TopicSchema | None:
    """Return the schema that a PRODUCER or SUBSCRIBE brings; None if it brings none."""
    return schema_from(command.schema) if command.HasField("schema") else None


async def version_for_producer(connection: Connection, topic: str, schema: TopicSchema | None) -> bytes:
    """Return the schema version that the producer must write into its messages; raise :class:`IncompatibleSchema`."""
    if schema is None:
        connection.schemas.check_without(topic)
        return b""
    return await connection.schemas.add(topic, schema)


async def check_consumer(connection: Connection, topic: str, schema: TopicSchema | None) -> None:
    """Check a consumer's schema. Raise :class:`IncompatibleSchema`."""
    if schema is not None:
        await connection.schemas.add_or_check_consumer(topic, schema)


def get(connection: Connection, frame: Frame) -> None:
    """GET_SCHEMA: answer with the schema of a version, or the newest."""
    wanted = frame.command.getSchema
    answer = CommandGetSchemaResponse(request_id=wanted.request_id)
    try:
        connection.guard.check_topic(connection.role, USING, wanted.topic)
        found = connection.schemas.find(wanted.topic, wanted.schema_version or None)
    except EngineError as error:
        answer.error_code, answer.error_message = server_error(error), str(error)
    else:
        answer.schema_version = found.version
        answer.schema.CopyFrom(schema_on_the_wire(found))
    connection.send(BaseCommand(type=T.GET_SCHEMA_RESPONSE, getSchemaResponse=answer))


def get_or_create(connection: Connection, frame: Frame) -> None:
    """GET_OR_CREATE_SCHEMA: register the schema of a producer that changes it, or learns it while it runs."""
    connection.work(_get_or_create(connection, frame.command.getOrCreateSchema), "registering of a schema")


async def _get_or_create(connection: Connection, wanted: CommandGetOrCreateSchema) -> None:
    answer = CommandGetOrCreateSchemaResponse(request_id=wanted.request_id)
    try:
        connection.guard.check_topic(connection.role, (Action.PRODUCE,), wanted.topic)
        await connection.engine.topic(wanted.topic, create=False)  # a schema without a topic would stay for ever
        answer.schema_version = await version_for_producer(connection, wanted.topic, schema_from(wanted.schema))
    except EngineError as error:
        answer.error_code, answer.error_message = server_error(error), str(error)
    connection.send(BaseCommand(type=T.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer))
