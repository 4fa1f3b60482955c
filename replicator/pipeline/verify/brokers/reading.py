"""Reading of one topic in one place: at brokers, like their worker reads it, or in a worker's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replicator.apache.admin import BrokerAdmin
from replicator.apache.broker_cursor import parse_cursor
from replicator.apache.broker_lives import BrokerLives
from replicator.apache.credentials import showing_of
from replicator.apache.errors import AdminFailed
from replicator.apache.names import is_reserved
from replicator.apache.shown import TopicInternals
from replicator.apache.stamps import Identity
from replicator.apache.topic_reader import read_topic
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.log.block import BlockKind, BlockView, read_header
from replicator.engine.types import Delivery
from replicator.pipeline.errors import UnexpectedAnswer
from replicator.pipeline.verify.brokers.acknowledged import acked_at_broker
from replicator.pipeline.verify.brokers.entry_log import EntryLog, EntryRows, Life, content_of, schema_version_of
from replicator.pipeline.verify.comparison.acked import Acked
from replicator.pipeline.verify.comparison.scope import ReplicaState
from replicator.pipeline.verify.plane import VerifyPlane
from replicator.topology.apache import ApacheSettings
from snapshots.position import Position

CONNECTION_SECONDS_MAX: Final = 10.0
OPERATION_SECONDS_MAX: Final = 30.0
ENTRIES_MAX: Final = 20_000_000
"""Limit of entries of one topic in one place: 1.2 GB of memory. A larger topic is not compared; ``--since`` takes a
part of it."""


class TooManyEntries(UnexpectedAnswer):
    """A topic is too large to be compared at once."""


class Brokers:
    """Brokers of one cluster, for one event loop. No call changes anything at them."""

    def __init__(self, cluster: str, settings: ApacheSettings) -> None:
        """Open clients for the brokers. Raises :class:`AdminFailed` for files that cannot be used."""
        self.cluster = cluster
        self.settings = settings
        self._admin = BrokerAdmin(settings)
        self._connector = BrokerConnector(
            settings.service_url,
            connection_timeout_seconds=CONNECTION_SECONDS_MAX,
            operation_timeout_seconds=OPERATION_SECONDS_MAX,
            showing=showing_of(settings),
        )

    async def close(self) -> None:
        await self._connector.close()
        await self._admin.close()

    async def internals(self, topic: str) -> TopicInternals | None:
        """Return the topic's internals; None if the topic does not exist. Raises :class:`AdminFailed`."""
        try:
            return await self._admin.internals(topic)
        except AdminFailed as error:
            if error.status == 404:
                return None
            raise

    async def acknowledged(self, topic: str) -> dict[str, Acked]:
        """Return the acknowledgements of the subscriptions with replicated state; empty if the topic does not exist.

        Raises :class:`BridgeError`."""
        internals = await self.internals(topic)
        if internals is None:
            return {}
        lasting = await self._admin.durable_subscriptions(topic)
        return {
            name: acked_at_broker(name, parse_cursor(internals.cursors[name], internals.last_entries, name))
            for name in lasting
            if name in internals.cursors and not is_reserved(name) and self.settings.bridges_subscription(name)
        }

    async def read(
        self, topic: str, upto: Position, own: Life, lives: BrokerLives, since_ms: int
    ) -> tuple[EntryLog, Position | None]:
        """Return the topic's entries at the brokers up to ``upto``, and the position of the first one, if there is one.

        Entries published before ``since_ms`` are left out. Entries without a stamp count as of the life ``own``, unless
        ``lives`` say that they are of an earlier life.

        Raises :class:`BridgeError`, :class:`PulsarException`, :class:`TooManyEntries`.
        """
        reading = _BrokerLog(self._connector, topic, own, lives, since_ms)
        if upto.entry >= 0:
            await read_topic(self._connector, self._admin, topic, upto, reading.take)
        return reading.rows.log(), reading.begin


class _BrokerLog:
    """Entries of one topic on their way into columns."""

    def __init__(self, connector: BrokerConnector, topic: str, own: Life, lives: BrokerLives, since_ms: int) -> None:
        self.rows = EntryRows()
        self.begin: Position | None = None
        self._connector = connector
        self._topic = topic
        self._own = own
        self._lives = lives
        self._since_ms = since_ms
        self._versions: dict[bytes, bytes] = {b"": b""}
        """The versions that follow from the content of schemas, by those of the brokers."""

    async def take(self, arrived: Sequence[Delivery]) -> None:
        if self.begin is None and arrived:
            self.begin = arrived[0].position
        for delivery in arrived:
            try:
                content = content_of(delivery.entry, self._versions)
            except KeyError:
                await self._fetch(schema_version_of(delivery.entry))
                content = content_of(delivery.entry, self._versions)
            if content.publish_time_ms < self._since_ms:
                continue
            identity = content.identity or self._identity(delivery.position)
            self.rows.add(identity, delivery.position, content)
        _check_size(self._topic, self.rows)

    def _identity(self, place: Position) -> Identity:
        incarnation = self._lives.incarnation_at(place) or self._own.incarnation
        return Identity(self._own.origin, incarnation, self._lives.origin_of(place))

    async def _fetch(self, version: bytes) -> None:
        schema = await self._connector.schema(self._topic, version)
        self._versions[version] = b"" if schema is None else schema.version


def read_worker(url: str, topic: str, standing: ReplicaState, since_ms: int) -> EntryLog:
    """Return the entries in a worker's log up to the ends in ``standing``. Blocks the caller.

    Raises :class:`PeerUnavailable`, :class:`UnexpectedAnswer`, :class:`BlockUnreadable`, :class:`TooManyEntries`.
    """
    rows = EntryRows()
    with VerifyPlane(url) as worker:
        for ledger, first, last in standing.runs:
            for fetched in worker.raw_blocks(topic, Position(ledger, first - 1), Position(ledger, last)):
                _take_block(rows, fetched.first, fetched.block, last, since_ms)
                _check_size(topic, rows)
    return rows.log()


def _take_block(rows: EntryRows, at: Position, block: memoryview, last: int, since_ms: int) -> None:
    header = read_header(block)
    if header.kind is not BlockKind.MESSAGES:
        return
    view = BlockView(block, header)
    first = header.origin_first
    for index in range(min(header.entries, last - at.entry + 1)):
        content = content_of(view.entry(index), absent=view.absent.get(index))
        if content.publish_time_ms < since_ms:
            continue
        identity = Identity(header.origin, header.incarnation, Position(first.ledger, first.entry + index))
        place = Position(at.ledger, at.entry + index)
        rows.add(identity, place, content)


def _check_size(topic: str, rows: EntryRows) -> None:
    if len(rows) > ENTRIES_MAX:
        raise TooManyEntries(
            f"{topic} has more than {ENTRIES_MAX:,} entries, the limit: verify a part of them with --since"
        )
