"""Disk space for the store's table, reserved before a transaction writes, so that a full disk is not a failed commit.

Invariants (DESIGN §3): 1, a transaction begins only when the disk has the space that it may need. So if its commit
fails, the disk has failed, and the commit is never tried again; 11, appends stop while the disk still has space for
requests that free space.

Afterwards a full disk cannot be told from a failed one. LMDB reports "no space left" for a page that it could not
write, for a failed sync, and for its meta page. It reports "input/output error" for a write that a full disk cut short.
After the first nothing was written. After a failed sync nobody knows what is on the disk. So the space is reserved
before (docs/adr/0057-room-on-the-disk-is-taken-before-a-transaction-writes.md).

1. The file has a **reserve**: disk blocks behind its last page, allocated by ``posix_fallocate``.
2. Appends, and rows of a compacted view, need space in addition to the whole reserve, and leave
   :attr:`DiskRoom.append_reserve_bytes` of the disk free for others. They need none if the table has enough free pages.
3. All other requests (acknowledgements, deletes, trims, policies) use the reserve when the disk has no space left. If
   the reserve is not enough either, they are refused.
4. Any transaction fills the reserve again when the disk has space.
5. One rule both refuses and reports: :meth:`TableRoom.status` applies it to the smallest append, and to the last
   refused transaction. That refusal is reported until such a transaction would fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import structlog

from replicator.engine.log.commit.filling import FILLER_BYTES
from replicator.engine.log.disk_room import RESERVE_BYTES, DiskRoom, is_full
from replicator.engine.log.requests import (
    CompactSegmentsRequest,
    CopyRequest,
    DeleteTopicsRequest,
    DropInactiveRequest,
    PublishRequest,
    PublishStagedRequest,
    PutBackRequest,
    PutManyRequest,
    PutViewRequest,
    ReclaimRequest,
    RecountRequest,
    Request,
    SweepRequest,
    TrimRequest,
)

STEP_BYTES: Final = 256 * 1024
"""Bytes that transactions without appends leave on the disk, for its file system's own use."""

