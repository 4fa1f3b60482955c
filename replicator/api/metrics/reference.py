"""The page that lists every metric: ``python -m replicator.api.metrics.reference > docs/metrics.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from replicator.api.metrics.catalogue import METRICS, PROCESS
from replicator.api.metrics.declared import PREFIX, Kind, Metric

HEAD: Final = """\
# Metrics

<!-- Made by `make metrics-page` from the code. Do not edit it. -->

This page lists all metrics of `GET /metrics` of a worker. [monitoring.md](monitoring.md) shows how they are scraped
and bounded, and what to watch.

Labels stand behind a name. Before them, each metric has the label `cluster`, the worker's own. `to` is the destination
of a link, and `link` is its key (`A>B` or `A>B#name`). Names that end in `_total` are counters; they begin at 0 when
the worker starts, where nothing else is said. Others are gauges, if they are not called histograms here.

| metric | meaning |
| --- | --- |
"""
OLD: Final = """
## Names of the version before

They stand beside their successors for this version, unless `metrics.old_names` is `false`, and their help begins with
"Deprecated".

| old name | use |
| --- | --- |
"""
PROCESS_HEAD: Final = """
## The process

Under names that all programs use, and without the label `cluster`.

| metric | meaning |
| --- | --- |
"""


def page() -> str:
    """Return the text of ``docs/metrics.md``."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    for each in METRICS:
        labels = f"{{{','.join(each.labels)}}}" if each.labels else ""
        yield f"| `{each.exported}{labels}` | {_text(each)} |\n"
    yield OLD
    for each in METRICS:
        if (old := each.replaces) is not None:
            times = "" if old.factor == 1 else f", times {old.factor:g}"
            total = "_total" if old.kind is Kind.COUNTER else ""
            yield f"| `{PREFIX}{old.name}{total}` ({old.kind}) | `{each.exported}`{times} |\n"
    yield PROCESS_HEAD
    for each in PROCESS:
        yield f"| `{each.name}` | {_text(each)} |\n"


def _text(metric: Metric) -> str:
    kind = "Histogram: " if metric.kind is Kind.HISTOGRAM else ""
    return kind + metric.help.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
