"""Rebuilding of a segment's blocks from the messages that a link's SQL has left. No I/O.

The rows come from :mod:`replicator.pipeline.live.sql_rows`, without the messages that the SQL leaves out, and with the
columns of ``select``. A topic whose block cannot be rebuilt is refused alone: the others of the segment continue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from replicator.engine.errors import EngineError
from replicator.engine.log.block import BlockView, read_header, verify_block
from replicator.engine.log.left_out import decode_note, is_note
from replicator.links.plans import LEFT_OUT
from replicator.pipeline.errors import CannotMask
from replicator.pipeline.live.carrying import PLAN_STALE
from replicator.pipeline.live.filtering import Chain, Keep, Masked, Sent, filter_block
from replicator.pipeline.live.link_plans import Done
from replicator.pipeline.live.sql_rows import Row
from snapshots.position import Position


@dataclass(slots=True)
class Rebuilding:
    """Builder of the blocks to send, from the rows of a task in order: :meth:`take` all, then :meth:`end`."""

    masks: frozenset[str]
    lane: dict[str, Any] | None = None
    failed: str | None = None
    outgoing: list[Sent] = field(default_factory=list)
    _topics: list[dict[str, Any]] = field(default_factory=list)
    _topic_of: list[tuple[int, list[int]]] = field(default_factory=list)
    """Number of the topic, and row in the plan, for each block of the segment."""
    _refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    _chains: dict[tuple[int, str], Chain] = field(default_factory=dict)
    _block: tuple[int, bytes, bool] | None = None
    """Block whose messages are coming: its number, its bytes, and whether all of it stays."""
    _keep: Keep = field(default_factory=lambda: np.zeros(0, dtype=bool))
    _masked: dict[int, Masked] = field(default_factory=dict)
    _messages: int = 0
    _blocks: int = 0

    def take(self, batch: pa.RecordBatch) -> None:
        kinds = batch.column(0).to_numpy(zero_copy_only=False)
        control = np.flatnonzero(kinds > Row.SEALED)
        at = 0
        for row in [*control.tolist(), len(kinds)]:
            if row > at:
                self._stay(batch.slice(at, row - at), kinds[at:row])
            at = row + 1
            if row < len(kinds):
                number, content = batch.column(1)[row].as_py(), batch.column(3)[row].as_py()
                self._control(Row(int(kinds[row])), number, content)

    def _control(self, kind: Row, number: int, content: bytes | None) -> None:
        if kind is Row.SEGMENT:
            lane: dict[str, Any] = json.loads(content or b"")
            self.lane = lane
            self._topics = [] if lane["segment"] is None else lane["segment"]["topics"]
            self._topic_of = [(at, row) for at, topic in enumerate(self._topics) for row in topic["blocks"]]
        elif kind is Row.FAILED:
            self.failed = (content or b"").decode()
        elif kind is Row.MISSING:
            self._finish_block()
            ledger, first = self._topic_of[number][1][:2]
            message = f"the block at {ledger}:{first} is not at the source any more"
            self._refused.setdefault(self._topic_of[number][0], (PLAN_STALE, message))
        else:
            self._finish_block()
            self._block = number, content or b"", kind is Row.WHOLE
            if kind is Row.BLOCK:
                self._keep = np.zeros(read_header(content or b"").messages, dtype=bool)

    def _stay(self, rows: pa.RecordBatch, kinds: Any) -> None:
        """Keep these messages of the block."""
        assert self._block is not None
        first = rows.column(2).to_numpy(zero_copy_only=False)
        sealed = kinds == Row.SEALED
        if sealed.any():
            view = BlockView(self._block[1])
            starts = np.cumsum(view.batch_sizes, dtype=np.int64) - view.batch_sizes
            for entry in np.searchsorted(starts, first[sealed]).tolist():
                start, size = int(starts[entry]), int(view.batch_sizes[entry])
                self._keep[start : start + size] = True
                if self.masks:  # so that rewriting it raises CannotMask
                    self._masked[start] = Masked()
        seen = np.flatnonzero(~sealed)
        numbers = first[seen] + rows.column(4).take(pa.array(seen)).to_numpy(zero_copy_only=False)
        self._keep[numbers] = True
        if self.masks and len(seen):
            columns = {
                name: rows.column(rows.schema.get_field_index(name)).take(pa.array(seen)).to_pylist()
                for name in self.masks
            }
            for at, number in enumerate(numbers.tolist()):
                new = {name: values[at] for name, values in columns.items()}
                if new.get("properties") is not None:
                    new["properties"] = dict(new["properties"])
                self._masked[number] = Masked(**new)

    def _finish_block(self) -> None:
        """Filter and mask the block, because all its remaining messages are known."""
        if self._block is None:
            return
        (number, block, whole), self._block = self._block, None
        keep, masked, self._masked = self._keep, self._masked, {}
        topic, row = self._topic_of[number]
        if topic in self._refused:
            return
        if is_note(block):
            self._note(topic, row, block)
            return
        try:
            view = BlockView(block, verify_block(block))
            if whole:
                keep = np.ones(view.header.messages, dtype=bool)
            left = filter_block(block, view, keep, masked, self.masks)
        except (EngineError, CannotMask) as error:
            self._refused[topic] = (error.code, f"{row[0]}:{row[1]}: {error}")
            return
        name = self._topics[topic]["topic"]
        chain = self._chains.setdefault((topic, view.header.origin), Chain(name))
        self.outgoing += chain.outgoing(Position(row[4], row[5]), bool(row[6] & LEFT_OUT), view, left)
        self._blocks += 1
        self._messages += left.messages

    def _note(self, topic: int, row: list[int], content: bytes) -> None:
        """Note a block that is not for the destination, whatever the SQL says."""
        try:
            note = decode_note(content)
        except EngineError as error:
            self._refused[topic] = (error.code, f"{row[0]}:{row[1]}: {error}")
            return
        chain = self._chains.setdefault((topic, note.origin), Chain(self._topics[topic]["topic"]))
        chain.left_out(Position(row[4], row[5]), note)

    def end(self) -> None:
        """Finish the segment, because all its rows have come."""
        self._finish_block()
        for (topic, _), chain in self._chains.items():
            if topic not in self._refused:
                self.outgoing += chain.end()

    def done(self, refused: Mapping[str, tuple[str, str]], wire_bytes: int) -> Done:
        """Return the report on the segment; ``refused`` are the topics that the destination does not take."""
        assert self.lane is not None
        topics = []
        for number, topic in enumerate(self._topics):
            reason = refused.get(topic["topic"]) or self._refused.get(number)
            said = None if reason is None else {"code": reason[0], "message": reason[1]}
            reached = topic["upto"] if reason is None else topic["after"]
            topics.append({"topic": topic["topic"], "reached": reached, "refused": said})
        return {
            "segment": self.lane["segment"]["segment"],
            "topics": topics,
            "blocks": self._blocks,
            "entries": sum(row[2] for _, row in self._topic_of),
            "messages": self._messages,
            "bytes": sum(len(each.block) for each in self.outgoing),
            "wire_bytes": wire_bytes,
            "extents": [],
        }
