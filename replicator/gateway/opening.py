"""Connecting producers and consumers, and closing them.

What is being connected has a slot of its own (:mod:`replicator.protocol.sessions`): the client may close the id before
it is there, and open it again.
"""

from __future__ import annotations

import asyncio

from replicator.engine.errors import InvalidSeek, NotAllowedError
from replicator.engine.types import AccessMode
from replicator.gateway import schemas
from replicator.gateway.connection import Connection
from replicator.gateway.consuming import ConsumerSession
from replicator.gateway.message_ids import start_of
from replicator.gateway.producing import ProducerSession
from replicator.gateway.values import producer_options, subscribe_options
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandProducer,
    CommandProducerSuccess,
    CommandSubscribe,
    ProducerAccessMode,
    ServerError,
)
from replicator.protocol.errors import Refused
from replicator.protocol.frames import Frame
from replicator.protocol.sessions import Slot
from replicator.security.permissions import Action

T = BaseCommand.Type


def produce(connection: Connection, frame: Frame) -> None:
    """PRODUCER: connect a producer. If it is connected already, answer again: the first answer may have come too late
    for the client.
    """
    wanted = frame.command.producer
    session: ProducerSession | None = connection.state.producers.get(wanted.producer_id)
    if session is not None:
        _answer_producer(connection, wanted.request_id, session)
        return
    try:
        slot = connection.state.producers.begin(wanted.producer_id)
    except Refused as error:
        connection.refuse(wanted.request_id, error)
        return
    waits = wanted.producer_access_mode == ProducerAccessMode.WaitForExclusive
    connecting = _connect_producer(connection, wanted, slot)
    connection.request(wanted.request_id, connecting, "connecting of a producer", waits=waits)


async def _connect_producer(connection: Connection, wanted: CommandProducer, slot: Slot[ProducerSession]) -> None:
    producers = connection.state.producers
    try:
        connection.guard.check_topic(connection.role, (Action.PRODUCE,), wanted.topic)
        if wanted.initial_subscription_name:
            connection.guard.check_subscription(connection.role, wanted.topic, wanted.initial_subscription_name)
        topic = await connection.engine.topic(wanted.topic)
        schema_version = await schemas.version_for_producer(connection, topic.name, schemas.schema_of(wanted))
        if wanted.initial_subscription_name:
            await topic.subscriptions.create_initial(wanted.initial_subscription_name)
        topic.writing.gate.check_newcomer()
        if not wanted.extended:
            _check_room(connection)
        if not producers.holds(slot):  # closed meanwhile: it must not wait for its turn
            return
        options = producer_options(wanted, connection.client)
        if options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE and (task := asyncio.current_task()) is not None:
            slot.abandoned = task.cancel  # else it would keep its place in the queue, and take the topic in its turn
        if options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE and topic.producers.connected:
            waiting = CommandProducerSuccess(
                request_id=wanted.request_id, producer_name=wanted.producer_name, producer_ready=False
            )
            connection.send(BaseCommand(type=T.PRODUCER_SUCCESS, producer_success=waiting))
        producer = await topic.producers.create(options)
        try:
            # One that waits for its turn may wait for days, in which its permission may be taken away.
            connection.guard.check_topic(connection.role, (Action.PRODUCE,), wanted.topic)
        except BaseException:
            producer.close()
            raise
    except BaseException:
        producers.failed(slot)
        raise
    session = ProducerSession(
        connection, wanted.producer_id, producer, topic.partition, schema_version, extended=wanted.extended
    )
    if producers.opened(slot, session):
        _answer_producer(connection, wanted.request_id, session)
    else:
        session.close()


def _check_room(connection: Connection) -> None:
    """Raise :class:`Refused` while the store takes no messages, with a code on which official clients pause.

    The official C++ client counts the time of its sends anew with each producer that it opens. Otherwise it would open
    one after each refused message, and no send would ever end.
    """
    if (full := connection.engine.writer.full()) is not None:
        raise Refused(ServerError.ProducerBlockedQuotaExceededError, full)


def _answer_producer(connection: Connection, request_id: int, session: ProducerSession) -> None:
    producer = session.producer
    success = CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer.name,
        last_sequence_id=producer.last_sequence_id,
        schema_version=session.schema_version,
    )
    if producer.topic_epoch is not None:
        success.topic_epoch = producer.topic_epoch
    connection.send(BaseCommand(type=T.PRODUCER_SUCCESS, producer_success=success))


