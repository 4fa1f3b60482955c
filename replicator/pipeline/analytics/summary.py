"""Summaries: a report's tables shortened for the terminal and the page. Pure.

Each :class:`Summary` has a meaning, a heading with its unit for every column, and the rows that deserve to be looked at
first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from replicator.engine.topic_name import SCHEME
from replicator.pipeline.analytics.report import ROWS_MAX, Report
from replicator.pipeline.analytics.sizes import MEASURES

ROWS_SHOWN_MAX: Final = 10

Row = Mapping[str, Any]
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Shortened table. ``table`` names the source; ``of`` is the number of rows before shortening."""

    table: str
    title: str
    meaning: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    of: int


def summaries(report: Report) -> list[Summary]:
    """Return one summary for each table of the report, in its order."""
    found = []
    for table, title, meaning, columns, shorten in _SUMMARIES:
        rows = list(shorten(report.tables[table].to_pylist(), report))
        found.append(Summary(table, title, meaning, columns, tuple(rows[:ROWS_SHOWN_MAX]), len(rows)))
    return found


def headline(report: Report) -> str:
    """Return one line about the messages that were read."""
    times = (
        ""
        if report.first is None or report.last is None
        else f", published {report.first:%F %T} to {report.last:%F %T} UTC"
    )
    return (
        f"{report.messages:,} messages in {report.topics:,} topics of {', '.join(report.clusters)}{times}; "
        f"{report.seconds:.1f} s"
    )


def warnings(report: Report) -> list[str]:
    """Return a line for each table that was cut."""
    return [f"{name}: only the first {ROWS_MAX:,} rows; choose fewer topics or a shorter time" for name in report.cut]


def format_report(report: Report) -> Group:
    """Return the report for a terminal."""
    parts: list[Any] = [Text(headline(report)), *(Text(each, style="red") for each in warnings(report))]
    for summary in summaries(report):
        more = f"; {len(summary.rows)} of {summary.of:,} rows" if summary.of > len(summary.rows) else ""
        table = Table(
            title=f"\n{summary.title}", title_justify="left", caption=f"{summary.meaning}{more}", caption_justify="left"
        )
        for number, column in enumerate(summary.columns):
            numeric = any(isinstance(row[number], int | float) for row in summary.rows)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in summary.rows:
            table.add_row(*(Text(format_cell(cell)) for cell in row))
        parts.append(table if summary.rows else Text(f"\n{summary.title}: nothing found"))
    return Group(*parts)


