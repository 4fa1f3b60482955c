"""Types of the JSON of kept drills, with one line of meaning for each field.

docs/reference/json.md is made from here.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict


class KeptDrill(TypedDict):
    """A drill that is kept in a database, without its report."""

    id: Annotated[str, "its id"]
    scenario: Annotated[str, "which scenario it was"]
    topology_digest: Annotated[str, "the same for topologies that mean the same"]
    started_at: Annotated[str, "when it began", "ISO 8601"]
    ended_at: Annotated[str | None, "when it ended; null: it was cut off", "ISO 8601"]
    passed: Annotated[bool | None, "whether it passed; null: it was cut off"]


class ComparedFigure(TypedDict):
    """A figure of two drills."""

    first: Annotated[Any, "of the first one"]
    second: Annotated[Any, "of the second one"]


class DrillsCompared(TypedDict):
    """Two drills side by side."""

    first: Annotated[str, "id of the first one"]
    second: Annotated[str, "id of the second one"]
    figures: Annotated[dict[str, ComparedFigure], "by name of a setting or a figure"]
