"""Counters of a link: what it carried since the worker started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LinkFigures:
    """Counters of one link since the worker started."""

    blocks: int = 0
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    """Bytes of the blocks that were carried."""
    wire_bytes: int = 0
    """Bytes of the compressed frames."""
    reconnects: int = 0
    """Number of connections that were lost or could not be made."""

    def add(self, blocks: int, entries: int, messages: int, size_bytes: int, wire_bytes: int) -> None:
        """Add what another carrier carried for the link."""
        self.blocks += blocks
        self.entries += entries
        self.messages += messages
        self.bytes += size_bytes
        self.wire_bytes += wire_bytes
