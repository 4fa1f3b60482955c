"""Parser of topic and subscription names. No other module parses them.

Limits: a full topic name, and a subscription name, has at most 400 bytes: they are keys of the store, or parts of keys,
and LMDB keys have at most 511 bytes. Topic names may have ASCII letters, digits and ``- _ = : .``. A part
must not be ``.`` or ``..`` nor contain ``..``, so that no name can leave the directory of a path that is made from it.
Subscription names may have any characters, as upstream, except control characters: a zero byte ends the name in keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from replicator.engine.errors import InvalidSubscriptionName, InvalidTopicName, NotPersistent, UnsupportedTopicName
from snapshots import limits

TOPIC_NAME_BYTES_MAX: Final = limits.TOPIC_NAME_BYTES_MAX
SUBSCRIPTION_NAME_BYTES_MAX: Final = limits.SUBSCRIPTION_NAME_BYTES_MAX

_PART = re.compile(r"[A-Za-z0-9\-_=:.]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_PARTITION = re.compile(r"(.+)-partition-(\d{1,6})")
_NAMESPACE_PARTS = 2
SCHEME = "persistent://"
SYSTEM_TENANT = "replicator"
SYSTEM_NAMESPACE = f"{SYSTEM_TENANT}/system"
EPOCHS_TOPIC = f"{SCHEME}{SYSTEM_NAMESPACE}/epochs"
"""Topic by which the service tells other clusters of failovers. Every link carries it; users do not see it."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """Parsed topic name ``persistent://tenant/namespace/local``."""

    tenant: str
    namespace: str
    local: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.tenant}/{self.namespace}/{self.local}"

    @property
    def full_namespace(self) -> str:
        """Name of the namespace, ``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def partition(self) -> int:
        """Index of the partition, or -1 for a topic that is not a partition: no topic has the name ``.``."""
        match = _PARTITION.fullmatch(self.local)
        return int(match[2]) if match and match[1] != "." else -1


def parse_topic(text: str) -> TopicName:
    """Parse a full name, ``tenant/namespace/local``, or a bare local name (then in ``public/default``).

    Raises :class:`InvalidTopicName`, which says which part is wrong.
    """
    if len(text.encode("utf-8", "surrogatepass")) > TOPIC_NAME_BYTES_MAX:
        raise InvalidTopicName(f"topic name {text[:60]!r}… is longer than {TOPIC_NAME_BYTES_MAX} bytes")
    if text.startswith("non-persistent://"):
        raise NotPersistent(f"topic {text!r}: non-persistent topics are not replicated; use {SCHEME}")
    parts = text.removeprefix(SCHEME).split("/")
    if len(parts) == 1 and not text.startswith(SCHEME):
        parts = ["public", "default", parts[0]]
    if len(parts) == 4 and all(parts):
        raise UnsupportedTopicName(
            f"topic {text!r} has four parts, as old names with a cluster in them; use {SCHEME}tenant/namespace/topic"
        )
    if len(parts) != 3:
        raise InvalidTopicName(f"topic {text!r}: expected {SCHEME}tenant/namespace/topic, or a bare name")
    for label, part in zip(("tenant", "namespace"), parts[:2], strict=True):
        _check_part(part, f"topic {text!r}: {label}")
    _check_part(parts[2], f"topic {text!r}: topic", UnsupportedTopicName if parts[2] else InvalidTopicName)
    name = TopicName(*parts)
    if len(str(name)) > TOPIC_NAME_BYTES_MAX:
        raise InvalidTopicName(f"topic name {text[:60]!r}… is longer than {TOPIC_NAME_BYTES_MAX} bytes")
    return name


def parse_namespace(text: str) -> str:
    """Return a namespace's name, ``tenant/namespace``, after checking it. Raise :class:`InvalidTopicName`."""
    parts = text.split("/")
    if len(parts) != _NAMESPACE_PARTS:
        raise InvalidTopicName(f"namespace {text[:60]!r}: expected tenant/namespace")
    check_tenant(parts[0])
    _check_part(parts[1], f"namespace {text[:60]!r}: namespace")
    if len(text) >= TOPIC_NAME_BYTES_MAX - len(SCHEME) - 1:
        raise InvalidTopicName(
            f"namespace {text[:60]!r}… is so long that it leaves no room for a topic's name: take a shorter one"
        )
    return text


def check_tenant(text: str) -> str:
    """Return ``text`` if it may name a tenant. Raise :class:`InvalidTopicName` otherwise."""
    _check_part(text, "tenant")
    if len(text) >= TOPIC_NAME_BYTES_MAX - len(SCHEME) - 3:
        raise InvalidTopicName(
            f"tenant {text[:60]!r}… is so long that it leaves no room for a topic's name: take a shorter one"
        )
    return text


def _check_part(part: str, what: str, error: type[InvalidTopicName] = InvalidTopicName) -> None:
    if not _PART.fullmatch(part) or ".." in part or part == ".":
        raise error(f"{what} {part[:60]!r} must be letters, digits, - _ = : . and must not hold '..'")


def check_subscription_name(text: str) -> str:
    """Return ``text`` if it may name a subscription. Raise :class:`InvalidSubscriptionName` otherwise."""
    if not text.strip() or len(text.encode("utf-8", "surrogatepass")) > SUBSCRIPTION_NAME_BYTES_MAX:
        raise InvalidSubscriptionName(
            f"subscription name {text[:60]!r}: must have 1 to {SUBSCRIPTION_NAME_BYTES_MAX} bytes, and not blanks only"
        )
    if _CONTROL.search(text):
        raise InvalidSubscriptionName(f"subscription name {text!r}: must not have control characters")
    return text
