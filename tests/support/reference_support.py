"""The generators of docs/reference/, loaded from .ci/reference, which is no package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
RUN = "run `make reference`"


def module(name: str) -> ModuleType:
    place = str(REPOSITORY / ".ci" / "reference")
    if place not in sys.path:
        sys.path.append(place)
    return importlib.import_module(name)


def is_current(name: str, made: str) -> str | None:
    """Return None if the page in docs/ is current; else what to do."""
    page = DOCS / name
    there = page.read_text() if page.is_file() else ""
    if there == made:
        return None
    lines = [line for line in made.splitlines() if line not in there.splitlines()]
    return f"docs/{name} is not what the code says: {RUN}. New or changed: {lines[:5]}"
