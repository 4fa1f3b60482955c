"""Charts of a drill as inline SVG: lines or stacked bars over seconds, with the moments of kills.

Owns scales, ticks and drawing; colours come from the page's style sheet (classes ``s0``, ``s1``, …). A chart is plain
text without scripts, links or fonts of its own. Whoever points at it gets the figures of that second; whoever
cannot see it gets its description.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Final

WIDTH: Final = 960
HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 18, 44, 46
_PLOT_WIDTH: Final = WIDTH - _LEFT - _RIGHT
_PLOT_HEIGHT: Final = HEIGHT - _TOP - _BOTTOM
_LOG_WHEN_SPREAD_OVER: Final = 50
"""Spread of the values from which an axis is logarithmic. A linear axis hides values below a fiftieth of its height."""
_LABEL_CHAR_WIDTH: Final = 6.6


@dataclass(frozen=True, slots=True)
class Line:
    """Series of a chart: one value for each bucket, or None. ``style`` is the number of its colour."""

    label: str
    values: Sequence[float | None]
    style: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Outage:
    """Time in which a cluster was down or cut off, in seconds of the chart. None as its end means to the end."""

    cluster: str
    start_seconds: float
    end_seconds: float | None
    word: str = "killed"
    """Word for the fault that hit the cluster."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Content of a chart. ``bars`` stacks the series; ``may_be_log`` allows a logarithmic axis for a wide spread."""

    id: str
    title: str
    unit: str
    description: str
    bucket_seconds: int
    lines: Sequence[Line]
    outages: Sequence[Outage] = ()
    bars: bool = False
    may_be_log: bool = False

    @property
    def buckets(self) -> int:
        return max((len(line.values) for line in self.lines), default=0)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps a value to a height in the plot; ``ticks`` are the values with a grid line."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def y(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            share = math.log10(value / self.low) / math.log10(self.high / self.low)
        else:
            share = value / self.high
        return _TOP + _PLOT_HEIGHT * (1 - share)


def render_chart(chart: Chart) -> str:
    """Return the chart as one ``<figure>`` with its legend."""
    scale = _scale(chart)
    parts = [
        f'<figure class="chart"><figcaption><h3>{escape(chart.title)}</h3>{_legend(chart)}</figcaption>',
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{chart.id}-t {chart.id}-d">',
        f'<title id="{chart.id}-t">{escape(chart.title)}</title>',
        f'<desc id="{chart.id}-d">{escape(chart.description)}</desc>',
        *_outage_bands(chart),
        *_axes(chart, scale),
        *(_bars(chart, scale) if chart.bars else _lines(chart, scale)),
        *_outage_marks(chart),
        *_tooltips(chart),
        "</svg></figure>",
    ]
    return "\n".join(parts)


def nice_ticks(high: float, about: int = 5) -> tuple[float, ...]:
    """Return round values from 0 that reach ``high``, in steps of 1, 2 or 5 times a power of ten."""
    if high <= 0:
        return (0.0, 1.0)
    magnitude = 10 ** math.floor(math.log10(high / about))
    # The least of the round steps that needs no more than about so many; 10 always does.
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if high / (magnitude * factor) <= about * (1 + 1e-9))
    return tuple(step * number for number in range(math.ceil(high / step - 1e-9) + 1))


