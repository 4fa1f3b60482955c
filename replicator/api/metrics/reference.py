"""The page that lists every metric: ``python -m replicator.api.metrics.reference > docs/metrics.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from replicator.api.metrics.catalogue import METRICS, PROCESS
from replicator.api.metrics.declared import PREFIX, Kind, Metric

HEAD: Final = """\
# Metrics

All that `GET /metrics` of a worker exports. This page is made from the code: `make metrics-page`.
[monitoring.md](monitoring.md) shows how they are scraped and bounded, and what to watch.

Each metric of the service has the label `cluster`, the worker's own, before those that are named here. `to` is the
destination of a link, and `link` is its key (`A>B` or `A>B#name`). Counters begin at 0 when the worker starts, where
nothing else is said.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
"""
OLD: Final = """
## Names of the version before

They stand beside their successors for this version, unless `metrics.old_names` is `false`, and their help begins with
"Deprecated". `promtool check metrics` complains of those that are not by the conventions, which is why they were
renamed.

| old name | type | use |
| --- | --- | --- |
"""
PROCESS_HEAD: Final = """
## The process

Under names that all programs use, and without the label `cluster`.

| metric | type | unit | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return the text of ``docs/metrics.md``."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    for each in METRICS:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        yield f"| `{each.exported}` | {each.kind} | {each.unit_in_words} | {labels} | {_text(each)} |\n"
    yield OLD
    for each in METRICS:
        if (old := each.replaces) is not None:
            total = "_total" if old.kind is Kind.COUNTER else ""
            times = "" if old.factor == 1 else f", times {old.factor:g}"
            yield f"| `{PREFIX}{old.name}{total}` | {old.kind} | `{each.exported}`{times} |\n"
    yield PROCESS_HEAD
    for each in PROCESS:
        yield f"| `{each.name}` | {each.kind} | {each.unit_in_words} | {_text(each)} |\n"


def _text(metric: Metric) -> str:
    return metric.help.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
