"""Requests of a client to a connected consumer: permits, acknowledgements, redelivery, seek, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator

from replicator.engine.errors import EngineError
from replicator.gateway.connection import Connection
from replicator.gateway.consuming import ConsumerSession
from replicator.gateway.message_ids import place_of
from replicator.gateway.refusals import server_error
from replicator.protocol.commands_pb2 import BaseCommand, CommandConsumerStatsResponse, ServerError
from replicator.protocol.errors import Refused
from replicator.protocol.frames import Frame
from snapshots.position import Position

T = BaseCommand.Type


def flow(connection: Connection, frame: Frame) -> None:
    """FLOW: grant permits. Here and below, a command for a consumer that is gone is dropped, as Apache Pulsar does."""
    command = frame.command.flow
    session: ConsumerSession | None = connection.state.consumers.get(command.consumer_id)
    if session is not None:
        session.flow(command.messagePermits)


def redeliver(connection: Connection, frame: Frame) -> Iterator[None] | None:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES: deliver all of them again, or those that are listed."""
    command = frame.command.redeliverUnacknowledgedMessages
    session: ConsumerSession | None = connection.state.consumers.get(command.consumer_id)
    return None if session is None else session.redeliver(command)


def seek(connection: Connection, frame: Frame) -> None:
    """SEEK: move to a message id or a time. The client is disconnected from the subscription, and comes back."""
    wanted = frame.command.seek
    session = _session(connection, wanted.consumer_id, wanted.request_id)
    if session is None:
        return

    async def go() -> None:
        target: Position | int = wanted.message_publish_time
        if wanted.HasField("message_id"):
            target, known_as = place_of(session.topic, wanted.message_id, extended=session.extended)
            connection.known_as.put(wanted.consumer_id, known_as)
        await session.seek(target)
        connection.succeeded(wanted.request_id)

    connection.request(wanted.request_id, go(), "seeking")


def restarted(connection: Connection, frame: Frame) -> None:
    """RESTARTED: note that the client has seen that the subscription's position was moved."""
    session: ConsumerSession | None = connection.state.consumers.get(frame.command.restarted.consumer_id)
    if session is not None:
        session.restart_seen()


def last_message_id(connection: Connection, frame: Frame) -> None:
    """GET_LAST_MESSAGE_ID: answer with the topic's last message."""
    wanted = frame.command.getLastMessageId
    session = _session(connection, wanted.consumer_id, wanted.request_id)
    if session is not None:
        try:
            answer = session.last_message_id()
        except EngineError as error:  # damage to this topic must not end the connection, which others share
            connection.refuse(wanted.request_id, error)
            return
        answer.request_id = wanted.request_id
        connection.send(BaseCommand(type=T.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=answer))


def stats(connection: Connection, frame: Frame) -> None:
    """CONSUMER_STATS: answer with the consumer's figures."""
    wanted = frame.command.consumerStats
    session: ConsumerSession | None = connection.state.consumers.get(wanted.consumer_id)
    if session is None:
        answer = CommandConsumerStatsResponse(
            request_id=wanted.request_id,
            error_code=ServerError.ConsumerNotFound,
            error_message=f"consumer {wanted.consumer_id} is not there",
        )
    else:
        try:
            answer = session.stats()
        except EngineError as error:
            answer = CommandConsumerStatsResponse(error_code=server_error(error), error_message=str(error))
        answer.request_id = wanted.request_id
    connection.send(BaseCommand(type=T.CONSUMER_STATS_RESPONSE, consumerStatsResponse=answer))


def _session(connection: Connection, consumer_id: int, request_id: int) -> ConsumerSession | None:
    session: ConsumerSession | None = connection.state.consumers.get(consumer_id)
    if session is None:
        connection.refuse(request_id, Refused(ServerError.MetadataError, "Consumer not found"))
    return session
