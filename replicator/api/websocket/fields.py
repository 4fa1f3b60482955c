"""Fields of JSON objects that clients send, read as Pulsar reads them: numbers and flags are texts too. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from replicator.api.json_in_slices import TooManyValues, check_values
from replicator.engine.admission import LOCAL

MARKS_MAX: Final = 10_000
"""Most brackets, braces, commas and colons outside the strings of one frame: 5,000 properties. Such a frame is read in
some milliseconds."""
EPOCH: Final = datetime.fromtimestamp(0, UTC)


class BadField(Exception):
    """A text that is no JSON object, or a field of it that cannot be read; the message names it."""


class BadTime(BadField):
    """A field that is no time."""


def from_base64(text: str) -> bytes:
    """Padding may be missing, as with Java's decoder. Raises :class:`ValueError`."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def read_object(text: str, sent: str = "the text sent over the WebSocket") -> Mapping[str, Any]:
    """Return the JSON object that a client sent. Raise :class:`BadField` if it is none, or has too many values.

    Errors call the text ``sent``.

    Nobody else has a turn while it is read, so a text with too many values is not read.
    """
    try:
        check_values(text, MARKS_MAX)
        read = json.loads(text)
    except TooManyValues as error:
        raise BadField(f"{sent} has too many values to be read: {error}; send fewer properties") from None
    except (ValueError, RecursionError) as error:
        raise BadField(f"{sent} must be a JSON object, and is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise BadField(f"{sent} must be a JSON object")
    return read


def text_field(fields: Mapping[str, Any], field: str) -> str | None:
    value = fields.get(field)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        raise BadField(f"{field} must be text")
    return json.dumps(value)


def texts_field(fields: Mapping[str, Any], field: str) -> dict[str, str]:
    values = fields.get(field)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise BadField(f"{field} must be an object")
    return {key: text_field(values, key) or "" for key in values}


def number_field(fields: Mapping[str, Any], field: str) -> int:
    value = fields.get(field)
    if value is None:
        return 0
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise BadField(f"{field} must be a whole number")
    return value


def null_value_field(fields: Mapping[str, Any]) -> bool:
    """Return whether ``nullValue`` is true: the message then has no value, unlike a message with an empty payload.

    Raises :class:`BadField` if it is no boolean, or if the message also has a payload.
    """
    value = fields.get("nullValue")
    if value is not None and not isinstance(value, bool):
        raise BadField("nullValue must be true or false")
    if value and fields.get("payload") is not None:
        raise BadField("a message has a payload or the null value, not both: leave out payload or nullValue")
    return bool(value)


def clusters_field(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the clusters to which a message is to be copied, in the form of its metadata; empty for all."""
    if fields.get("disableReplication") is True:
        return (LOCAL,)
    named = fields.get("replicationClusters") or []
    if not isinstance(named, list) or not all(isinstance(each, str) and each.isascii() for each in named):
        raise BadField("replicationClusters must be a list of names of clusters")
    return tuple(named)


def time_field(fields: Mapping[str, Any], field: str) -> int | None:
    text = text_field(fields, field)
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None or time < EPOCH:
        raise BadTime(
            f"{field}: {text[:80]!r} is not a time since 1970 in ISO 8601 with its offset, as 2026-01-31T12:00:00Z"
        )
    return (time - EPOCH) // timedelta(milliseconds=1)
