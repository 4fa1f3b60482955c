"""Pages and parts of pages from the templates beside this; everything that is put in is escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from replicator.engine.topic_name import SCHEME

Part = str | Callable[[str], str]
"""HTML of a part of a page, the same for all browsers; or a function that makes it with a browser's form token."""
_UNITS: Final = ("", " k", " M", " G", " T")


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def part_with_form(template: str, **values: Any) -> Callable[[str], str]:
    """Return a part that has a form. It is rendered for each browser: nothing is put into text that was escaped."""
    return lambda form_token: render(template, form_token=form_token, **values)


def parts_for(parts: Mapping[str, Part], form_token: str) -> dict[str, str]:
    """Return the HTML of ``parts`` for the browser that has ``form_token``."""
    return {name: part if isinstance(part, str) else part(form_token) for name, part in parts.items()}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("replicator.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "duration": duration,
        "rate": rate,
        "moment": moment,
        "topic": short_topic,
    }
    environment.globals |= {"url": url}
    return environment


def url(path: str, **parameters: str) -> str:
    """Return a path of the dashboard with its parameters; leave out empty ones."""
    given = {name: value for name, value in parameters.items() if value}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def short_topic(name: str) -> str:
    return name.removeprefix(SCHEME)


def number(value: int | None) -> str:
    """Return a number with separated thousands; a dash if it is not known."""
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def rate(value: float | None, unit: str) -> str:
    """Per second, in three digits."""
    if value is None:
        return "–"
    for prefix in _UNITS:
        if value < 1000 or prefix == _UNITS[-1]:
            digits = 0 if value >= 100 or value == 0 else 1
            return f"{value:.{digits}f}{prefix or ' '}{unit}/s"
        value /= 1000
    raise AssertionError


def duration(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "–"
    for size, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if milliseconds >= size:
            value = milliseconds / size
            return f"{value:.0f} {name}" if value >= 10 else f"{value:.1f} {name}"
    return f"{milliseconds} ms"


def moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
