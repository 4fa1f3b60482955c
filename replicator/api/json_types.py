"""Types of the JSON of the audit log and the mapping, with one line of meaning for each field.

docs/reference/json.md is made from here.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict


class AuditAnswer(TypedDict):
    """An entry of one worker's audit log."""

    at_ms: Annotated[int, "when, by the worker's clock"]
    actor: Annotated[str, "the role that asked for it, or `operator`"]
    action: Annotated[str, "what was done"]
    subject: Annotated[str, "to what"]
    detail: Annotated[dict[str, Any] | None, "what else is known: `from`, and what was so `before` and `after`"]


class RebuildAnswer(TypedDict):
    """How far the rebuilding of a cluster's index is."""

    state: Annotated[str, "`idle`, `running`, `done` or `failed`"]
    detail: Annotated[str, "why it failed"]
    topics: Annotated[int, "to be looked at", "topics"]
    topics_done: Annotated[int, "looked at", "topics"]
    blocks: Annotated[int, "whose headers were read", "blocks"]
    segments: Annotated[int, "rows of the exact mapping that were made", "rows"]
    mappings: Annotated[int, "rows of snapshot mappings that were made", "rows"]
    states: Annotated[int, "rows of subscription states that were made", "rows"]
    store_rows_repaired: Annotated[int, "rows of the worker's own store that were wrong", "rows"]
