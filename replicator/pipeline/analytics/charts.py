"""Charts of a report, drawn by matplotlib as SVG for an HTML page: text stays text, nothing is loaded.

The input is the tables of a :class:`~replicator.pipeline.analytics.report.Report`. Every chart has a title, units on
its axes and, if it has more than one series, a legend. Series beyond the limit of one chart are summed as "others", and
the chart says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import cycle
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from replicator.engine.topic_name import SCHEME
from replicator.pipeline.analytics.report import Report

SERIES_MAX: Final = 6
"""Limit of lines in one chart that eyes can tell apart; smaller series are summed as "others"."""
BARS_MAX: Final = 15
LABEL_CHARS_MAX: Final = 48
_WIDTH_INCHES: Final = 9.6
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#6b7280")
"""Colours by Okabe and Ito, who chose them so that colour-blind people tell them apart; the last one is for others."""
_STYLE: Final[dict[Any, Any]] = {
    "text.parse_math": False,  # keys and topics may have dollar signs
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "Segoe UI", "DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "legend.frameon": False,
    "legend.fontsize": 9,
}

Row = Mapping[str, Any]
Series = dict[str, dict[Any, float]]
Plot = Callable[[Axes, Sequence[Row], Report], None]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Chart as SVG. ``name`` is unique in a report; ``svg`` begins with ``<svg``."""

    name: str
    title: str
    svg: str


def draw(report: Report) -> list[Drawing]:
    """Return the charts of all tables that have something to show."""
    drawings = []
    for name, title, table, plot in _CHARTS:
        rows = report.tables[table].to_pylist()
        if plot is _repeated:
            rows = [row for row in rows if row["repeated"]]
        if rows:
            drawings.append(_drawn(name, title, plot, rows, report))
    return drawings


def _drawn(name: str, title: str, plot: Plot, rows: Sequence[Row], report: Report) -> Drawing:
    # A fixed salt makes fixed ids, so that equal reports are equal bytes.
    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH_INCHES, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title)
        plot(axes, rows, report)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # Several stand in one page, where ids must differ.
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    return Drawing(name, title, svg)


def _messages_by_cluster(axes: Axes, rows: Sequence[Row], report: Report) -> None:
    series = _summed(rows, lambda row: f"{row['cluster']}, {row['way']}", "messages_per_second")
    _over_time(axes, _few(series), report, gaps_are_zero=True)
    axes.set_ylabel("messages/s")
    axes.yaxis.set_major_formatter(EngFormatter())


def _bytes_by_topic(axes: Axes, rows: Sequence[Row], report: Report) -> None:
    published = [row for row in rows if row["way"] == "published"]
    series = _summed(published, lambda row: _short(row["topic"]), "bytes_per_second")
    _over_time(axes, _few(series), report, gaps_are_zero=True)
    axes.set_ylabel("payload bytes/s")
    axes.yaxis.set_major_formatter(EngFormatter("B"))


def _lag_by_pair(axes: Axes, rows: Sequence[Row], report: Report) -> None:
    """Plot the worst topic of each pair in each bucket: percentiles of several topics cannot be added up."""
    worst: Series = defaultdict(dict)
    for row in rows:
        for bound, label in (("at_most_ms_p99", "p99 at most"), ("at_least_ms_p50", "p50 at least")):
            if row[bound] is not None:
                buckets = worst[f"{row['origin']} → {row['cluster']}, {label}"]
                buckets[row["bucket"]] = max(buckets.get(row["bucket"], 0), row[bound] / 1000)
    _over_time(axes, _few(worst, total=max), report, gaps_are_zero=False)
    axes.set_ylabel("lag, seconds")
    axes.set_ylim(bottom=0)


def _heaviest_keys(axes: Axes, rows: Sequence[Row], report: Report) -> None:
    del report
    ranked = sorted(rows, key=lambda row: (-row["share"], row["cluster"], row["topic"], row["rank"]))
    _bars(
        axes,
        [
            (
                f"{'(no key)' if row['key'] is None else row['key']}  ·  {_short(row['topic'])} at {row['cluster']}",
                row["share"],
            )
            for row in ranked[:BARS_MAX]
        ],
        len(ranked),
    )
    axes.set_xlabel("share of the topic's messages")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))


def _skew_of_consumers(axes: Axes, rows: Sequence[Row], report: Report) -> None:
    del report
    ranked = sorted((row for row in rows if row["skew"] is not None), key=lambda row: -row["skew"])
    _bars(
        axes,
        [
            (f"{row['consumer']}  ·  {row['subscription']}, {_short(row['topic'])} at {row['cluster']}", row["skew"])
            for row in ranked[:BARS_MAX]
        ],
        len(ranked),
    )
    axes.axvline(1.0, color="#374151", linestyle="--", linewidth=1, label="an even share")
    axes.legend(loc="lower right")
    axes.set_xlabel("messages, as a multiple of an even share")


