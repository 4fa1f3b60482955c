"""Producing by a single request: ``POST /topics/persistent/TENANT/NAMESPACE/TOPIC``, for shells. In Pulsar's JSON.

1. The request's schema (``valueSchema`` and perhaps ``keySchema``, or a ``schemaVersion``; text without any of them) is
   registered as one of a producer would be.
2. Each message becomes an entry: its payload is a text that the schema encodes. One that cannot be is answered by its
   own error, and the others are published.
3. Messages go to a partition by their key, or in turn; with ``/partitions/P`` all to that one. Those of one partition
   are appended together, in order.

Invariant 11: :data:`BODY_BYTES_MAX`, :data:`MESSAGES_MAX`, and :data:`REQUESTS_MAX` at once. The messages of a request
are read, made and published in slices, between which others have their turn. A body that was read waits for its part of
the clients' budget (:mod:`replicator.engine.unpacking`) before its messages are made.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, groupby, islice
from typing import Any, Final

from aiohttp import web

from replicator.api.admin.errors import Unprocessable
from replicator.api.admin.requests import number_of, parsed, read_body
from replicator.api.slices import in_slices
from replicator.api.typed_payloads import encode_payload, key_value_schema, read_schema
from replicator.api.websocket.fields import (
    BadField,
    clusters_field,
    null_value_field,
    number_field,
    text_field,
    texts_field,
    time_field,
)
from replicator.client.producing.sending import wall_time_ms
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, InvalidPartitions, TooBusy
from replicator.engine.log.entry import encode_entry
from replicator.engine.producing.producers import EngineProducer
from replicator.engine.schemas.schema import SchemaType, TopicSchema
from replicator.engine.topic_name import parse_topic
from replicator.engine.types import ProducerOptions
from replicator.engine.unpacking import ASIDE_BYTES_MIN
from replicator.metadata.metadata_pb2 import KeyValue, MessageMetadata
from replicator.protocol.key_hashes import java_string_hash

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""More where the largest message is over half of it."""
MESSAGES_MAX: Final = 10_000
REQUESTS_MAX: Final = 16
"""More are answered by 429: each may hold a body."""
PUBLISHED_AT_ONCE: Final = 200
"""Messages of a request that go to the engine together: a millisecond of the event loop."""
FAILED: Final = 2
"""The ``errorCode`` of a message that is not stored, as upstream writes it."""
TEXT: Final = TopicSchema(SchemaType.STRING, b"", {"__charset": "UTF-8"}, "String")
"""Schema of a request that names none, as in Apache Pulsar."""
_turns = count()


@dataclass(frozen=True, slots=True)
class _Typed:
    """Types that turn the texts of a request into keys and payloads."""

    schema: TopicSchema
    key: TopicSchema | None
    value: TopicSchema


