"""A link of a topology: which way it goes, which topics it carries, and how.

Owns the fields of an item of ``links``, what makes a single value of them valid, and their form in the file. Which
origins a link carries follows from all links together: :mod:`replicator.topology.paths`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import AfterValidator

from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.topology.fields import ENGINES
from replicator.topology.patterns import Patterns, selects
from replicator.topology.scalars import (
    DURATION_KIND,
    SIZE_KIND,
    Flag,
    choice,
    format_duration,
    format_size,
    limit,
    parse_duration,
    parse_size,
)
from replicator.topology.sections import Section
from snapshots import limits

LINK_NAME_CHARS_MAX: Final = limits.LINK_NAME_CHARS_MAX
SQL_CHARS_MAX: Final = 10_000
"""Characters of one SQL expression. A longer one belongs into a job of its own."""
RATE_BYTES_MIN: Final = 1024
"""The lowest rate per second. A full frame of 4 MiB would take over an hour below it."""
COMPRESSIONS: Final = ("none", "lz4", "zstd")
GAP_POLICIES: Final = ("stop", "keep-both", "skip-and-record", "copy-anew")
HOLD_POLICIES: Final = ("hold", "release", "refuse-producers")

_SQL_TEXTS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LINK_NAME_CHARS_MAX}}}")


@dataclass(frozen=True, slots=True)
class Link:
    """A directed copy relation."""

    source: str
    destination: str
    name: str = ""
    """Tells apart several links of one pair."""
    forward: bool = False
    """Whether it also carries what reached the source from elsewhere."""
    topics: tuple[str, ...] = ()
    """Patterns of the topics that it carries; empty for all. See :meth:`carries`."""
    exclude: tuple[str, ...] = ()
    """Patterns of the topics that it does not carry, whatever ``topics`` says."""
    rate_bytes: int | None = None
    """Per second at most; None for no limit."""
    compression: str = "none"
    """One of :data:`COMPRESSIONS`."""
    on_gap: str = "stop"
    """Action of the link if its source has trimmed messages before they were copied: one of :data:`GAP_POLICIES`."""
    hold_bytes: int | None = None
    """How much of a topic's log the link may keep from retention; None for no limit."""
    hold_seconds: int | None = None
    """How old the oldest message may be that the link keeps from retention; None for no limit."""
    on_hold_exceeded: str = "hold"
    """Action of the link past these limits: one of :data:`HOLD_POLICIES`."""
    engine: str = ""
    """The engine that copies: one of :data:`ENGINES`. Empty means ``pipeline.engine``."""
    where: str = ""
    """The SQL condition that a message meets if it is copied; empty for all. See docs/links.md."""
    masks: tuple[tuple[str, str], ...] = ()
    """Payload, key or properties that the link copies through an SQL expression, each with its expression."""

    @property
    def select(self) -> dict[str, str]:
        """Return ``masks`` by field, as in the file."""
        return dict(self.masks)

    @property
    def reverse(self) -> Link:
        """Return the link with its source and destination exchanged."""
        return replace(self, source=self.destination, destination=self.source)

    @property
    def key(self) -> str:
        """Return the link's key, ``A>B`` or ``A>B#name``. It stays the same as long as the link is in the file,
        whatever its settings.
        """
        return f"{self.source}>{self.destination}{'#' if self.name else ''}{self.name}"

    def carries(self, topic: str) -> bool:
        """Return whether the link's patterns let a topic of that full name through.

        A pattern stands for the whole of ``persistent://tenant/namespace/local``, ``tenant/namespace/local`` or
        ``tenant/namespace``. A partition is looked at by the name of its partitioned topic, so that all partitions go
        the same way. The topic in which the service tells of failovers is carried by every link.
        """
        if topic == EPOCHS_TOPIC:
            return True
        return selects(self.topics, self.exclude, topic)

    def as_written(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, in the form of the file, without the two ends."""
        hold = {
            "size": None if self.hold_bytes is None else format_size(self.hold_bytes),
            "age": None if self.hold_seconds is None else format_duration(self.hold_seconds),
            "policy": None if self.on_hold_exceeded == "hold" else self.on_hold_exceeded,
        }
        written = {
            "name": self.name,
            "forward": self.forward,
            "topics": list(self.topics),
            "exclude": list(self.exclude),
            "rate": None if self.rate_bytes is None else format_size(self.rate_bytes),
            "compression": None if self.compression == "none" else self.compression,
            "on_gap": None if self.on_gap == "stop" else self.on_gap,
            "hold": {key: value for key, value in hold.items() if value is not None},
            "engine": self.engine,
            "where": self.where,
            "select": self.select,
        }
        return {key: value for key, value in written.items() if value}

    def __str__(self) -> str:
        return f"{self.source} → {self.destination}{f' ({self.name})' if self.name else ''}"


def _check_name(text: str) -> str:
    if text and not _NAME.fullmatch(text):
        raise ValueError(f"a link's name has 1 to {LINK_NAME_CHARS_MAX} ASCII letters, digits, - or _")
    return text


def _check_rate(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value < RATE_BYTES_MIN:
        raise ValueError(
            f"{value} bytes a second is too little; the least is {RATE_BYTES_MIN}, for the `rate` of a link"
        )
    return value


_Size = Annotated[int | None, limit(SIZE_KIND, parse_size)]


class HoldSettings(Section):
    """How much of a log a link may keep from retention while its destination does not have it."""

    size: _Size = None
    age: Annotated[int | None, limit(DURATION_KIND, parse_duration)] = None
    policy: Annotated[str, choice(HOLD_POLICIES)] = "hold"


def _check_sql(text: str) -> str:
    """Check an SQL expression as far as possible without Spark. Spark checks the rest when the link starts."""
    if not text.strip() or len(text) > SQL_CHARS_MAX:
        raise ValueError(
            f"must be an SQL expression of 1 to {SQL_CHARS_MAX} characters, in `where` and `select` of a link"
        )
    if ";" in _SQL_TEXTS.sub("", text):
        raise ValueError("must be one SQL expression; take the semicolon out of the link's `where` or `select`")
    return text.strip()


_Sql = Annotated[str, AfterValidator(_check_sql)]


class SelectSettings(Section):
    """SQL expressions through which the parts of a message are copied."""

    payload: _Sql | None = None
    key: _Sql | None = None
    properties: _Sql | None = None


class LinkSettings(Section):
    """Fields of an item of ``links`` besides its two ends."""

    name: Annotated[str, AfterValidator(_check_name)] = ""
    forward: Flag = False
    topics: Patterns = ()
    exclude: Patterns = ()
    rate: Annotated[int | None, AfterValidator(_check_rate), limit(SIZE_KIND, parse_size)] = None
    compression: Annotated[str, choice(COMPRESSIONS)] = "none"
    on_gap: Annotated[str, choice(GAP_POLICIES)] = "stop"
    hold: HoldSettings = HoldSettings()
    engine: Annotated[str, choice(ENGINES)] = ""
    where: _Sql | None = None
    select: SelectSettings = SelectSettings()

    def link(self, source: str, destination: str) -> Link:
        """Return a link with these settings from one cluster to another."""
        return Link(
            source,
            destination,
            name=self.name,
            forward=self.forward,
            topics=self.topics,
            exclude=self.exclude,
            rate_bytes=self.rate,
            compression=self.compression,
            on_gap=self.on_gap,
            hold_bytes=self.hold.size,
            hold_seconds=self.hold.age,
            on_hold_exceeded=self.hold.policy,
            engine=self.engine,
            where=self.where or "",
            masks=tuple((field, text) for field, text in self.select.model_dump().items() if text is not None),
        )


def written_links(links: tuple[Link, ...]) -> list[dict[str, Any]]:
    """Return the links in the form of the file; a link and its reverse that follow each other are one item."""
    items: list[dict[str, Any]] = []
    index = 0
    while index < len(links):
        link = links[index]
        both = index + 1 < len(links) and links[index + 1] == link.reverse
        ends: Mapping[str, Any] = (
            {"between": [link.source, link.destination]} if both else {"from": link.source, "to": link.destination}
        )
        items.append({**ends, **link.as_written()})
        index += 2 if both else 1
    return items