def format_cell(cell: Cell) -> str:
    """Return a cell as text, with as many digits as help."""
    match cell:
        case None:
            return "–"
        case str():
            return cell
        case int():
            return f"{cell:,}"
        case _:
            return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def _throughput(rows: Sequence[Row], report: Report) -> Iterable[tuple[Cell, ...]]:
    totals: dict[Any, list[float]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        total = totals[row["cluster"], _short(row["topic"]), row["way"]]
        total[0] += row["messages"]
        total[1] += row["bytes"]
        total[2] = max(total[2], row["messages_per_second"])
    span = _span_seconds(report)
    for key, (messages, size, peak) in sorted(totals.items(), key=lambda item: -item[1][0]):
        yield (*key, int(messages), size / 1e6, messages / span, peak)


def _lag(rows: Sequence[Row], report: Report) -> Iterable[tuple[Cell, ...]]:
    del report
    pairs: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        pairs[row["origin"], row["cluster"], _short(row["topic"])].append(row)

    def worst(of: Iterable[Row], name: str) -> float | None:
        values = [row[name] / 1000 for row in of if row[name] is not None]
        return max(values) if values else None

    found = [
        (
            *pair,
            sum(row["entries"] for row in of),
            *(worst(of, name) for name in ("at_least_ms_p99", "at_most_ms_p50", "at_most_ms_p99", "at_most_ms_max")),
            sum(row["unbounded"] for row in of),
        )
        for pair, of in pairs.items()
    ]
    yield from sorted(found, key=lambda row: -(row[6] or 0))


def _keys(rows: Sequence[Row], report: Report) -> Iterable[tuple[Cell, ...]]:
    del report
    for row in sorted(rows, key=lambda row: -row["share"]):
        key = "(no key)" if row["key"] is None else row["key"]
        yield row["cluster"], _short(row["topic"]), key, row["messages"], row["bytes"] / 1e6, 100 * row["share"]


def _consumers(rows: Sequence[Row], report: Report) -> Iterable[tuple[Cell, ...]]:
    del report
    for row in sorted(rows, key=lambda row: -(row["skew"] or 0)):
        place = (row["cluster"], _short(row["topic"]), row["subscription"], row["consumer"])
        yield (*place, row["keys"], row["messages"], 100 * row["share"], row["skew"])


def _repeated_ids(rows: Sequence[Row], report: Report) -> Iterable[tuple[Cell, ...]]:
    del report
    for row in sorted(rows, key=lambda row: -row["repeated"]):
        if row["repeated"]:
            place = (row["cluster"], _short(row["topic"]), row["origin"], row["producer_name"])
            yield (*place, row["messages"], row["repeated"], row["same_content"], row["repeated_ids"])


def _repeated_contents(rows: Sequence[Row], report: Report) -> Iterable[tuple[Cell, ...]]:
    del report
    for row in sorted(rows, key=lambda row: -row["repeated"]):
        if row["repeated"]:
            yield row["cluster"], _short(row["topic"]), row["producer_name"], row["messages"], row["repeated"]


def _sizes(rows: Sequence[Row], report: Report) -> Iterable[tuple[Cell, ...]]:
    """Yield for each measure the count, the mean, and the size classes that half, 99 % and all of it do not exceed."""
    del report
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["measure"], row["cluster"], _short(row["topic"])].append(row)
    order = list(MEASURES)
    for (measure, cluster, topic), of in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0])):
        count = sum(row["count"] for row in of)
        mean = sum(row["total"] for row in of) / count
        yield (
            measure.replace("_", ", "),
            cluster,
            topic,
            count,
            mean,
            *(_upto(of, count, share) for share in (0.5, 0.99, 1.0)),
        )


def _upto(rows: Iterable[Row], count: int, share: float) -> int:
    below, high = 0, 0
    for row in sorted(rows, key=lambda row: row["low"]):
        below, high = below + row["count"], row["high"]
        if below >= share * count:
            break
    return high


def _span_seconds(report: Report) -> float:
    if report.first is None or report.last is None:
        return 1.0
    return max((report.last - report.first).total_seconds(), float(report.bucket_seconds))


def _short(topic: str) -> str:
    return topic.removeprefix(SCHEME)


_SUMMARIES: Final[
    Sequence[tuple[str, str, str, tuple[str, ...], Callable[[Sequence[Row], Report], Iterable[tuple[Cell, ...]]]]]
] = (
    (
        "throughput",
        "Throughput",
        "by publish time; bytes are of payloads",
        ("cluster", "topic", "way", "messages", "MB", "messages/s, mean", "messages/s, highest bucket"),
        _throughput,
    ),
    (
        "lag",
        "Replication lag, seconds",
        "from publishing until the copy stood in the destination's log, between two bounds that this log knows",
        (
            "origin", "cluster", "topic", "entries", "at least, p99", "at most, p50", "at most, p99", "at most, max",
            "not bounded",
        ),
        _lag,
    ),
    (
        "keys",
        "Heaviest keys",
        "share of the topic's messages",
        ("cluster", "topic", "key", "messages", "MB", "share %"),
        _keys,
    ),
    (
        "consumers",
        "Load of Key_Shared consumers",
        "skew 1 is an even share; equal slots are supposed where no consumer runs",
        ("cluster", "topic", "subscription", "consumer", "keys", "messages", "share %", "skew"),
        _consumers,
    ),
    (
        "repeated_ids",
        "Repeated by producer and sequence id",
        "same content: sent again; other content: a producer that began anew under its name",
        ("cluster", "topic", "origin", "producer", "messages", "repeated", "with the same content", "ids"),
        _repeated_ids,
    ),
    (
        "repeated_contents",
        "Repeated by key and payload",
        "equal to a message that was published shortly before, by any producer",
        ("cluster", "topic", "producer", "messages", "repeated"),
        _repeated_contents,
    ),
    (
        "sizes",
        "Sizes",
        "of classes that double, the upper end of the one in which the percentile lies",
        ("of", "cluster", "topic", "count", "mean", "p50 at most", "p99 at most", "largest at most"),
        _sizes,
    ),
)  # fmt: skip