def close_producer(connection: Connection, frame: Frame) -> None:
    """CLOSE_PRODUCER: close a producer. It succeeds also if there is none.

    The answer is sent after all receipts: when it comes, the client gives up messages that have no receipt.
    """
    wanted = frame.command.close_producer
    session: ProducerSession | None = connection.state.producers.close(wanted.producer_id)
    if session is not None:
        session.close()
        answered = session.answered()
        if not answered.done():
            answered.add_done_callback(lambda _: connection.succeeded(wanted.request_id))
            return
    connection.succeeded(wanted.request_id)


def subscribe(connection: Connection, frame: Frame) -> None:
    """SUBSCRIBE: connect a consumer."""
    wanted = frame.command.subscribe
    if connection.state.consumers.get(wanted.consumer_id) is not None:
        connection.succeeded(wanted.request_id)
        return
    try:
        slot = connection.state.consumers.begin(wanted.consumer_id)
    except Refused as error:
        connection.refuse(wanted.request_id, error)
        return
    connection.request(wanted.request_id, _connect_consumer(connection, wanted, slot), "connecting of a consumer")


async def _connect_consumer(connection: Connection, wanted: CommandSubscribe, slot: Slot[ConsumerSession]) -> None:
    consumers = connection.state.consumers
    try:
        connection.guard.check_subscription(connection.role, wanted.topic, wanted.subscription)
        topic = await connection.engine.topic(wanted.topic, create=wanted.force_topic_creation)
        await schemas.check_consumer(connection, topic.name, schemas.schema_of(wanted))
        epoch = wanted.consumer_epoch if wanted.HasField("consumer_epoch") else None
        put_at = None if wanted.durable else connection.put_at.get(wanted.consumer_id)
        # After a seek to a time, clients may still send the start that they had before.
        start, known_as = start_of(topic, wanted) if put_at is None else (put_at, None)
        if put_at is None and wanted.start_message_rollback_duration_sec:
            since_ms = topic.writer.wall_clock_ms() - 1000 * wanted.start_message_rollback_duration_sec
            start = await topic.reading.position_at_time(max(since_ms, 0), after=topic.log.trimmed)
        known_as = connection.known_as.get(wanted.consumer_id) or known_as
        session = ConsumerSession(
            connection,
            wanted.consumer_id,
            topic,
            epoch,
            known_as,
            extended=wanted.extended,
            broker_metadata=connection.wants_broker_metadata() and not wanted.extended,
        )
        options = subscribe_options(wanted, start, connection.client)
        consumer = await topic.subscribe(wanted.subscription, options, session.deliver)
    except InvalidSeek as error:
        consumers.failed(slot)
        _forget_seek(connection, wanted.consumer_id)
        # Clients would try again and again with the code that they have for it when they seek.
        connection.refuse(wanted.request_id, error, ServerError.NotAllowedError)
        return
    except BaseException:
        consumers.failed(slot)
        raise
    _forget_seek(connection, wanted.consumer_id)
    consumer.share = connection.share
    session.connected(consumer)
    if consumers.opened(slot, session):
        connection.succeeded(wanted.request_id)
    else:
        session.close()


def _forget_seek(connection: Connection, consumer_id: int) -> None:
    """Forget where a seek put the consumer: it has begun there, or will not come back."""
    connection.known_as.take(consumer_id)
    connection.put_at.take(consumer_id)


def close_consumer(connection: Connection, frame: Frame) -> None:
    """CLOSE_CONSUMER: close a consumer. It succeeds also if there is none."""
    wanted = frame.command.close_consumer
    _forget_seek(connection, wanted.consumer_id)
    session: ConsumerSession | None = connection.state.consumers.close(wanted.consumer_id)
    if session is not None:
        session.close()
    connection.succeeded(wanted.request_id)


def unsubscribe(connection: Connection, frame: Frame) -> None:
    """UNSUBSCRIBE: delete the subscription and this consumer."""
    wanted = frame.command.unsubscribe
    session: ConsumerSession | None = connection.state.consumers.get(wanted.consumer_id)

    async def delete() -> None:
        if session is None:
            raise Refused(ServerError.MetadataError, "Consumer not found")
        try:
            await session.unsubscribe(force=wanted.force)
        except NotAllowedError as error:  # it has other consumers: upstream's code for that is not that of its kind
            connection.refuse(wanted.request_id, error, ServerError.MetadataError)
            return
        if connection.state.consumers.get(wanted.consumer_id) is session:
            connection.state.consumers.close(wanted.consumer_id)
        connection.succeeded(wanted.request_id)

    connection.request(wanted.request_id, delete(), "unsubscribing")
