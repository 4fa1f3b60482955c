"""A report as one HTML page without any script, font, image or style from outside.

All text of the report is escaped here, whatever its origin; charts come escaped from matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Final

from replicator import __version__
from replicator.pipeline.analytics.charts import Drawing, draw
from replicator.pipeline.analytics.report import Report
from replicator.pipeline.analytics.summary import Summary, format_cell, headline, summaries, warnings

_STYLE: Final = files("replicator.pipeline.analytics").joinpath("report_style.html").read_text(encoding="utf-8")

_CHARTS_OF: Final = {
    "throughput": ("messages", "bytes"),
    "lag": ("lag",),
    "keys": ("keys",),
    "consumers": ("consumers",),
    "repeated_ids": ("repeated-ids",),
    "repeated_contents": ("repeated-contents",),
    "sizes": ("message-sizes", "batch-messages", "batch-sizes"),
}


def render_html(report: Report, made_at: datetime | None = None) -> str:
    """Return the page. It shows ``made_at``, by default the present time."""
    made_at = made_at or datetime.now(UTC)
    drawings = {drawing.name: drawing for drawing in draw(report)}
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Whatever a key or a producer's name may hold: nothing is loaded and no script runs.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Topics of {escape(', '.join(report.clusters))}</title>",
            _STYLE,
            "</head><body><main><header>",
            f"<h1>Topics of {escape(', '.join(report.clusters))}</h1>",
            f"<p>{escape(headline(report))}</p>",
            *(f'<p class="cut">{escape(warning)}</p>' for warning in warnings(report)),
            "</header>",
            *(part for summary in summaries(report) for part in _section(summary, drawings)),
            f"</main><footer>replicator {escape(__version__)}, {made_at:%F %T} UTC</footer></body></html>",
        ]
    )


def _section(summary: Summary, drawings: dict[str, Drawing]) -> Iterator[str]:
    yield f"<section><h2>{escape(summary.title)}</h2><p>{escape(summary.meaning)}.</p>"
    for name in _CHARTS_OF[summary.table]:
        if drawing := drawings.get(name):
            yield f'<figure role="img" aria-label="{escape(drawing.title)}">{drawing.svg}</figure>'
    if not summary.rows:
        yield "<p>Nothing found.</p></section>"
        return
    shown = f"{len(summary.rows)} of {summary.of:,} rows" if summary.of > len(summary.rows) else "in figures"
    yield f'<details open><summary>{shown}</summary><div class="scroll"><table><thead><tr>'
    texts = [
        not any(isinstance(row[number], int | float) for row in summary.rows) for number in range(len(summary.columns))
    ]
    for column, is_text in zip(summary.columns, texts, strict=True):
        yield f'<th scope="col"{_class(is_text)}>{escape(column)}</th>'
    yield "</tr></thead><tbody>"
    for row in summary.rows:
        cells = zip(row, texts, strict=True)
        yield f"<tr>{''.join(f'<td{_class(is_text)}>{escape(format_cell(cell))}</td>' for cell, is_text in cells)}</tr>"
    yield "</tbody></table></div></details></section>"


def _class(is_text: bool) -> str:
    return ' class="text"' if is_text else ""
