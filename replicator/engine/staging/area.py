"""Files of the staging area: one for each attempt, a sequence of frames.

A frame is ``topic length u16 | block length u32 | topic | block``, big-endian. The block (see
:mod:`replicator.engine.log.block`) has entries of that topic, with checksums that stay valid from the task to the log.
Its origin is :data:`STAGED_ORIGIN`, because entries get their positions when they are published.

Invariant (DESIGN §3): 11. Frames and requests are limited. At most one step is read into memory at once.
Functions block, so call them on threads.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replicator.engine.errors import BlockCorrupt, EntryCorrupt, StagedMissing
from replicator.engine.log.block import BLOCK_BYTES_MAX, BlockKind, BlockView, build_block, verify_block
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing.publishing import check_entries
from replicator.engine.staging.values import (
    AttemptKey,
    CommitRequest,
    EpochKey,
    PendingCommit,
    Progress,
    StagedFile,
    check_name,
)
from snapshots.position import Position

DIRECTORY: Final = "staged"
STAGED_ORIGIN: Final = "staged"
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit of a frame's size. A frame is written and published as a whole."""
STEP_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes that one transaction publishes, about: a quarter of a group of the writer, so that others do not wait for
long."""
_HEAD = struct.Struct(">HI")
_SUFFIX: Final = ".staged"

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class StagedRun:
    """Entries of one topic, in order."""

    topic: str
    entries: Sequence[memoryview]
    batch_sizes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Step:
    """Entries that are published next, and the progress of the commit afterwards. With ``last`` nothing is left after
    it."""

    runs: Sequence[StagedRun]
    progress: Progress
    last: bool
    bytes: int


def encode_frame(topic: str, entries: Sequence[Buffer], batch_sizes: Sequence[int], publish_time_ms: int) -> bytes:
    """Return a frame of ``entries``, which hold ``batch_sizes`` messages each."""
    block = build_block(
        kind=BlockKind.MESSAGES,
        origin=STAGED_ORIGIN,
        incarnation=0,
        origin_first=Position(0, 0),
        publish_time_ms=publish_time_ms,
        entries=entries,
        batch_sizes=batch_sizes,
    )
    name = topic.encode()
    return b"".join([_HEAD.pack(len(name), len(block)), name, block])


def decode_frames(body: Buffer) -> Iterator[StagedRun]:
    """Yield the content of each frame of a body, after its checksum was verified. Raise :class:`BlockCorrupt`."""
    view, at = memoryview(body), 0
    while at < len(view):
        run, at = _frame_at(view, at)
        yield run


def check_frames(body: Buffer) -> dict[str, int]:
    """Return the size of the largest entry of each topic. Raise an error for a frame that could not be published."""
    largest: dict[str, int] = {}
    for run in decode_frames(body):
        checked = check_entries(run.entries, TopicPolicies())
        if list(checked.batch_sizes) != list(run.batch_sizes):
            raise EntryCorrupt(
                f"a staged frame for {run.topic} says other batch sizes than its entries do: run the worker's version "
                "in Spark too"
            )
        largest[run.topic] = max(largest.get(run.topic, 0), *map(len, run.entries))
    return largest


class StagingFiles:
    """Staging directory of one worker. Methods block. Calls for the same attempt must not run at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path / DIRECTORY

    def scan(self) -> dict[AttemptKey, StagedFile]:
        """Return the attempts that have files. Other files are ignored."""
        if not self.path.is_dir():
            return {}
        found = {}
        for file in self.path.glob(f"*{_SUFFIX}"):
            parts = file.name.removesuffix(_SUFFIX).split("~")
            if len(parts) == 5 and parts[2].isdecimal() and parts[3].isdecimal():
                key = AttemptKey(EpochKey(parts[0], parts[1], int(parts[2])), int(parts[3]), parts[4])
                stat = file.stat()
                found[key] = StagedFile(stat.st_size, stat.st_mtime_ns // 1_000_000)
        return found

    def append(self, key: AttemptKey, at: int, body: Buffer) -> int:
        """Write ``body`` at offset ``at``, cut off what is behind, and return the file's size."""
        self.path.mkdir(exist_ok=True)
        with self._file(key).open("r+b" if at else "wb") as file:
            file.seek(at)
            file.write(body)
            file.truncate()
        return at + len(body)

    def size(self, key: AttemptKey) -> int:
        try:
            return self._file(key).stat().st_size
        except FileNotFoundError:
            return 0

    def check(self, request: CommitRequest | PendingCommit) -> None:
        """Raise :class:`StagedMissing` if a file of the commit is gone or has another size."""
        key = request.key
        for receipt in request.receipts:
            attempt = AttemptKey(key, receipt.partition, receipt.attempt)
            if receipt.bytes and self.size(attempt) != receipt.bytes:
                raise StagedMissing(
                    f"writer {key.writer!r}, epoch {key.epoch}: what partition {receipt.partition} staged is not here "
                    f"any more (attempt {receipt.attempt!r}, {receipt.bytes} bytes): run the batch again"
                )

    def seal(self, key: AttemptKey, *, verify: bool) -> None:
        """Make the file durable. With ``verify``, check its frames first, and raise :class:`BlockCorrupt` for a damaged
        one."""
        path = self._file(key)
        if verify:
            with path.open("rb") as file:
                while frame := _read_frame(file.read, path):
                    for _ in decode_frames(frame):
                        pass
        with path.open("rb") as file:
            os.fsync(file.fileno())
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def drop(self, keys: Sequence[AttemptKey]) -> None:
        for key in keys:
            self._file(key).unlink(missing_ok=True)

    def read_step(self, commit: PendingCommit, progress: Progress) -> Step:
        """Return the next step of a commit: about :data:`STEP_BYTES_MAX` of frames, over the files of as many
        partitions as needed.

        Raises :class:`BlockCorrupt` and :class:`StagedMissing` for a file that was damaged or deleted after sealing.
        """
        frames: list[StagedRun] = []
        taken, (at, offset) = 0, progress
        while at < len(commit.receipts):
            receipt = commit.receipts[at]
            if offset < receipt.bytes:
                path = self._file(AttemptKey(commit.key, receipt.partition, receipt.attempt))
                try:
                    with path.open("rb") as file:
                        file.seek(offset)
                        while offset < receipt.bytes and taken < STEP_BYTES_MAX:
                            frame = _read_frame(file.read, path)
                            offset += len(frame)
                            taken += len(frame)
                            if not frame:
                                raise StagedMissing(
                                    f"{path} ends at {offset} of {receipt.bytes} bytes, which a commit that is "
                                    "decided needs: see that nobody changes files in the data directory, and run "
                                    "the batch again"
                                )
                            frames += decode_frames(frame)
                except FileNotFoundError:
                    raise StagedMissing(
                        f"{path} is gone, and a commit that is decided needs it: see that nobody deletes files in "
                        "the data directory, and run the batch again"
                    ) from None
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    raise BlockCorrupt(
                        f"{path} cannot be read, because the disk has an error there, and a commit that is decided "
                        "needs it: run the batch again"
                    ) from error
            if offset >= receipt.bytes:
                at, offset = at + 1, 0
            if taken >= STEP_BYTES_MAX:
                break
        return Step(_by_topic(frames), Progress(at, offset), at == len(commit.receipts), taken)

    def _file(self, key: AttemptKey) -> Path:
        (writer, run, epoch), partition, attempt = key
        for name in (writer, run, attempt):
            check_name("name", name)  # it becomes a part of a path
        return self.path / f"{writer}~{run}~{epoch}~{partition}~{attempt}{_SUFFIX}"


def _by_topic(frames: Sequence[StagedRun]) -> list[StagedRun]:
    """Return the same entries with those of each topic together, in order, so that they make large blocks."""
    runs: dict[str, tuple[list[memoryview], list[int]]] = {}
    for frame in frames:
        entries, sizes = runs.setdefault(frame.topic, ([], []))
        entries += frame.entries
        sizes += frame.batch_sizes
    return [StagedRun(topic, entries, sizes) for topic, (entries, sizes) in runs.items()]


def _read_frame(read: Callable[[int], bytes], path: Path) -> bytes:
    """Return one frame with its head, or nothing at the end of the file."""
    head = read(_HEAD.size)
    if not head:
        return b""
    if len(head) < _HEAD.size:
        raise BlockCorrupt(
            f"the staged file {path} ends inside a frame's head, so it is cut short: run the batch again, which stages "
            "it anew"
        )
    topic_bytes, block_bytes = _HEAD.unpack(head)
    if block_bytes > BLOCK_BYTES_MAX:
        raise BlockCorrupt(
            f"the staged file {path} is damaged: it has a frame of {block_bytes} bytes, more than {BLOCK_BYTES_MAX}. "
            "Run the batch again, which stages it anew"
        )
    return head + read(topic_bytes + block_bytes)


def _frame_at(view: memoryview, at: int) -> tuple[StagedRun, int]:
    if at + _HEAD.size > len(view):
        raise BlockCorrupt(
            "what a Spark task sent to be staged is cut short, because it ends inside a frame's head: run the batch "
            "again"
        )
    topic_bytes, block_bytes = _HEAD.unpack_from(view, at)
    at += _HEAD.size
    if block_bytes > FRAME_BYTES_MAX or at + topic_bytes + block_bytes > len(view):
        raise BlockCorrupt(
            f"what a Spark task sent to be staged has a frame of {block_bytes} bytes that is cut short or over the "
            f"limit of {FRAME_BYTES_MAX}: run the batch again"
        )
    try:
        topic = str(view[at : at + topic_bytes], "utf-8")
    except UnicodeDecodeError:
        raise BlockCorrupt(
            "what a Spark task sent to be staged names a topic that is not UTF-8: correct the stream's column of topics"
        ) from None
    at += topic_bytes
    block = view[at : at + block_bytes]
    header = verify_block(block)
    if header.kind is not BlockKind.MESSAGES:
        raise BlockCorrupt(
            "what a Spark task sent to be staged holds markers, which only workers write: run the worker's version in "
            "Spark too"
        )
    contents = BlockView(block, header)
    return StagedRun(topic, list(contents.entries()), contents.batch_sizes.tolist()), at + block_bytes
