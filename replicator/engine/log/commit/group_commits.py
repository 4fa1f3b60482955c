"""Commits of groups of requests: whole, in parts, or not at all. Runs on the writer's thread.

Invariant (DESIGN §3): 1, nothing is confirmed before the transaction that holds it is committed and synced.

1. Reserve the disk space that the transaction may need (:mod:`replicator.engine.log.room`). If there is not enough, the
   requests are refused before anything is written, and the next group is tried again.
2. Write the requests as one group, and commit. If entries must first be decompressed to be compared, roll back,
   decompress them outside of the transaction, and write the group again.
3. If the store is full, write the group in halves, so that only requests that do not fit are refused.
4. If a request has a number that no row can hold, refuse that request alone: it was made wrong, and the store is sound.
5. If a commit fails, nothing of the group was written, and each request gets the error. After a failed sync nobody
   knows what reached the disk, so nothing more is confirmed.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import lmdb

from replicator.engine.errors import EngineError, NotAllowedError, StoreFailed, StoreFull
from replicator.engine.log.block import BlockKind
from replicator.engine.log.commit.appending import ID_SALTS
from replicator.engine.log.commit.group import CommitGroup
from replicator.engine.log.requests import Committed, PublishRequest, Request
from replicator.engine.log.room import APPENDS, TableRoom, most_bytes
from replicator.engine.log.segments.segments import NoRoom
from replicator.engine.log.store import Store
from replicator.engine.producing.contents import Contents, ContentsNeeded

OPENINGS_MAX: Final = 16
"""Most roll-backs of one group to decompress entries. One is usual, but a decision may lead to other entries. Beyond
it, entries that are not decompressed count as different."""


class GroupCommits:
    """Commits groups to one store. Only the writer's thread calls :meth:`commit`."""

    def __init__(self, store: Store, wall_clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._wall_clock_ms = wall_clock_ms
        self._last_id = int(store.meta("last_id") or 0)
        self._contents = Contents()
        self.count = 0
        """Number of transactions that were committed."""
        self.broken: str | None = None
        """Why nothing is confirmed any more; None while the store is sound."""
        map_size = int(store.env.info()["map_size"])
        self.disk_room = TableRoom(store.data_file, map_size, store.table_bytes, store.free_pages_bytes)
        """Disk space for the store's table."""
        self._beyond_limit: int | None = None
        """Bytes of the last append that was refused because the store had reached its limit; None if none was."""

    def disk_status(self) -> dict[str, Any]:
        """Return the free bytes of the disk and of the reserve, and why a full disk refuses messages.

        ``full`` has the reason, or None. The reserve is disk space for requests other than appends.
        """
        status = self.disk_room.status()
        return {**status, "full": status["full"] or self._store.segments.full()}

    def beyond_limit(self) -> str | None:
        """Return the reason why the limit ``store.size_max`` refuses messages, or None.

        It is None if no append was refused, or if an append of the size refused last would fit now.
        """
        refused = self._beyond_limit
        return None if refused is None or self._store.has_room(refused) else self._limit_reached()

    def note_beyond_limit(self, append_bytes: int) -> None:
        """Note that an append of ``append_bytes`` was refused because of the limit. :meth:`beyond_limit` reports it.

        An append that is larger than the whole store would never fit, so it is not noted.
        """
        if append_bytes <= self._store.size_max:
            self._beyond_limit = append_bytes

    def _limit_reached(self) -> str:
        return f"the store has reached its limit of {self._store.size_max} bytes (store.size_max)"

    def fail(self, group: Sequence[Request], error: Exception) -> Committed:
        """Refuse ``group`` because the store failed, and refuse every later request."""
        self.broken = f"the store failed and confirms nothing more until a restart: {error}"
        return refused(group, StoreFailed(self.broken))

    def commit(self, group: list[Request], openings: int = 0) -> Committed:
        """Write a group as one transaction, or in parts if the store or the disk cannot take all. Return the results.

        ``openings`` counts how often the group was rolled back so far, to decompress entries and compare their
        contents.
        """
        if self.broken is None:
            self.broken = self._store.replaced_reason()
        if self.broken is not None:
            return refused(group, StoreFailed(self.broken))
        appends = [request for request in group if isinstance(request, APPENDS)]
        append_bytes = sum([request.bytes for request in appends])
        table_bytes = self._store.table_bytes()
        if append_bytes and not self._store.has_room(append_bytes, table_bytes):
            return self._commit_in_halves(group)
        if self._beyond_limit is not None and append_bytes >= self._beyond_limit:
            self._beyond_limit = None
        in_segments = self._store.segments.settings.sizes(append_bytes)
        if (full := self._take_room(group, in_segments, table_bytes, appends=bool(appends))) is not None:
            return self._commit_what_fits(group, appends, in_segments, full)
        contents = self._contents
        batch = CommitGroup(self._store, self._last_id, self._wall_clock_ms(), _salt, append_bytes, contents)
        try:
            with self._store.commit_lock, self._store.env.begin(write=True) as txn:
                batch.write(txn, group)
        except ContentsNeeded:
            batch.roll_back()
            if len(group) > 1 and contents.exceeds_budget:
                contents.settle()
                return self._commit_in_halves(group)
            if openings < OPENINGS_MAX:
                contents.open_wanted()
            else:
                contents.closed = True
            return self.commit(group, openings + 1)
        except lmdb.MapFullError:
            batch.roll_back()
            return self._commit_in_halves(group)
        except NoRoom as error:
            batch.roll_back()
            return self._commit_in_halves(group, str(error))
        except struct.error as error:
            batch.roll_back()
            return self._commit_in_halves(group) if len(group) > 1 else refused(group, _impossible(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever or be confirmed
            batch.roll_back()
            return self.fail(group, error)
        batch.durable()
        contents.settle()
        self._last_id = batch.last_id
        self.count += 1
        batch.committed.bytes = sum([request.bytes for request in group])
        published = [
            each.submitted for each in group if isinstance(each, PublishRequest) and each.kind is BlockKind.MESSAGES
        ]
        if published:
            batch.committed.publishes, batch.committed.oldest_publish = len(published), published[0]
        return batch.committed

    def _take_room(
        self, group: Sequence[Request], in_segments: range, table_bytes: int, *, appends: bool
    ) -> str | None:
        """Reserve disk space for ``group`` behind the table's last page. Return the reason if the disk has too little,
        or None."""
        return self.disk_room.take(table_bytes, most_bytes(group, in_segments), appends=appends)

    def _commit_what_fits(
        self, group: list[Request], appends: Sequence[Request], in_segments: range, full: str
    ) -> Committed:
        """Commit the requests for which the full disk has room, and refuse the others with the reason ``full``.

        If even the smallest append does not fit, refuse all appends at once, because there may be thousands.
        """
        asking = appends or group
        smallest = min(asking, key=lambda request: request.bytes)
        table_bytes = self._store.table_bytes()
        if len(group) > 1 and self._take_room([smallest], in_segments, table_bytes, appends=bool(appends)) is None:
            return self._commit_in_halves(group, full)
        self.disk_room.refused(most_bytes([smallest], in_segments), appends=bool(appends))
        committed = refused(asking, StoreFull(full))
        others = [request for request in group if not isinstance(request, APPENDS)] if appends else []
        if others:
            committed.extend(self.commit(others))
        return committed

    def _commit_in_halves(self, group: list[Request], reason: str = "") -> Committed:
        """Commit each half of ``group`` on its own, so that only requests that do not fit are refused.

        Refuse a single request with ``reason``. Without a reason, the store's size limit is the reason.
        """
        if len(group) == 1:
            if not reason:
                reason, self._beyond_limit = self._limit_reached(), max(1, group[0].bytes)
            return refused(group, StoreFull(reason))
        half = len(group) // 2
        committed = self.commit(group[:half])
        committed.extend(self.commit(group[half:]))
        return committed


def _salt() -> int:
    return secrets.randbelow(ID_SALTS)


def _impossible(error: struct.error) -> NotAllowedError:
    return NotAllowedError(
        f"a request has a number that the store cannot write: {error}. Nothing of it was written. Run the same version "
        "in all clusters and clients, and report this if it comes again"
    )


def refused(group: Sequence[Request], error: EngineError) -> Committed:
    """Refuse every request of ``group`` with ``error``, and return the results."""
    for request in group:
        if isinstance(request, PublishRequest) and request.turn is not None:
            request.turn.refused(error)
    return Committed([(request.answer, error) for request in group], bytes=sum(r.bytes for r in group))
