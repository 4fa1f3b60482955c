"""What a link counts of what it carried, since the worker started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LinkFigures:
    """Counted since the worker started."""

    blocks: int = 0
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    """Of blocks."""
    wire_bytes: int = 0
    """Of frames, as compressed."""
    reconnects: int = 0
    """How often a connection was lost or could not be made."""

    def add(self, blocks: int, entries: int, messages: int, size_bytes: int, wire_bytes: int) -> None:
        """Others carried that much."""
        self.blocks += blocks
        self.entries += entries
        self.messages += messages
        self.bytes += size_bytes
        self.wire_bytes += wire_bytes