class RestProduce:
    """The handlers of one worker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._requests = 0

    async def produce(self, request: web.Request) -> web.Response:
        if self._requests >= REQUESTS_MAX:
            raise TooBusy(f"{REQUESTS_MAX} requests to produce are being served; try again later")
        self._requests += 1
        try:
            return await self._read_and_produce(request)
        except BadField as error:
            raise Unprocessable(str(error)) from None
        finally:
            self._requests -= 1

    async def _read_and_produce(self, request: web.Request) -> web.Response:
        body = await read_body(request, max(BODY_BYTES_MAX, 2 * self._engine.admission.message_bytes_max))
        transport, clients = request.transport, self._engine.unpacking.clients
        if len(body) < ASIDE_BYTES_MIN or transport is None:
            return await self._produce(request, await parsed(request, body))
        claim = await clients.take(transport, len(body), transport.abort)  # parsed, it takes several times as much
        try:
            return await self._produce(request, await parsed(request, body))
        finally:
            clients.give_back(claim)

    async def _produce(self, request: web.Request, body: Any) -> web.Response:
        parts = request.match_info
        topic = str(parse_topic(f"{parts['domain']}://{parts['tenant']}/{parts['namespace']}/{parts['topic']}"))
        if not isinstance(body, dict) or not isinstance(messages := body.get("messages", []), list):
            raise BadField('the body must be an object with a list of messages, as {"messages": [{"payload": "text"}]}')
        if len(messages) > MESSAGES_MAX:
            raise BadField(
                f"the request has {len(messages)} messages; {MESSAGES_MAX} are allowed: send them in several requests"
            )
        typed = self._typed(topic, body)
        partitions = await self._engine.by_use.partitions(topic)
        only = None
        if "partition" in parts:
            only = number_of(parts["partition"], "partition", most=max(partitions - 1, 0))
            if not partitions:
                raise InvalidPartitions(f"{topic} is not partitioned: produce to the topic itself")
        version = b""
        if typed.schema.type is not SchemaType.NONE:
            if not partitions:
                await self._engine.topic(topic)  # a schema of a topic that is refused would stay for ever
            version = await self._engine.schemas.add(topic, typed.schema)
        shares: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
        async for index, message in in_slices(self._engine, enumerate(messages)):
            partition = -1 if not partitions else only if only is not None else _partition(message, partitions)
            shares.setdefault(partition, []).append((index, message))
        answers: dict[int, dict[str, Any]] = {}
        name = text_field(body, "producerName")
        for partition, share in shares.items():
            answers.update(await self._publish(topic, partition, share, typed, version, name))
        shown = int.from_bytes(version, "big")
        return web.json_response(
            {"messagePublishResults": [answers[index] for index in range(len(messages))], "schemaVersion": shown}
        )

    def _typed(self, topic: str, body: Mapping[str, Any]) -> _Typed:
        """Return how the request's texts become keys and payloads. Raise :class:`BadField`, and :class:`SchemaNotFound`
        for an unknown version.
        """
        key_text, value_text = text_field(body, "keySchema"), text_field(body, "valueSchema")
        version = number_field(body, "schemaVersion")
        if value_text is not None:
            value = read_schema(value_text, "valueSchema")
            key = None if key_text is None else read_schema(key_text, "keySchema")
            return _Typed(value if key is None else key_value_schema(key, value), key, value)
        if version > 0:
            found = self._engine.schemas.find(topic, version.to_bytes(8, "big"))
            return _Typed(found, None, found)
        return _Typed(TEXT, None, TEXT)

    async def _publish(
        self,
        topic: str,
        partition: int,
        share: list[tuple[int, Mapping[str, Any]]],
        typed: _Typed,
        version: bytes,
        name: str | None,
    ) -> dict[int, dict[str, Any]]:
        """Return the answers to the messages of one partition, by their places in the request."""
        try:
            log = await self._engine.topic(topic if partition < 0 else f"{topic}-partition-{partition}")
            producer = await log.producers.create(ProducerOptions(name))
        except EngineError as error:
            return {index: _failed(error) for index, _ in share}
        answers: dict[int, dict[str, Any]] = {}
        entries: dict[int, bytes] = {}
        clusters: dict[int, frozenset[str]] = {}
        try:
            sequence_id = producer.last_sequence_id
            async for index, message in in_slices(self._engine, share):
                try:
                    metadata, payload = _message(message, typed)
                    metadata.producer_name = producer.name
                    sequence_id = max(sequence_id + 1, metadata.sequence_id)
                    metadata.sequence_id = sequence_id
                    if version:
                        metadata.schema_version = version
                    entry = encode_entry(metadata, payload)
                    self._engine.admission.check_entry(len(entry))
                    entries[index], clusters[index] = entry, frozenset(metadata.replicate_to)
                except (BadField, EngineError) as error:
                    answers[index] = _failed(error)
            for _, run in groupby(entries, key=clusters.__getitem__):  # what is published at once is for the same ones
                answers.update(await self._published(producer, partition, {index: entries[index] for index in run}))
        finally:
            producer.close()
        return answers

    async def _published(
        self, producer: EngineProducer, partition: int, entries: Mapping[int, bytes]
    ) -> dict[int, dict[str, Any]]:
        """Publish entries in their order, some at a time. If some are refused, all later ones are refused as well."""
        answers: dict[int, dict[str, Any]] = {}
        left = iter(entries)
        while some := list(islice(left, PUBLISHED_AT_ONCE)):
            try:
                positions = await producer.publish([entries[index] for index in some])
            except EngineError as error:
                answers |= {index: _failed(error) for index in (*some, *left)}
                break
            for index, at in zip(some, positions, strict=True):
                message_id = f"{at.ledger}:{at.entry}:{partition}"
                answers[index] = {"messageId": message_id, "errorCode": 0, "schemaVersion": 0}
        return answers


def add_rest_produce(app: web.Application, engine: Engine) -> None:
    """Add the routes."""
    rest = RestProduce(engine)
    topic = "/topics/{domain}/{tenant}/{namespace}/{topic}"
    app.add_routes([web.post(topic, rest.produce), web.post(topic + "/partitions/{partition}", rest.produce)])


def _partition(message: Any, partitions: int) -> int:
    key = message.get("key") if isinstance(message, dict) else None
    return (java_string_hash(key) if isinstance(key, str) else next(_turns)) % partitions


def _message(fields: Any, typed: _Typed) -> tuple[MessageMetadata, bytes]:
    """Return the metadata and payload of one message. Raise :class:`BadField`."""
    if not isinstance(fields, dict):
        raise BadField("each of the messages must be a JSON object")
    payload, is_null = text_field(fields, "payload"), null_value_field(fields)
    if payload is None and not is_null:
        raise BadField("a message has no field payload: give it one, or set nullValue to true")
    now_ms = wall_time_ms()
    metadata = MessageMetadata(publish_time=now_ms, sequence_id=max(0, number_field(fields, "sequenceId")))
    try:
        metadata.properties.extend(
            KeyValue(key=name, value=value) for name, value in texts_field(fields, "properties").items()
        )
        key = text_field(fields, "key")
        if key is not None and typed.key is not None:
            metadata.partition_key = base64.b64encode(encode_payload(key, typed.key)).decode()
            metadata.partition_key_b64_encoded = True
        elif key is not None:
            metadata.partition_key = key
    except UnicodeEncodeError as error:
        raise BadField(
            "key and properties of a message must be text that UTF-8 can hold, without half characters "
            f"(surrogates): {error}"
        ) from None
    metadata.replicate_to.extend(clusters_field(fields))
    metadata.event_time = _event_time_ms(fields)
    deliver_at, deliver_after = number_field(fields, "deliverAt"), number_field(fields, "deliverAfterMs")
    if deliver_at > 0 or deliver_after > 0:
        metadata.deliver_at_time = deliver_at if deliver_at > 0 else min(now_ms + deliver_after, 2**63 - 1)
    if payload is None:
        metadata.null_value = True
        return metadata, b""
    return metadata, encode_payload(payload, typed.value)


def _event_time_ms(fields: Mapping[str, Any]) -> int:
    """Return the event time in milliseconds. It may be milliseconds, as in Pulsar's REST API, or ISO 8601, as in its
    WebSocket API.
    """
    value = fields.get("eventTime")
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 19:
        value = int(value)
    if type(value) is not int:
        return time_field(fields, "eventTime") or 0
    if not 0 <= value < 2**63:
        raise BadField("eventTime must be a time from 1970 on: a number of milliseconds, or ISO 8601")
    return value


def _failed(error: Exception) -> dict[str, Any]:
    return {"errorMsg": f"{type(error).__name__}: {error}", "errorCode": FAILED, "schemaVersion": 0}
