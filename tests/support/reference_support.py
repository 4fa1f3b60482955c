"""Scripts of the repository as modules: those of docs/reference/, and others that lie in no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
RUN = "run `make reference`"


def script(place: Path) -> ModuleType:
    """Return a new module with the code of the script ``place``."""
    spec = importlib.util.spec_from_file_location(f"script_{place.stem}", place)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[loaded.__name__] = loaded  # dataclasses look there
    spec.loader.exec_module(loaded)
    return loaded


def module(name: str) -> ModuleType:
    """Return a generator of docs/reference/ by its name."""
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
