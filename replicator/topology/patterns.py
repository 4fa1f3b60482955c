"""Patterns of topics, as links and clusters beside Apache Pulsar have them: what makes one valid, and what it selects.

A pattern stands for the whole of ``persistent://tenant/namespace/local``, ``tenant/namespace/local`` or
``tenant/namespace``. A partition is looked at by the name of its partitioned topic, so that all partitions go the same
way.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final

import re2
from pydantic import AfterValidator, BeforeValidator

from replicator.engine.errors import EngineError
from replicator.engine.topic_name import SCHEME, parse_topic
from replicator.engine.topics.partitions import base_name
from replicator.engine.topics.topic_patterns import PATTERN_CHARACTERS_MAX, PATTERN_MEMORY_BYTES_MAX

DEFAULT_NAMESPACE: Final = "public/default/"
"""Tenant and namespace that commands leave out of topic names, on input and output."""
PATTERNS_MAX: Final = 100
"""Patterns of one link, in ``topics`` and in ``exclude``. Topics that need more belong into a namespace."""


def selects(topics: tuple[str, ...], exclude: tuple[str, ...], topic: str) -> bool:
    """Return whether patterns let the topic of that full name through: it matches one of ``topics``, if there are any,
    and none of ``exclude``.

    Raises nothing: brokers have topics with names that no topic may have here.
    """
    if not topics and not exclude:
        return True
    whole = _whole(topic)
    texts = (whole, whole.removeprefix(SCHEME), whole.removeprefix(SCHEME).rpartition("/")[0])
    if topics and not any_matches(topics, texts):
        return False
    return not any_matches(exclude, texts)


def is_named(patterns: tuple[str, ...], topic: str) -> bool:
    """Return whether a pattern that a user typed matches ``topic``, a full name. Without patterns, return True.

    Patterns are those of a link's ``topics``. They also match a partition, and a name without its scheme or its default
    namespace.
    """
    if not patterns:
        return True
    texts = {topic.removeprefix(SCHEME).rpartition("/")[0]}
    for name in {topic, _whole(topic)}:
        short = name.removeprefix(SCHEME)
        texts |= {name, short, short.removeprefix(DEFAULT_NAMESPACE)}
    return any_matches(patterns, tuple(texts))


def _whole(topic: str) -> str:
    """Return the partitioned topic's name for a partition, and every other name as it is."""
    try:
        return base_name(topic) if parse_topic(topic).partition >= 0 else topic
    except EngineError:  # a name that no topic may have here
        return topic


def any_matches(patterns: tuple[str, ...], texts: tuple[str, ...]) -> bool:
    """Return whether one of the patterns matches the whole of one of the texts."""
    return any(_compiled(pattern).fullmatch(text) is not None for pattern in patterns for text in texts)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    return re2.compile(pattern, options)


def check_pattern(text: str) -> str:
    """Return the pattern if it is valid; raise ValueError if not."""
    if not text or len(text) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"a pattern has 1 to {PATTERN_CHARACTERS_MAX} characters, this one has {len(text)}")
    try:
        _compiled(text)
    except re2.error as error:
        said = error.args[0] if error.args else b""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise ValueError(
            f"{text[:80]!r} is not a regex that RE2 knows ({reason}); it stands for a whole tenant/namespace or "
            "tenant/namespace/topic, as public/default/orders-.*"
        ) from None
    return text


def _check_patterns(value: object) -> object:
    if not isinstance(value, list):
        raise ValueError(  # noqa: TRY004 - for pydantic
            "must be a list of patterns, such as [public/default/orders-.*]"
        )
    if len(value) > PATTERNS_MAX:
        raise ValueError(
            f"the list has {len(value)} patterns, and the limit is {PATTERNS_MAX}; join some of them with |"
        )
    return tuple(value)


def parse_patterns(value: object) -> tuple[str, ...]:
    """Read patterns of topics in the form of a link's ``topics``, from outside a topology file; raise ValueError, which
    names the wrong pattern.
    """
    texts = _check_patterns(value)
    assert isinstance(texts, tuple)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a list of patterns, and one in it is not text: write each as text")
    return tuple(map(check_pattern, texts))


Patterns = Annotated[tuple[Annotated[str, AfterValidator(check_pattern)], ...], BeforeValidator(_check_patterns)]