def format_number(value: float) -> str:
    """Return a number as text, such as ``12,345``, ``3.5``, ``0.02``, with as many digits as help."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _scale(chart: Chart) -> _Scale:
    if chart.bars:
        columns = zip(*(line.values for line in chart.lines), strict=True)
        values: list[float] = [sum(value or 0 for value in column) for column in columns]
    else:
        values = [value for line in chart.lines for value in line.values if value is not None]
    high = max(values, default=0.0)
    positive = sorted(value for value in values if value > 0)
    if chart.may_be_log and positive and high / positive[len(positive) // 2] > _LOG_WHEN_SPREAD_OVER:
        # One fast outlier must not take half of the axis: start near the first percent.
        first = math.floor(math.log10(positive[len(positive) // 100]))
        last = max(math.ceil(math.log10(high)), first + 1)
        return _Scale(10.0**first, 10.0**last, True, tuple(10.0**power for power in range(first, last + 1)))
    ticks = nice_ticks(high)
    return _Scale(0.0, ticks[-1], False, ticks)


def _length_seconds(chart: Chart) -> int:
    return max(chart.buckets, 1) * chart.bucket_seconds


def _x(chart: Chart, seconds: float) -> float:
    return _LEFT + _PLOT_WIDTH * min(max(seconds / _length_seconds(chart), 0.0), 1.0)


def _legend(chart: Chart) -> str:
    items = []
    for line in chart.lines:
        if chart.bars:
            swatch = f'<rect class="b s{line.style}" width="22" height="10"/>'
        else:
            dash = " dash" if line.dashed else ""
            swatch = f'<path class="l s{line.style}{dash}" d="M0 5H22"/>'
        items.append(f'<li><svg width="22" height="10" aria-hidden="true">{swatch}</svg>{escape(line.label)}</li>')
    if chart.outages:
        items.append(
            '<li><svg width="22" height="10" aria-hidden="true"><rect class="down" width="22" height="10"/>'
            '<path class="kill" d="M1 0V10"/></svg>cluster down, from its kill on</li>'
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _axes(chart: Chart, scale: _Scale) -> Iterator[str]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    unit = f"{chart.unit} (logarithmic)" if scale.log else chart.unit
    yield f'<text class="unit" x="8" y="15">{escape(unit)}</text>'
    for tick in scale.ticks:
        y = scale.y(tick)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>'
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_number(tick)}</text>'
    length = _length_seconds(chart)
    for tick in nice_ticks(length, about=10):
        if tick > length:
            break
        x = _x(chart, tick)
        yield f'<path class="axis" d="M{x:.1f} {bottom}v5"/>'
        yield (f'<text class="tick" x="{x:.1f}" y="{bottom + 19}" text-anchor="middle">{format_number(tick)}</text>')
    yield f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>'
    yield (
        f'<text class="unit" x="{_LEFT + _PLOT_WIDTH / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
        "seconds since the first message was sent</text>"
    )


def _lines(chart: Chart, scale: _Scale) -> Iterator[str]:
    for line in chart.lines:
        css = f"s{line.style}{' dash' if line.dashed else ''}"
        # A line is cut where there is no value; a lone value between two gaps would be invisible, so it is a dot.
        for present, run in groupby(enumerate(line.values), key=lambda pair: pair[1] is not None):
            if not present:
                continue
            points = [
                (_x(chart, (index + 0.5) * chart.bucket_seconds), scale.y(value))
                for index, value in run
                if value is not None
            ]
            if len(points) == 1:
                yield f'<circle class="dot {css}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5"/>'
            else:
                path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
                yield f'<path class="l {css}" d="M{path}"/>'


def _bars(chart: Chart, scale: _Scale) -> Iterator[str]:
    bottom = scale.y(0)
    for index in range(chart.buckets):
        left = _x(chart, index * chart.bucket_seconds)
        width = max(_x(chart, (index + 1) * chart.bucket_seconds) - left - 1, 0.8)
        total = 0.0
        for line in chart.lines:
            value = line.values[index] or 0
            if value > 0:
                base, total = total, total + value
                height = max(scale.y(base) - scale.y(total), 1.0)  # a bar of one message is to be seen
                yield (
                    f'<rect class="b s{line.style}" x="{left:.1f}" '
                    f'y="{min(scale.y(total), bottom - height):.1f}" width="{width:.1f}" height="{height:.1f}"/>'
                )


def _outage_bands(chart: Chart) -> Iterator[str]:
    for outage in chart.outages:
        left = _x(chart, outage.start_seconds)
        end = _length_seconds(chart) if outage.end_seconds is None else outage.end_seconds
        width = max(_x(chart, end) - left, 0)
        yield f'<rect class="down" x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{_PLOT_HEIGHT}"/>'


def _outage_marks(chart: Chart) -> Iterator[str]:
    """Yield the marks of kills and returns. A label goes to the side where it fits, in the first row that is free."""
    moments = sorted(
        (seconds, kind, f"{outage.cluster} {word}")
        for outage in chart.outages
        for seconds, kind, word in (
            (outage.start_seconds, "kill", outage.word),
            (outage.end_seconds, "back", "back"),
        )
        if seconds is not None
    )
    row_ends = [0.0, 0.0]
    for seconds, kind, label in moments:
        x = _x(chart, seconds)
        width = len(label) * _LABEL_CHAR_WIDTH + 6
        start = x if x + width < WIDTH else x - width
        row = 0 if start >= row_ends[0] else 1
        row_ends[row] = start + width
        y = _TOP - 20 + row * 13
        yield f'<path class="{kind}" d="M{x:.1f} {y - 8}V{HEIGHT - _BOTTOM}"/>'
        yield f'<text class="mark {kind}-text" x="{start + 4:.1f}" y="{y}">{escape(label)}</text>'


def _tooltips(chart: Chart) -> Iterator[str]:
    for index in range(chart.buckets):
        start = index * chart.bucket_seconds
        left, right = _x(chart, start), _x(chart, start + chart.bucket_seconds)
        figures = "\n".join(
            f"{line.label}: {'–' if (value := line.values[index]) is None else format_number(value)}"
            for line in chart.lines
        )
        text = f"{start}–{start + chart.bucket_seconds} s ({chart.unit})\n{figures}"
        yield (
            f'<rect class="hit" x="{left:.1f}" y="{_TOP}" width="{max(right - left, 0.5):.1f}" '
            f'height="{_PLOT_HEIGHT}"><title>{escape(text)}</title></rect>'
        )
