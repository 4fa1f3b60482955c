"""The frames of the topic watch socket, ``/client/v1/topics``, and their coding. Sans-IO.

Each is WebSocket text, a JSON object with a ``type``; ``id`` is the watcher's, chosen by the client. A hash is that of
:mod:`replicator.engine.topics.topic_list`. Frames of a client:

========  =========================================================================================================
watch     ``id, pattern, hash``: watch from a list with that hash on (null: from nothing); answered as ``list``
list      ``id, hash``: poll; answered by ``topics`` or ``error``. One that is sent before the answer to the last one
          is answered together with it
unwatch   ``id``; of a watch that was refused it does nothing
========  =========================================================================================================

Frames of a worker:

========  =========================================================================================================
topics    ``id, hash, names``: all topics that match; null if they have the hash that was sent
changed   ``id, added, deleted, hash``: topics came and went since; the hash is that of the list after it. With
          neither, more has changed than fits: the client is to poll
error     ``id, error, message``: the watch or the poll was refused; with a null id the connection is closed next. A
          watch that is refused is none
========  =========================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from replicator.client.wire.frame_fields import Fields, text_frame
from replicator.client.wire.frames import InvalidFrame, Refusal
from replicator.engine.topic_name import TOPIC_NAME_BYTES_MAX
from replicator.engine.topics.topic_list import TopicListChange
from replicator.engine.topics.topic_patterns import PATTERN_CHARACTERS_MAX
from replicator.engine.topics.topic_watch import CHANGED_NAMES_MAX, LISTED_NAMES_MAX

WATCH_ID_MAX: Final = 2**31 - 1
HASH_CHARACTERS: Final = 8
REQUEST_BYTES_MAX: Final = 16 * 1024
"""A pattern of as many characters as are allowed, each escaped in JSON, fits."""


@dataclass(frozen=True, slots=True)
class Watch:
    watch_id: int
    pattern: str
    known_hash: str | None


@dataclass(frozen=True, slots=True)
class ListTopics:
    watch_id: int
    known_hash: str


@dataclass(frozen=True, slots=True)
class Unwatch:
    watch_id: int


@dataclass(frozen=True, slots=True)
class Topics:
    watch_id: int
    hash: str
    names: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    watch_id: int
    change: TopicListChange
    hash: str


Frame = TypeVar("Frame")

TopicRequest = Watch | ListTopics | Unwatch
TopicReply = Topics | TopicsChanged | Refusal


def encode_topic_request(request: TopicRequest) -> str:
    """The frame of a request."""
    match request:
        case Watch(watch_id, pattern, known_hash):
            return text_frame({"type": "watch", "id": watch_id, "pattern": pattern, "hash": known_hash})
        case ListTopics(watch_id, known_hash):
            return text_frame({"type": "list", "id": watch_id, "hash": known_hash})
        case Unwatch(watch_id):
            return text_frame({"type": "unwatch", "id": watch_id})


def encode_topic_reply(reply: TopicReply) -> str:
    """The frame of a reply."""
    match reply:
        case Topics(watch_id, names_hash, names):
            return text_frame({"type": "topics", "id": watch_id, "hash": names_hash, "names": names})
        case TopicsChanged(watch_id, change, names_hash):
            return text_frame(
                {
                    "type": "changed",
                    "id": watch_id,
                    "added": change.added,
                    "deleted": change.deleted,
                    "hash": names_hash,
                }
            )
        case Refusal(watch_id, code, message):
            return text_frame({"type": "error", "id": watch_id, "error": code, "message": message})


def decode_topic_request(frame: str | bytes) -> TopicRequest:
    """Read a client's frame; raises :class:`InvalidFrame`."""
    return _decode(frame, _REQUESTS)


def decode_topic_reply(frame: str | bytes) -> TopicReply:
    """Read a worker's frame; raises :class:`InvalidFrame`."""
    return _decode(frame, _REPLIES)


def _decode(frame: str | bytes, decoders: dict[str, Callable[[Fields], Frame]]) -> Frame:
    if isinstance(frame, bytes):
        raise InvalidFrame("frames about topics are text")
    fields = Fields.parse(frame)
    decode = decoders.get(fields.type)
    if decode is None:
        raise InvalidFrame(f"unknown frame type {fields.type!r}; expected one of {', '.join(decoders)}")
    return decode(fields)


def _watch_id(fields: Fields) -> int:
    return fields.number("id", 0, WATCH_ID_MAX)


def _hash(fields: Fields) -> str:
    return fields.text("hash", HASH_CHARACTERS, length_min=HASH_CHARACTERS)


def _names(fields: Fields, name: str, count_max: int) -> tuple[str, ...]:
    names = fields.array(name, count_max)
    if not all(isinstance(each, str) and 0 < len(each) <= TOPIC_NAME_BYTES_MAX and each.isascii() for each in names):
        raise InvalidFrame(f"{name} must be texts of 1 to {TOPIC_NAME_BYTES_MAX} ASCII characters")
    return tuple(names)


_REQUESTS: Final[dict[str, Callable[[Fields], TopicRequest]]] = {
    # A pattern that is too long is refused by the engine, with a reason: so one is read that is twice as long.
    "watch": lambda fields: Watch(
        _watch_id(fields),
        fields.text("pattern", 2 * PATTERN_CHARACTERS_MAX),
        None if fields.missing("hash") else _hash(fields),
    ),
    "list": lambda fields: ListTopics(_watch_id(fields), _hash(fields)),
    "unwatch": lambda fields: Unwatch(_watch_id(fields)),
}

_REPLIES: Final[dict[str, Callable[[Fields], TopicReply]]] = {
    "topics": lambda fields: Topics(
        _watch_id(fields),
        _hash(fields),
        None if fields.missing("names") else _names(fields, "names", LISTED_NAMES_MAX),
    ),
    "changed": lambda fields: TopicsChanged(
        _watch_id(fields),
        TopicListChange(_names(fields, "added", CHANGED_NAMES_MAX), _names(fields, "deleted", CHANGED_NAMES_MAX)),
        _hash(fields),
    ),
    "error": lambda fields: Refusal(
        None if fields.missing("id") else _watch_id(fields),
        fields.text("error", 200),
        fields.text("message", 100_000),
    ),
}
