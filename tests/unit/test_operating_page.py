"""docs/operating.md: its figures stand in the benchmarks, its example prints what it says, its metrics are there."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGE = (DOCS / "operating.md").read_text()


def test_every_figure_stands_in_the_benchmarks() -> None:
    benchmarks = (DOCS / "benchmarks.md").read_text()
    figures = re.findall(r"\| `([^`]+)` \|$", PAGE, re.MULTILINE)
    assert len(figures) > 8
    assert [figure for figure in figures if figure not in benchmarks] == []


def test_the_example_prints_what_it_says() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    printed: list[str] = []
    exec(example, {"print": printed.append})
    assert printed == re.findall(r"  # (.*)$", example, re.MULTILINE)
    assert len(printed) > 4


def test_the_metrics_that_it_names_are_there() -> None:
    source = "".join(path.read_text() for path in sorted((REPOSITORY / "replicator").rglob("*.py")))
    named = set(re.findall(r"`replicator_(\w+)`", PAGE))
    assert len(named) > 4
    assert [name for name in sorted(named) if not re.search(rf"\"(?:replicator_)?{name}\"", source)] == []
