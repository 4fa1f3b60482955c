"""Reads the store's table of extents, and the headers of blocks, by which the table can be checked.

Copying writes an extent together with each block (invariant 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from replicator.engine.log.block import BlockHeader
from replicator.engine.log.segments.places import parse_row
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import (
    BLOCK_KEY,
    EXTENT,
    EXTENT_KEY_TAIL,
    TOPIC_KEY,
    extent_key_prefix,
)
from replicator.engine.log.stored_blocks import seek_block
from snapshots.extents import Extent
from snapshots.position import BEFORE_ALL, Position

_INCARNATIONS_END = (1 << 64) - 1


class LocalHeader(NamedTuple):
    """A block's header, and the block's local position."""

    local_first: Position
    header: BlockHeader


def extent_keys(store: Store, topic_id: int) -> list[tuple[str, int]]:
    """Return the ``(origin, incarnation)`` pairs that have extents in the topic. Each pair costs one look-up."""
    found: list[tuple[str, int]] = []
    prefix = TOPIC_KEY.pack(topic_id)
    with store.env.begin(db=store.tables["extents"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(prefix)
        while more and cursor.key().startswith(prefix):
            origin = bytes(cursor.key()[len(prefix) : -EXTENT_KEY_TAIL.size - 1]).decode()
            incarnation, _, _ = EXTENT_KEY_TAIL.unpack(cursor.key()[-EXTENT_KEY_TAIL.size :])
            found.append((origin, incarnation))
            last = EXTENT_KEY_TAIL.pack(incarnation, _INCARNATIONS_END, _INCARNATIONS_END)
            more = cursor.set_range(extent_key_prefix(topic_id, origin) + last)
    return found


class Life(NamedTuple):
    """One life of a topic at another cluster, with the first and last entry of that life here, as origin positions."""

    incarnation: int
    first: Position
    last: Position


def lives(store: Store, topic_id: int) -> dict[str, list[Life]]:
    """Return, by origin, the lives that have entries here, in order. Each life costs two look-ups."""
    found: dict[str, list[Life]] = {}
    with store.env.begin(db=store.tables["extents"]) as txn:
        cursor = txn.cursor()
        for origin, incarnation in extent_keys(store, topic_id):
            prefix = extent_key_prefix(topic_id, origin)
            cursor.set_range(prefix + EXTENT_KEY_TAIL.pack(incarnation, 0, 0))
            first = _extent(*cursor.item())
            end = prefix + EXTENT_KEY_TAIL.pack(incarnation, _INCARNATIONS_END, _INCARNATIONS_END)
            if not (cursor.prev() if cursor.set_range(end) else cursor.last()):
                continue
            last = _extent(*cursor.item())
            found.setdefault(origin, []).append(Life(incarnation, first.origin_first, last.origin_last))
    return found


def ledgers_of(store: Store, topic_id: int, origin: str) -> dict[int, list[tuple[int, int, int]]]:
    """Return the ledgers of ``origin`` that have entries here, with their first and last entries here, by incarnation.

    The first entry can be one that was trimmed. Each ledger costs three look-ups.
    """
    found: dict[int, list[tuple[int, int, int]]] = {}
    prefix = extent_key_prefix(topic_id, origin)
    with store.env.begin(db=store.tables["extents"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(prefix)
        while more and cursor.key().startswith(prefix):
            incarnation, ledger, first = EXTENT_KEY_TAIL.unpack(cursor.key()[-EXTENT_KEY_TAIL.size :])
            end = prefix + EXTENT_KEY_TAIL.pack(incarnation, ledger, _INCARNATIONS_END)
            if not (cursor.prev() if cursor.set_range(end) else cursor.last()):
                break
            last = _extent(*cursor.item()).origin_last.entry
            found.setdefault(incarnation, []).append((ledger, first, last))
            more = cursor.next()
    return found


def oldest_lives(store: Store, topic_id: int, origins: Iterable[str]) -> dict[str, int]:
    """Return, by origin, the oldest incarnation that has entries here. Each origin costs one look-up."""
    found: dict[str, int] = {}
    with store.env.begin(db=store.tables["extents"]) as txn:
        cursor = txn.cursor()
        for origin in origins:
            prefix = extent_key_prefix(topic_id, origin)
            if cursor.set_range(prefix) and cursor.key().startswith(prefix):
                found[origin], _, _ = EXTENT_KEY_TAIL.unpack(cursor.key()[-EXTENT_KEY_TAIL.size :])
    return found


def read_extents(
    store: Store, topic_id: int, origin: str, incarnation: int, *, at: Position = BEFORE_ALL, runs_max: int
) -> list[Extent]:
    """Return at most ``runs_max`` stored extents. The first one holds the origin position ``at``, or is the next one
    above it."""
    return [extent for _, extent in read_extent_rows(store, topic_id, origin, incarnation, at=at, runs_max=runs_max)]


def read_extent_rows(
    store: Store, topic_id: int, origin: str, incarnation: int, *, at: Position = BEFORE_ALL, runs_max: int
) -> list[tuple[bytes, Extent]]:
    """Return extents as :func:`read_extents` does, each with the key of its row."""
    prefix = extent_key_prefix(topic_id, origin) + EXTENT_KEY_TAIL.pack(incarnation, 0, 0)[:8]
    wanted = prefix + EXTENT_KEY_TAIL.pack(incarnation, at.ledger, max(at.entry, 0))[8:]
    with store.env.begin(db=store.tables["extents"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(wanted)
        if not more or cursor.key() != wanted:
            before = cursor.prev() if more else cursor.last()
            if before and cursor.key().startswith(prefix) and _extent(*cursor.item()).origin_last >= at:
                more = True
            else:
                more = cursor.set_range(wanted)
        found: list[tuple[bytes, Extent]] = []
        while more and len(found) < runs_max and cursor.key().startswith(prefix):
            found.append((cursor.key(), _extent(*cursor.item())))
            more = cursor.next()
    return found


def read_extents_down(
    store: Store, topic_id: int, origin: str, incarnation: int, *, upto: Position, above: Position
) -> list[Extent]:
    """Return extents from the last one down.

    They begin at or below the origin position ``upto``, and end above the local position ``above``.
    """
    prefix = extent_key_prefix(topic_id, origin) + EXTENT_KEY_TAIL.pack(incarnation, 0, 0)[:8]
    found: list[Extent] = []
    with store.env.begin(db=store.tables["extents"]) as txn:
        cursor = txn.cursor()
        after = EXTENT_KEY_TAIL.pack(incarnation, upto.ledger, upto.entry + 1)[8:]
        more = cursor.prev() if cursor.set_range(prefix + after) else cursor.last()
        while more and cursor.key().startswith(prefix):
            extent = _extent(*cursor.item())
            if extent.local_last <= above:
                break
            found.append(extent)
            more = cursor.prev()
    return found


def extent_row(topic_id: int, origin: str, incarnation: int, extent: Extent) -> tuple[bytes, bytes]:
    """Return key and value of the row of an extent."""
    key = extent_key_prefix(topic_id, origin) + EXTENT_KEY_TAIL.pack(incarnation, *extent.origin_first)
    return key, EXTENT.pack(extent.entries, *extent.local_first)


def read_headers(store: Store, topic_id: int, after: Position, upto: Position, *, blocks_max: int) -> list[LocalHeader]:
    """Return the headers of the next ``blocks_max`` blocks that hold entries in (``after``, ``upto``], in order.

    Raises :class:`BlockCorrupt`.
    """
    return list(_headers(store, topic_id, after, upto, blocks_max))


def _headers(store: Store, topic_id: int, after: Position, upto: Position, blocks_max: int) -> Iterator[LocalHeader]:
    with store.env.begin(db=store.tables["blocks"], buffers=True) as txn:
        cursor = txn.cursor()
        more = seek_block(cursor, topic_id, Position(after.ledger, after.entry + 1))
        while more and blocks_max:
            key_topic, ledger, first = BLOCK_KEY.unpack(cursor.key())
            if key_topic != topic_id or Position(ledger, first) > upto:
                return
            yield LocalHeader(Position(ledger, first), parse_row(cursor.value()).header)
            blocks_max -= 1
            more = cursor.next()


def _extent(key: bytes, value: bytes) -> Extent:
    _, ledger, first = EXTENT_KEY_TAIL.unpack(key[-EXTENT_KEY_TAIL.size :])
    entries, local_ledger, local_first = EXTENT.unpack(value)
    return Extent(Position(ledger, first), Position(local_ledger, local_first), entries)