def _repeated(axes: Axes, rows: Sequence[Row], report: Report) -> None:
    del report
    ranked = sorted(rows, key=lambda row: -row["repeated"])
    bars = [
        (f"{row['producer_name']}  ·  {_short(row['topic'])} at {row['cluster']}", float(row["repeated"]))
        for row in ranked[:BARS_MAX]
    ]
    _bars(axes, bars, len(ranked))
    axes.set_xlabel("repeated messages")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _sizes_of(measure: str, unit: str) -> Plot:
    def plot(axes: Axes, rows: Sequence[Row], report: Report) -> None:
        del report
        series: Series = defaultdict(lambda: defaultdict(float))
        for row in rows:
            if row["measure"] == measure:
                series[row["cluster"]][row["low"]] += row["count"]
        lows = [0, *(1 << power for power in range(64))]
        present = [index for index, low in enumerate(lows) if any(low in counts for counts in series.values())]
        shown = range(min(present), max(present) + 1) if present else range(0)
        chosen = _few(series)
        width = 0.8 / max(len(chosen), 1)
        for number, ((label, counts), colour) in enumerate(zip(chosen.items(), cycle(_COLOURS), strict=False)):
            heights = [counts.get(lows[index], 0) for index in shown]
            places = [place + (number + 0.5) * width - 0.4 for place in range(len(heights))]
            axes.bar(places, heights, width, label=label, color=colour)
        axes.set_xticks(range(len(shown)), [_size_class(lows[index]) for index in shown], rotation=30, ha="right")
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(unit)
        axes.set_ylabel("messages" if measure == "message_bytes" else "entries")
        axes.yaxis.set_major_formatter(EngFormatter())
        _legend(axes, len(chosen))

    return plot


_CHARTS: Final[Sequence[tuple[str, str, str, Plot]]] = (
    ("messages", "Messages published and copied, by cluster", "throughput", _messages_by_cluster),
    ("bytes", "Payload published, by topic", "throughput", _bytes_by_topic),
    ("lag", "Replication lag, by pair of clusters (its slowest topic)", "lag", _lag_by_pair),
    ("keys", "Heaviest keys", "keys", _heaviest_keys),
    ("consumers", "Load of Key_Shared consumers", "consumers", _skew_of_consumers),
    ("repeated-ids", "Messages repeated by producer and sequence id", "repeated_ids", _repeated),
    ("repeated-contents", "Messages repeated by key and payload", "repeated_contents", _repeated),
    ("message-sizes", "Sizes of messages", "sizes", _sizes_of("message_bytes", "payload of a message, bytes")),
    ("batch-messages", "Messages in a batch", "sizes", _sizes_of("batch_messages", "messages in an entry")),
    ("batch-sizes", "Sizes of batches", "sizes", _sizes_of("batch_bytes", "payloads of an entry, bytes")),
)


def _over_time(axes: Axes, series: Series, report: Report, *, gaps_are_zero: bool) -> None:
    times: Any = _buckets(report)  # units convert them, which the types of matplotlib do not know
    for (label, values), colour in zip(series.items(), cycle(_COLOURS), strict=False):
        missing = 0.0 if gaps_are_zero else float("nan")
        heights = [values.get(time, missing) for time in times]
        # A point between two gaps has no line to either side.
        axes.plot(times, heights, label=label, color=colour, linewidth=1.6, marker="o", markersize=2.5)
    locator = AutoDateLocator(tz=UTC, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.set_xlabel(f"publish time, UTC (each point is {_duration(report.bucket_seconds)})")
    axes.set_ylim(bottom=0)
    _legend(axes, len(series))


def _bars(axes: Axes, bars: Sequence[tuple[str, float]], of: int) -> None:
    labels = [_cut(label) for label, _ in bars]
    axes.barh(range(len(bars)), [value for _, value in bars], color=_COLOURS[0], height=0.7)
    axes.set_yticks(range(len(bars)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(max(1.6 + 0.26 * len(bars), 2.4))
    if of > len(bars):
        axes.set_title(f"the first {len(bars)} of {of:,}", loc="right", fontsize=9, fontweight="normal")


def _legend(axes: Axes, series: int) -> None:
    if series:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _summed(rows: Iterable[Row], label: Callable[[Row], str], figure: str) -> Series:
    series: Series = defaultdict(lambda: defaultdict(float))
    for row in rows:
        series[label(row)][row["bucket"]] += row[figure]
    return series


def _few(series: Series, total: Callable[[Iterable[float]], float] = sum) -> Series:
    """Return the :data:`SERIES_MAX` largest series by name, and one for all others together."""
    ranked = sorted(series, key=lambda label: -total(series[label].values()))
    chosen: Series = {label: series[label] for label in sorted(ranked[:SERIES_MAX])}
    if rest := ranked[SERIES_MAX:]:
        together: dict[Any, float] = {}
        for label in rest:
            for key, value in series[label].items():
                together[key] = total((together.get(key, 0.0), value))
        chosen[f"{len(rest)} others"] = together
    return chosen


def _buckets(report: Report) -> list[datetime]:
    """Return every bucket from the first to the last, empty ones included."""
    if report.first is None or report.last is None:
        return []
    width = report.bucket_seconds
    first, last = (int(time.timestamp()) // width * width for time in (report.first, report.last))
    start = datetime.fromtimestamp(first, UTC)
    return [start + timedelta(seconds=offset) for offset in range(0, last - first + 1, width)]


def _short(topic: str) -> str:
    return topic.removeprefix(SCHEME).removeprefix("public/default/")


def _cut(label: str) -> str:
    return label if len(label) <= LABEL_CHARS_MAX else f"{label[: LABEL_CHARS_MAX - 1]}…"


def _size_class(low: int) -> str:
    if low < 2:
        return str(low)
    return f"{_binary(low)}–{low * 2 - 1}" if low < 1024 else f"from {_binary(low)}"


def _binary(size: int) -> str:
    for unit in ("", "Ki", "Mi", "Gi"):
        if size < 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}Ti"


def _duration(seconds: int) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds % unit == 0:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
