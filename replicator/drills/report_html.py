"""The drill's report as one HTML page that needs nothing else: no script, font, image or style from outside.

Owns the page's structure and style; charts are drawn by :mod:`replicator.drills.svg_chart`. All text of the report is
escaped here, whatever its origin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any, Final

from replicator import __version__
from replicator.drills.over_topics import OVER_TOPICS
from replicator.drills.series import Series
from replicator.drills.svg_chart import Chart, Line, Outage, format_number, render_chart
from replicator.index.drill_reports import EXACT

_STYLE: Final = files("replicator.drills").joinpath("report_style.html").read_text(encoding="utf-8")
"""A ``<style>`` element, in a file of its own so that editors know its language."""

_TILES: Final = (
    ("lost", "Lost", "confirmed messages that never reached a subscription"),
    ("out_of_order", "Out of order", "by key, within one origin"),
    ("repeated_acked_over_1s_before_kill", "Repeated though settled", "acknowledged > 1 s before the cut"),
    ("rpo_messages", "RPO", "messages stranded at the cluster that was left"),
    ("rto_seconds", "RTO", "seconds from the failover until all traffic flowed elsewhere"),
    ("repeated", "Repeated", "deliveries beyond the first"),
)  # fmt: skip
_BAD_UNLESS_ZERO: Final = frozenset({"lost", "out_of_order"})
_BAD_IF_EXACT: Final = frozenset({"repeated_acked_over_1s_before_kill"})

_FIGURES: Final = (
    ("published", "messages that a producer sent"),
    ("confirmed", "messages that a worker confirmed as durable"),
    ("consumed_unique", "messages that every subscription received"),
    ("lost", "confirmed messages that a subscription never received, over all subscriptions"),
    ("repeated", "deliveries beyond a message's first, over all subscriptions"),
    ("repeated_acked_before_kill",
     "repeats after an unplanned failover of what had been acknowledged before its cut"),
    ("repeated_acked_over_1s_before_kill",
     "repeats after an unplanned failover of what had been acknowledged more than 1 s before its cut"),
    ("repeated_acked_before_planned",
     "repeats after a planned failover of what had been acknowledged before it was begun"),
    ("out_of_order", "first deliveries behind a later one of the same key and origin, in ordered subscriptions"),
    ("late", "stranded messages that came after a newer one of their key; unavoidable in an unplanned cut"),
    ("rpo_messages", "messages confirmed at a cluster that was left and that no other had at that moment"),
    ("rto_seconds", "from a failover to the first confirm and each subscription's first delivery elsewhere"),
    ("copy_lag_ms", "from confirmation to being seen in the other cluster"),
    ("sync_lag_ms", "from an acknowledgement to being acknowledged in the other cluster"),
    ("snapshot_mappings", "coarse mappings between the clusters' positions"),
    ("subscription_updates", "update markers carried between the clusters"),
    ("wall_seconds", "the whole drill, verify included"),
)  # fmt: skip

_CUT_WORDS: Final = {"kill": "killed", "partition": "cut off"}
"""Word for the fault that hit the cluster which clients left; none if they just moved."""


def render_html(report: Mapping[str, Any], series: Series, made_at: datetime | None = None) -> str:
    """Return the page. ``made_at`` is the time that it shows, by default the present."""
    verdict = "passed" if report["passed"] else "failed"
    made_at = made_at or datetime.now(UTC)
    charts = list(_charts(report, series))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Whatever a message key or a cluster's name may hold: nothing is loaded and no script runs.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="color-scheme" content="light dark">',
            f"<title>Failover drill {escape(report['scenario'])}: {verdict}</title>",
            _STYLE,
            "</head><body><main>",
            _header(report, verdict, made_at),
            _failures(report),
            _tiles(report),
            '<section aria-labelledby="over-time"><h2 id="over-time">Over time</h2>',
            "<p>Point at a chart for the figures of a second.</p>",
            *(render_chart(chart) for chart in charts),
            _seconds_table(charts),
            "</section>",
            _over_topics(report),
            _subscriptions(report),
            _failovers(report),
            _phases(report),
            _verify(report),
            _figures(report),
            _settings(report),
            _configuration(report),
            f"</main><footer>replicator {escape(__version__)}. What each figure means: docs/drills.md.</footer>",
            "</body></html>\n",
        ]
    )


def _header(report: Mapping[str, Any], verdict: str, made_at: datetime) -> str:
    about = [
        *([f"system {report['system']}"] if "system" in report else []),
        f"engine {report['engine']}",
        f"seed {report['seed']}",
        f"{format_number(report['published'])} messages",
        f"{format_number(report['wall_seconds'])} s",
        f"{made_at:%Y-%m-%d %H:%M} UTC",
    ]
    return (
        f'<header><h1>Failover drill <span class="scenario">{escape(report["scenario"])}</span> '
        f'<span class="badge {verdict}">{verdict}</span></h1>'
        f"<p>{escape(' · '.join(about))}</p></header>"
    )


def _failures(report: Mapping[str, Any]) -> str:
    if not report["failures"]:
        return ""
    items = "".join(f"<li>{escape(each)}</li>" for each in report["failures"])
    return f'<section class="failures"><h2>Why it failed</h2><ul>{items}</ul></section>'


def _tiles(report: Mapping[str, Any]) -> str:
    tiles = []
    for name, label, meaning in _TILES:
        state = ""
        if name in _BAD_UNLESS_ZERO or (name in _BAD_IF_EXACT and report.get("sync", EXACT) == EXACT):
            state = " bad" if report[name] else " good"
        tiles.append(
            f'<div class="tile{state}"><dt>{escape(label)}</dt><dd><strong>{_value(report[name])}</strong>'
            f"<small>{escape(meaning)}</small></dd></div>"
        )
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _charts(report: Mapping[str, Any], series: Series) -> Iterator[Chart]:
    outages = [
        Outage(each["cluster"], each["cut_at_seconds"], each["returned_at_seconds"], _CUT_WORDS[each["kind"]])
        for each in report["failovers"]
        if each["kind"] in _CUT_WORDS
    ]
    width = series.bucket_seconds

    def rate(counts: Sequence[int]) -> list[float | None]:
        return [count / width for count in counts]

    def chart(chart_id: str, title: str, unit: str, lines: Sequence[Line], **more: Any) -> Chart:
        return Chart(chart_id, title, unit, _describe(unit, lines, outages), width, lines, outages, **more)

    yield chart(
        "published",
        "Published and copied",
        "messages/s",
        [Line("published", rate(series.published), 0), Line("copied to the other cluster", rate(series.copied), 1)],
    )
    consumed = []
    for style, name in enumerate(series.consumed):
        consumed.append(Line(f"{name}: consumed", rate(series.consumed[name]), style))
        consumed.append(Line(f"{name}: acknowledged", rate(series.acknowledged[name]), style, dashed=True))
    yield chart("consumed", "Consumed and acknowledged", "messages/s", consumed)
    yield chart(
        "lag",
        "Copy lag",
        "ms",
        [Line("p50", series.copy_lag_ms_p50, 0), Line("p99", series.copy_lag_ms_p99, 1)],
        may_be_log=True,
    )
    repeats = [Line(name, rate(counts), style) for style, (name, counts) in enumerate(series.repeated.items())]
    yield chart("repeats", "Repeated deliveries", "messages/s", repeats, bars=True)


def _describe(unit: str, lines: Sequence[Line], outages: Sequence[Outage]) -> str:
    """Return the chart in words, for readers who cannot see it."""
    sentences = []
    for line in lines:
        values = [value for value in line.values if value is not None]
        highest = f"at most {format_number(max(values))} {unit}" if values else "no values"
        sentences.append(f"{line.label}: {highest}.")
    for outage in outages:
        back = "" if outage.end_seconds is None else f", back at {format_number(round(outage.end_seconds, 1))} s"
        sentences.append(f"{outage.cluster} {outage.word} at {format_number(round(outage.start_seconds, 1))} s{back}.")
    return " ".join(sentences)


def _seconds_table(charts: Sequence[Chart]) -> str:
    """Return a table of all figures that the charts show."""
    head = "".join(
        f'<th scope="col">{escape(chart.title)}: {escape(line.label)} <small>{escape(chart.unit)}</small></th>'
        for chart in charts
        for line in chart.lines
    )
    width = charts[0].bucket_seconds
    rows = []
    for index in range(charts[0].buckets):
        cells = "".join(f"<td>{_value(line.values[index])}</td>" for chart in charts for line in chart.lines)
        rows.append(f'<tr><th scope="row">{index * width}</th>{cells}</tr>')
    return (
        "<details><summary>The charts as figures</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="The charts as figures"><table>'
        f'<thead><tr><th scope="col">second</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table></div></details>"
    )


def _over_topics(report: Mapping[str, Any]) -> str:
    if report.get("topics", 1) == 1:
        return ""
    rows = [
        [title, over["p50"], over["p99"], over["worst"], over["worst_topic"] or "–"]
        for name, title in OVER_TOPICS.items()
        for over in [report["over_topics"][name]]
    ]
    headings = ("figure of a topic", "p50", "p99", "worst", "the worst topic")
    return _table(f"Over {report['topics']:,} topics", headings, rows)


def _subscriptions(report: Mapping[str, Any]) -> str:
    headings = (
        "subscription", "type", "acknowledges", "received", "acknowledged", "lost", "repeated",
        "repeated, acked > 1 s before kill", "out of order", "overtaken", "late", "sync lag p50 / p99 ms",
    )  # fmt: skip
    rows = [
        [
            each["name"], each["type"], "cumulatively" if each["cumulative"] else "individually",
            each["consumed_unique"], each["acknowledged"], each["lost"], each["repeated"],
            each["repeated_acked_over_1s_before_kill"], each["out_of_order"], each["overtaken"], each["late"],
            each["sync_lag_ms"],
        ]
        for each in report["subscriptions"]
    ]  # fmt: skip
    return _table("Subscriptions", headings, rows)


def _failovers(report: Mapping[str, Any]) -> str:
    if not report["failovers"]:
        return ""
    names = [each["name"] for each in report["subscriptions"]]
    headings = (
        "from", "to", "kind", "cut at s", "clients left at s", "back at s", "RPO messages", "RTO s",
        "first confirm elsewhere after s", *(f"first delivery of {name} elsewhere after s" for name in names),
    )  # fmt: skip
    rows = [
        [
            each["cluster"], each["to"], each["kind"], each["cut_at_seconds"], each["at_seconds"],
            each["returned_at_seconds"], each["rpo_messages"], each["rto_seconds"], each["first_confirm_seconds"],
            *(each["first_delivery_seconds"].get(name) for name in names),
        ]
        for each in report["failovers"]
    ]  # fmt: skip
    return _table("Failovers", headings, rows)


def _phases(report: Mapping[str, Any]) -> str:
    if len(report["phases"]) < 2:
        return ""
    counters = list(dict.fromkeys(name for phase in report["phases"] for name in phase["counts_per_second"]))
    headings = (
        "phase", "seconds", "confirmed/s", "copied/s", "copy lag p50 / p99 ms", "sync lag p50 / p99 ms",
        *(f"{name}/s by cluster" for name in counters),
    )  # fmt: skip
    rows = [
        [
            phase["name"], phase["seconds"], phase["confirmed_per_second"], phase["copied_per_second"],
            phase["copy_lag_ms"], phase["sync_lag_ms"],
            *(
                ", ".join(
                    f"{cluster} {format_number(value)}"
                    for cluster, value in phase["counts_per_second"].get(name, {}).items()
                )
                for name in counters
            ),
        ]
        for phase in report["phases"]
    ]  # fmt: skip
    return _table("Phases", headings, rows)


def _verify(report: Mapping[str, Any]) -> str:
    if "verify" in report.get("lacks", ()):
        return ""
    rows = [[fault, count] for fault, count in report["verify"].items()]
    return _table("Verify", ("fault, by comparing the clusters message by message", "found"), rows)


def _figures(report: Mapping[str, Any]) -> str:
    lacks = report.get("lacks", ())
    rows = [[name, "none" if name in lacks else report[name], meaning] for name, meaning in _FIGURES]
    return _table("All figures", ("figure", "value", "meaning"), rows)


def _settings(report: Mapping[str, Any]) -> str:
    known = {name for name, _meaning in _FIGURES}
    rows = [
        [name, value] for name, value in report.items() if name not in known and isinstance(value, str | int | float)
    ]
    return _table("Settings", ("field", "value"), rows)


def _configuration(report: Mapping[str, Any]) -> str:
    rows = [
        [part, name, value]
        for part, values in report.get("configuration", {}).items()
        for name, value in values.items()
    ]
    return _table("Configuration", ("part", "setting", "value"), rows) if rows else ""


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = []
    for first, *rest in rows:
        cells = "".join(f"<td{_cell_class(value)}>{_value(value)}</td>" for value in rest)
        body.append(f'<tr><th scope="row">{_value(first)}</th>{cells}</tr>')
    return (
        f'<section><h2>{escape(title)}</h2><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(title)}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></section>"
    )


def _cell_class(value: Any) -> str:
    return ' class="text"' if isinstance(value, str) else ""


def _value(value: Any) -> str:
    """Return a field of the report as HTML text."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return escape(format_number(value))
        case {"p50": p50, "p99": p99}:
            return f"{_value(p50)} / {_value(p99)}"
        case _:
            return escape(str(value))