GROUP_BYTES: Final = 1024 * 1024
"""Bytes that any transaction may write beside its rows: the pages above them, and LMDB's list of free pages."""
ROW_BYTES: Final = 2 * 4096
"""Most bytes that one row takes that is put or deleted: its page, and its share of pages that are split or lie above
it."""
SMALL_ROWS_BYTES: Final = 256
"""Most bytes that a small block takes beside its own: the keys and heads of its row and of its fillers' rows."""
BOUNDED_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of a transaction that deletes or moves a bounded number of rows. Seen: 3 MiB for a trim of 1,000
blocks."""
MOVED_TO_TABLE_BYTES: Final = 8 * 1024 * 1024
"""Bytes that a step of compaction moves into the table if segments were turned off: 2 MiB, or one larger block."""

SMALLEST_APPEND_BYTES: Final = GROUP_BYTES + 2 * ROW_BYTES
"""Room that the smallest append needs. Without it no message is stored."""

APPENDS: Final = (PublishRequest, PublishStagedRequest, CopyRequest, ReclaimRequest, PutBackRequest, PutViewRequest)

log = structlog.get_logger(__name__)


def most_bytes(group: Iterable[Request], elsewhere: range) -> int:
    """Return about how much the file grows at most when ``group`` is committed and no page is free.

    Bodies whose size is in the range ``elsewhere`` go to segments.
    """
    total = GROUP_BYTES
    for request in group:
        total += ROW_BYTES
        if isinstance(request, PublishRequest):  # the usual case
            total += _row_bytes(request.bytes, elsewhere)
            continue
        if isinstance(request, CopyRequest):
            for copied in request.blocks:
                total += 2 * ROW_BYTES + _row_bytes(len(copied.block), elsewhere)
            total += ROW_BYTES * len(request.writes)
        elif isinstance(request, (ReclaimRequest, PutBackRequest)):  # they may have very many small blocks
            total += sum(_row_bytes(len(block), elsewhere) + SMALL_ROWS_BYTES for _, block in request.blocks)
            total += 2 * FILLER_BYTES * request.fillers
        elif isinstance(request, PutManyRequest):  # rows never go to segments, whatever their size
            total += _row_bytes(request.bytes, range(0)) + ROW_BYTES * (len(request.writes) + len(request.cleared))
        else:
            total += _row_bytes(request.bytes, elsewhere)
        if isinstance(request, DeleteTopicsRequest):
            total += ROW_BYTES * (3 * len(request.tails) + sum(map(len, request.earlier.values())))
        elif isinstance(request, (TrimRequest, SweepRequest, DropInactiveRequest, RecountRequest)):
            total += BOUNDED_BYTES
        elif isinstance(request, CompactSegmentsRequest):
            total += BOUNDED_BYTES + 2 * MOVED_TO_TABLE_BYTES
    return total


def _row_bytes(size: int, elsewhere: range) -> int:
    """Return the bytes that a body takes in the table: whole pages, or only its head if the body goes to a segment."""
    return size // 8 if size in elsewhere else 2 * size


class TableRoom:
    """Reserves disk space for the file ``data.mdb`` of one store.

    Only the writer's thread may use it, except for :meth:`status` and :meth:`close`.
    """

    def __init__(
        self, file: Path, size_max: int, used_bytes: Callable[[], int], free_pages_bytes: Callable[[], int]
    ) -> None:
        """Open ``file``, which may grow to ``size_max`` bytes.

        ``used_bytes`` returns where the last used page of the file ends. ``free_pages_bytes`` returns the bytes of
        the free pages before that end; the call takes some time.
        """
        self._directory = file.parent
        self._size_max = size_max
        self._used_bytes = used_bytes
        self._free_pages_bytes = free_pages_bytes
        self._file = file.open("r+b", buffering=0)
        status = os.fstat(self._file.fileno())
        whole = status.st_blocks * 512 >= status.st_size
        self._size = status.st_size
        self._allocated = status.st_size if whole else 0
        """Offset up to which the disk has blocks for the file."""
        self._allocates = True
        self._denied = False
        """Whether the disk gave no blocks when it was last asked, whatever room it reports: other processes took it,
        or a quota is used up."""
        self._refused: dict[bool, int] = {}
        """Bytes of the largest request that was refused and would not fit since: of appends (True), and of all else
        (False)."""

    def close(self) -> None:
        self._file.close()

    def take(self, used: int, need: int, *, appends: bool) -> str | None:
        """Get room for a transaction that may write ``need`` bytes after the ``used`` ones. Return why there is none,
        or None."""
        if appends or self._behind(used) < need + RESERVE_BYTES:
            disk = self._fill_reserve(used, need, self._disk())
            if not appends and self._behind(used) < need and self._allocate(used + need, disk, STEP_BYTES):
                disk = self._disk()
            if self._lacks(used, need, disk, appends=appends):
                return self._full(disk)
        if self._refused.get(appends, need + 1) <= need:
            del self._refused[appends]
        return None

    def refused(self, need: int, *, appends: bool) -> None:
        """Note that :meth:`take` had no room for ``need`` bytes. :meth:`status` reports it until so many bytes fit."""
        self._refused[appends] = max(need, self._refused.get(appends, 0))

    def _lacks(self, used: int, need: int, disk: DiskRoom, *, appends: bool) -> bool:
        """Return whether there is no room for a transaction that may write ``need`` bytes.

        Both :meth:`take` and :meth:`status` use this rule, so that they agree.
        """
        if not appends:
            if self._allocates:
                return self._allocated < min(used + need, self._size_max)
            return disk.free < need + STEP_BYTES
        left = disk.append_reserve_bytes
        fits = disk.free >= left and need + disk.reserve <= self._behind(used) + disk.free - left
        return not (fits or self._fits_inside(used, need, disk))

    def _fits_inside(self, used: int, need: int, disk: DiskRoom) -> bool:
        """Return whether the table's free pages are enough.

        Some rows find no place in free pages. So there must be room behind the last page as well, and half of the
        reserve stays.
        """
        if self._allocates and self._behind(used) < need + disk.reserve // 2:
            return False
        return self._free_pages_bytes() >= 2 * need

    def _behind(self, used: int) -> int:
        """Return the bytes that the disk has allocated for the file behind its last page."""
        return max(0, self._allocated - used)

    def _fill_reserve(self, used: int, need: int, disk: DiskRoom) -> DiskRoom:
        """Fill the reserve, and get ``need`` bytes beside it, if the disk has room. Return the disk's room
        afterwards."""
        wanted = min(used + disk.reserve + min(need, disk.growth), self._size_max)
        if self._allocated >= wanted:
            return disk
        if any(self._allocate(end, disk, disk.append_reserve_bytes) for end in (wanted + disk.growth, wanted)):
            return self._disk()
        return self._as_given(disk)

    def _as_given(self, disk: DiskRoom) -> DiskRoom:
        """Return ``disk``, or a disk without free space if the disk gave no blocks when it was last asked."""
        return DiskRoom(0, disk.total) if self._denied else disk

    def _allocate(self, end: int, disk: DiskRoom, left: int) -> bool:
        """Allocate disk blocks for the file up to ``end``, if ``left`` bytes of the disk stay free. Return whether
        the file has them."""
        if not self._could_allocate(end, disk, left):
            return False
        end = min(end, self._size_max)
        if end <= self._allocated:
            return True  # more than its address space the file never takes: LMDB refuses that
        try:
            os.posix_fallocate(self._file.fileno(), self._allocated, end - self._allocated)
        except OSError as error:
            self._denied = is_full(error)
            if not self._denied:
                self._allocates, self._allocated = False, 0
                log.warning(
                    "room for the store cannot be allocated ahead here: a disk that others fill may stop the worker",
                    directory=str(self._directory),
                    reason=error.strerror,
                )
            return False
        self._denied = False
        self._allocated = end
        self._size = max(self._size, end)
        return True

    def _could_allocate(self, end: int, disk: DiskRoom, left: int) -> bool:
        end = min(end, self._size_max)
        if not self._allocates or end <= self._allocated:
            return self._allocates
        return disk.free - max(0, end - max(self._allocated, self._size)) >= left

    def _disk(self) -> DiskRoom:
        return DiskRoom.of(os.fstatvfs(self._file.fileno()))

    def _full(self, disk: DiskRoom) -> str:
        return (
            f"the disk below {self._directory} is full ({disk.free} of {disk.total} bytes are free): make room on it, "
            "or trim topics"
        )

    def status(self) -> dict[str, Any]:
        """Return the free bytes of the disk and of the reserve. ``full`` says why appends are refused, or is None."""
        disk, used = self._disk(), self._used_bytes()
        return {
            "free_bytes": disk.free,
            "reserve_bytes": self._behind(used),
            "full": self._full(disk) if self._reported(used, self._as_given(disk)) else None,
        }

    def _reported(self, used: int, disk: DiskRoom) -> bool:
        asked = [(True, SMALLEST_APPEND_BYTES), *list(self._refused.items())]
        return any(self._would_refuse(used, need, disk, appends=appends) for appends, need in asked)

    def _would_refuse(self, used: int, need: int, disk: DiskRoom, *, appends: bool) -> bool:
        """Return whether :meth:`take` would refuse ``need`` bytes. Unlike :meth:`take`, allocate nothing."""
        gettable = not appends and self._could_allocate(used + need, disk, STEP_BYTES)
        return not gettable and self._lacks(used, need, disk, appends=appends)
