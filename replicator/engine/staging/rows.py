"""Rows of the table ``staging``: the published state of each writer, and the commits that are being published.

========================================== ===================================================================
key                                        value
========================================== ===================================================================
``w`` writer                               JSON: :class:`WriterFacts`
``r`` writer NUL run                       JSON: :class:`RunState`
``m`` writer NUL cluster NUL incarnation   ledger u64 | entry u64 | batch index u32: up to there an origin is published
``c`` writer                               JSON: :class:`PendingCommit`
``p`` writer                               receipt u32 | offset u64: :class:`Progress` of that commit
``f`` writer NUL run NUL epoch NUL name    u64: time of the job's or attempt's abort, in ms (:class:`Fence`)
========================================== ===================================================================
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from replicator.engine.staging.fences import Fence
from replicator.engine.staging.values import (
    EpochKey,
    Finished,
    Origin,
    PendingCommit,
    Progress,
    Receipt,
    RunState,
    SourceMark,
    WriterFacts,
    WriterState,
)

TABLE: Final = "staging"
_MARK = struct.Struct(">QQI")
_INCARNATION = struct.Struct(">Q")
_PROGRESS = struct.Struct(">IQ")
_ABORTED_MS = struct.Struct(">Q")
_FENCE: Final = b"f"

Row = tuple[str, bytes, bytes | None]


def load_writers(rows: Iterable[tuple[bytes, bytes]]) -> dict[str, WriterState]:
    """Return the state of every writer, from all rows of the table."""
    writers: dict[str, WriterState] = {}
    for key, value in rows:
        if key.startswith(_FENCE):
            continue
        kind, name, *rest = _split(key)
        state = writers.setdefault(name.decode(), WriterState())
        if kind == b"w":
            state.facts = WriterFacts(**json.loads(value))
        elif kind == b"r":
            state.runs[rest[0].decode()] = RunState(**json.loads(value))
        elif kind == b"m":
            origin = Origin(rest[0].decode(), _INCARNATION.unpack(rest[1])[0])
            state.marks[origin] = SourceMark(*_MARK.unpack(value))
        elif kind == b"c":
            state.pending = _decode_commit(value)
        elif kind == b"p":
            state.progress = Progress(*_PROGRESS.unpack(value))
    return writers


def load_fences(rows: Iterable[tuple[bytes, bytes]]) -> dict[Fence, int]:
    """Return the fences with the times of their aborts, from all rows of the table."""
    fences = {}
    for key, value in rows:
        if key.startswith(_FENCE):
            writer, run, epoch, name = key[1:].decode().split("\0")
            fences[Fence(EpochKey(writer, run, int(epoch)), name)] = _ABORTED_MS.unpack(value)[0]
    return fences


def rows_of_fences(fences: Iterable[Fence], aborted_ms: int | None) -> list[Row]:
    """Return the rows that store fences, or with None delete them."""
    value = None if aborted_ms is None else _ABORTED_MS.pack(aborted_ms)
    return [
        (TABLE, _FENCE + f"{writer}\0{run}\0{epoch}\0{name}".encode(), value) for (writer, run, epoch), name in fences
    ]


def rows_of_decision(commit: PendingCommit) -> list[Row]:
    """Return the row that stores a decided commit. Writing it again changes nothing."""
    body = {
        "key": list(commit.key),
        "receipts": [list(asdict(receipt).values()) for receipt in commit.receipts],
        "marks": [[*origin, *mark] for origin, mark in commit.marks.items()],
        "kept": commit.kept,
    }
    return [(TABLE, b"c" + commit.key.writer.encode(), json.dumps(body).encode())]


def rows_without_decision(writer: str) -> list[Row]:
    """Return the rows that delete a writer's decided commit."""
    name = writer.encode()
    return [(TABLE, b"c" + name, None), (TABLE, b"p" + name, None)]


def rows_of_step(writer: str, progress: Progress) -> list[Row]:
    """Return the row that a step writes together with its entries, unless it is the last step."""
    return [(TABLE, b"p" + writer.encode(), _PROGRESS.pack(*progress))]


def rows_of_last_step(finished: Finished) -> list[Row]:
    name = finished.key.writer.encode()
    rows: list[Row] = [
        (TABLE, b"w" + name, json.dumps(asdict(finished.facts)).encode()),
        (TABLE, b"r" + name + b"\0" + finished.key.run.encode(), json.dumps(asdict(finished.run)).encode()),
        *rows_without_decision(finished.key.writer),
    ]
    rows += [(TABLE, b"r" + name + b"\0" + run.encode(), None) for run in finished.dropped_runs]
    for origin, mark in finished.marks.items():
        tail = origin.cluster.encode() + b"\0" + _INCARNATION.pack(origin.incarnation)
        rows.append((TABLE, b"m" + name + b"\0" + tail, _MARK.pack(*mark)))
    return rows


def prefixes_of(writer: str) -> list[tuple[str, bytes]]:
    """Return the prefixes of all rows of a writer, except its facts (:func:`row_of_facts`)."""
    return [(TABLE, kind + writer.encode() + b"\0") for kind in (b"r", b"m")]


def row_of_facts(writer: str) -> Row:
    """Return the row that deletes a writer's facts."""
    return (TABLE, b"w" + writer.encode(), None)


def _split(key: bytes) -> list[bytes]:
    """Return kind, writer and the rest of a key. An incarnation may contain any byte."""
    kind, rest = key[:1], key[1:]
    return [kind, *rest.split(b"\0", 2 if kind == b"m" else 1)]


def _decode_commit(value: bytes) -> PendingCommit:
    body = json.loads(value)
    return PendingCommit(
        EpochKey(*body["key"]),
        tuple(Receipt(*each) for each in body["receipts"]),
        {Origin(*each[:2]): SourceMark(*each[2:]) for each in body["marks"]},
        body["kept"],
    )
