"""A span as a worker makes it, and who takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from replicator.tracing.context import TraceContext

Attribute = str | int | bool


class Kind(Enum):
    """What OpenTelemetry calls the kinds."""

    SERVER = "server"
    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Span:
    """One that is over. ``links`` are spans of other traces, or beside it in its own, that it has to do with."""

    name: str
    kind: Kind
    context: TraceContext
    parent: TraceContext | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    links: Sequence[TraceContext] = ()
    error: str | None = None


class SpanSink(Protocol):
    """Takes spans, on the event loop; it neither waits nor raises."""

    def add(self, span: Span) -> None: ...
