"""Trace contexts, and the W3C form in which producers bring them along. Pure.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
"""Name of the property, and of the HTTP header."""
_SAMPLED: Final = 0x01
_TEXT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_VERSION: Final = "00"
_NO_VERSION: Final = "ff"


class TraceContext(NamedTuple):
    """A span of a trace, which the next span continues."""

    trace_id: int
    span_id: int


class ProducedContext(NamedTuple):
    """Content of a message's ``traceparent``: the producer's span, and whether the producer's trace is sampled."""

    context: TraceContext
    sampled: bool


def parse_traceparent(text: str) -> ProducedContext | None:
    """Parse a ``traceparent``. Return None for an invalid one, which counts as missing."""
    match = _TEXT.fullmatch(text)
    if match is None or match[1] == _NO_VERSION or (match[1] == _VERSION and match[5]):
        return None
    context = TraceContext(int(match[2], 16), int(match[3], 16))
    if not context.trace_id or not context.span_id:
        return None
    return ProducedContext(context, bool(int(match[4], 16) & _SAMPLED))


def traceparent(context: TraceContext) -> str:
    """Return the ``traceparent`` of a sampled span."""
    return f"{_VERSION}-{context.trace_id:032x}-{context.span_id:016x}-{_SAMPLED:02x}"
