"""Options of ``format("replicator")`` in a read, checked; docs/spark-tables.md lists them for users.

The module has the options' limits and the errors that name an option. Positions and times stay unresolved
(:class:`Bound`): their place in each topic is known when the read is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from replicator.engine.errors import InvalidPattern, InvalidTopicName
from replicator.engine.topic_name import SCHEME, parse_topic
from replicator.engine.topics.topic_patterns import TopicPattern, parse_pattern
from replicator.pipeline.data_plane import check_url
from replicator.pipeline.errors import BadOption
from snapshots.errors import InvalidPosition
from snapshots.position import Position

OPTION_NAMES: Final = (
    "url",
    "topology",
    "cluster",
    "topic",
    "pattern",
    "start",
    "end",
    "after",
    "upto",
    "mode",
    "onGap",
    "entries_per_partition",
    "bytes_per_partition",
    "entries_per_trigger",
    "bytes_per_trigger",
)
STREAM_ONLY: Final = ("entries_per_trigger", "bytes_per_trigger")
BATCH_ONLY: Final = ("end", "upto")
BYTES_PER_PARTITION: Final = 64 * 1024 * 1024
"""Bytes of stored data that one task reads by default: a few tenths of a second, so that starting it does not count."""

Mode = Literal["messages", "entries"]
OnGap = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True)
class Bound:
    """Start or end of a read: a position of the one topic, a time in every topic, or an end of the topics."""

    option: str
    text: str
    position: Position | None = None
    """Last position before the start, or last position inside the end."""
    time_ms: int | None = None
    latest: bool = False


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a read. None if nothing was given, and the default is not a plain value."""

    urls: tuple[str, ...]
    clusters: tuple[str, ...] = ()
    """Names that the workers' clusters must have, if the user gave names; in the order of ``urls``."""
    topics: tuple[str, ...] | None = None
    pattern: TopicPattern | None = None
    start: Bound | None = None
    """Start of the read; None for the first entry."""
    end: Bound | None = None
    """End of the read; None for the LAC."""
    mode: Mode = "messages"
    on_gap: OnGap = "fail"
    entries_per_partition: int | None = None
    bytes_per_partition: int = BYTES_PER_PARTITION
    entries_per_trigger: int | None = None
    bytes_per_trigger: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the user's options. Raises :class:`BadOption`, which names the option."""
        written = {name.lower(): name for name in OPTION_NAMES}
        given: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in written:
                raise BadOption(name, f"unknown; the options are {', '.join(OPTION_NAMES)}")
            given[written[name.lower()]] = value
        urls, clusters = _workers(given)
        if "topic" in given and "pattern" in given:
            raise BadOption("pattern", "give it or 'topic', not both")
        topics = _topics(given["topic"]) if "topic" in given else None
        start, end = _bound(given, "start", "after"), _bound(given, "end", "upto")
        for bound in (start, end):
            if bound is not None and bound.position is not None and not (topics and len(topics) == len(urls) == 1):
                raise BadOption(bound.option, "a position belongs to one topic of one cluster: name one of each")
        return cls(
            urls=urls,
            clusters=clusters,
            topics=topics,
            pattern=_pattern(given["pattern"]) if "pattern" in given else None,
            start=start,
            end=end,
            mode="entries" if _word(given, "mode", ("messages", "entries")) == "entries" else "messages",
            on_gap="skip" if _word(given, "onGap", ("fail", "skip")) == "skip" else "fail",
            entries_per_partition=_number(given, "entries_per_partition", _count),
            bytes_per_partition=_number(given, "bytes_per_partition", _size) or BYTES_PER_PARTITION,
            entries_per_trigger=_number(given, "entries_per_trigger", _count),
            bytes_per_trigger=_number(given, "bytes_per_trigger", _size),
        )

    def wants(self, topic: str) -> bool:
        """Return whether a topic, by its full name, is to be read."""
        if self.topics is not None:
            return topic in self.topics
        if self.pattern is not None:
            namespace, _, local = topic.removeprefix(SCHEME).rpartition("/")
            return namespace == self.pattern.namespace and self.pattern.matches(local)
        return True


def for_batch(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of ``spark.read``. Raises :class:`BadOption`, also for options that only a stream has."""
    return _without(options, STREAM_ONLY, "belongs to readStream: a batch read ends by itself")


def for_stream(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of ``spark.readStream``. Raises :class:`BadOption`, also for options that only a batch read
    has."""
    return _without(options, BATCH_ONLY, "belongs to spark.read: a stream does not end")


def _without(options: Mapping[str, str], refused: tuple[str, ...], reason: str) -> SourceOptions:
    for name in options:
        if name.lower() in refused:
            raise BadOption(name, reason)
    return SourceOptions.parse(options)


def _workers(given: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the URLs, and the names of their clusters if those are known."""
    if "url" in given and "topology" in given:
        raise BadOption("topology", "give it or 'url', not both")
    if given.get("url"):
        if "cluster" in given:
            raise BadOption("cluster", "names clusters of a 'topology'; 'url' needs no name")
        urls = tuple(check_url(url.strip()) for url in given["url"].split(","))
        if len(set(urls)) < len(urls):
            raise BadOption("url", "names a worker twice: give each once")
        return urls, ()
    if not given.get("topology"):
        raise BadOption(
            "url", "missing; give the base URL of a worker, for example http://127.0.0.1:8081, or a 'topology' file"
        )
    from replicator.topology import TopologyError, load_topology  # executors, which read no files, do not need it

    try:
        topology = load_topology(Path(given["topology"]))
        names = tuple(dict.fromkeys(name.strip() for name in given.get("cluster", "").split(",") if name.strip()))
        clusters = [topology.cluster(name) for name in names] if names else list(topology.clusters)
    except TopologyError as error:
        raise BadOption("cluster" if "there is no cluster" in str(error) else "topology", str(error)) from None
    return tuple(cluster.url for cluster in clusters), tuple(cluster.name for cluster in clusters)


def _bound(given: Mapping[str, str], name: str, alias: str) -> Bound | None:
    """Return a bound. ``start`` and ``end`` name the first and the last entry; ``after`` the one before the first."""
    if name in given and alias in given:
        raise BadOption(alias, f"give it or {name!r}, not both")
    if alias in given:
        return Bound(alias, given[alias], position=_position(alias, given[alias]))
    if name not in given:
        return None
    text = given[name].strip()
    if text.lower() in ("earliest", "latest"):
        if (text.lower() == "earliest") is (name == "start"):
            return None
        if name == "end":
            raise BadOption("end", "nothing ends at 'earliest'; give 'latest', a time or a position")
        return Bound(name, text, latest=True)
    try:
        position = Position.parse(text)
    except InvalidPosition:
        return Bound(name, text, time_ms=_time_ms(name, text))
    if name == "start":
        position = Position(position.ledger, max(position.entry - 1, -1))
    return Bound(name, text, position=position)


def _time_ms(option: str, text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            option,
            f"{text!r} is neither 'earliest' nor 'latest', a position LEDGER:ENTRY or a time like 2026-01-31T12:00:00Z",
        ) from None
    # A time without a zone is UTC, as every time of the table is. In whole numbers: a float may be a millisecond less.
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return max(-(-since // timedelta(milliseconds=1)), 0)


def _pattern(text: str) -> TopicPattern:
    try:
        return parse_pattern(text)
    except InvalidPattern as error:
        raise BadOption("pattern", str(error)) from None


def _topics(text: str) -> tuple[str, ...]:
    names = []
    for name in text.split(","):
        try:
            names.append(str(parse_topic(name.strip())))
        except InvalidTopicName as error:
            raise BadOption("topic", str(error)) from None
    return tuple(dict.fromkeys(names))


def _position(option: str, text: str) -> Position:
    try:
        return Position.parse(text.strip())
    except InvalidPosition as error:
        raise BadOption(option, str(error)) from None


def _word(given: Mapping[str, str], option: str, words: tuple[str, ...]) -> str | None:
    word = given.get(option)
    if word is not None and word.strip().lower() not in words:
        raise BadOption(option, f"{word!r} is not {' or '.join(map(repr, words))}")
    return None if word is None else word.strip().lower()


def _number(given: Mapping[str, str], option: str, parse: Callable[[str], int | None]) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    number = parse(text.strip())
    if number is None or number < 1:
        what = "a size, such as 64MiB or a number of bytes" if parse is _size else "a whole number from 1 up"
        raise BadOption(option, f"{text!r} is not {what}")
    return number


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < _DIGITS_MAX else None


def _size(text: str) -> int | None:
    if text.isdecimal():
        return _count(text)
    from replicator.topology import parse_size

    try:
        size = parse_size(text)
    except ValueError:
        return None
    return size if isinstance(size, int) else None


_DIGITS_MAX: Final = 19
"""Limit of digits: less than 2**63, which everything that is counted here fits in."""
