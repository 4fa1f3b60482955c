"""Checks of the arguments that users give. Each error names the argument, its value, and what it must be.

Arguments of the official client that are not built yet are accepted only with the value that means "off". Any other
value is refused by name, because a setting that is ignored is a lost message later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

from replicator.client.errors import InvalidConfiguration, InvalidTopicName, OperationNotSupported, from_engine
from replicator.engine.errors import EngineError
from replicator.engine.topic_name import check_subscription_name, parse_topic
from replicator.engine.topics.topic_patterns import parse_pattern

PROPERTIES_MAX: Final = 1_000
"""Limit of the number of properties of one producer, consumer, subscription or message (invariant 11)."""

CLIENT_OFF: Final[Mapping[str, object]] = {
    "io_threads": 1,
    "message_listener_threads": 1,
    "concurrent_lookup_requests": 50_000,
    "log_conf_file_path": None,
    "stats_interval_in_seconds": 600,
    "use_tls": False,
    "logger": None,
    "listener_name": None,
    "tls_private_key_file_path": None,
    "tls_certificate_file_path": None,
}
CONSUMER_OFF: Final[Mapping[str, object]] = {
    "broker_consumer_stats_cache_time_ms": 30_000,
}
READER_OFF: Final[Mapping[str, object]] = {"subscription_role_prefix": None}


def full_topic_name(topic: object) -> str:
    """Return the canonical name of ``topic``. Raises :class:`InvalidTopicName`."""
    if not isinstance(topic, str):
        raise InvalidTopicName(f"topic is {topic!r}; it must be the topic's name, a str")
    try:
        return str(parse_topic(topic))
    except EngineError as error:
        raise from_engine(error) from None


def topic_pattern(topic: object, is_pattern: object) -> str | None:
    """Return the text of a topic pattern, or None if ``topic`` is not a pattern. Raises :class:`InvalidConfiguration`.

    Of the flags of a compiled regex, IGNORECASE is kept and VERBOSE is refused, because it changes what the text means.
    The other flags do not matter for names, which have no line breaks.
    """
    check_flag("is_pattern_topic", is_pattern)
    if not isinstance(topic, re.Pattern):
        if not is_pattern:
            return None
        if not isinstance(topic, str):
            raise InvalidConfiguration(
                f"topic is {topic!r:.80}; with is_pattern_topic=True it must be one pattern: a str, or a compiled "
                "regular expression"
            )
        text, ignore_case = topic, False
    elif isinstance(topic.pattern, str) and not topic.flags & re.VERBOSE:
        text, ignore_case = topic.pattern, bool(topic.flags & re.IGNORECASE)
    else:
        raise InvalidConfiguration(
            f"topic is {topic!r:.80}; a compiled pattern must be of text, not of bytes, and without the flag re.VERBOSE"
        )
    try:
        regex = parse_pattern(text).regex
        if ignore_case:
            text = f"{text.removesuffix(regex)}(?i){regex}"
            parse_pattern(text)
    except EngineError as error:
        raise from_engine(error) from None
    return text


def refuse_unsupported(method: str, given: Mapping[str, object], off: Mapping[str, object]) -> None:
    """Refuse the arguments of ``given`` unless they have the value of ``off``; unknown names are a TypeError."""
    for name, value in given.items():
        if name not in off:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        allowed = off[name]
        if value is not None and not (type(value) is type(allowed) and value == allowed):
            raise OperationNotSupported(f"{method}: {name}={value!r} is not supported yet; leave it out")


def check_range(argument: str, value: object, low: int, high: int) -> None:
    """Raise :class:`InvalidConfiguration` unless ``value`` is an int within ``low..high``."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidConfiguration(f"{argument} is {value!r}; it must be a whole number from {low} to {high}")


def check_seconds(argument: str, value: object, low: float, high: float) -> None:
    """Raise :class:`InvalidConfiguration` unless ``value`` is a number of seconds within ``low..high``."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidConfiguration(f"{argument} is {value!r}; it must be a number of seconds from {low:g} to {high:g}")


def check_flag(argument: str, value: object) -> None:
    """Raise :class:`InvalidConfiguration` unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise InvalidConfiguration(f"{argument} is {value!r}; it must be True or False")


def check_callable(argument: str, value: object) -> None:
    """Raise :class:`InvalidConfiguration` unless ``value`` is None or can be called."""
    if value is not None and not callable(value):
        raise InvalidConfiguration(f"{argument} is {value!r:.80}; it must be a function")


def check_methods(argument: str, value: object, *methods: str) -> None:
    """Raise :class:`InvalidConfiguration` unless ``value`` is None or has all of ``methods``."""
    for method in methods:
        if value is not None and not callable(getattr(value, method, None)):
            raise InvalidConfiguration(f"{argument} has no method {method}(); give an object that has it")


def check_subscription(name: object) -> None:
    """Raise :class:`InvalidConfiguration` unless ``name`` can be a subscription's."""
    if not isinstance(name, str):
        raise InvalidConfiguration(f"the subscription name is {name!r:.80}; it must be a str")
    try:
        check_subscription_name(name)
    except EngineError as error:
        raise from_engine(error) from None


def check_enum(argument: str, value: object, kind: type[Enum]) -> None:
    """Raise :class:`InvalidConfiguration` unless ``value`` is a member of ``kind``."""
    if not isinstance(value, kind):
        raise InvalidConfiguration(f"{argument} is {value!r}; it must be a member of {kind.__name__}")


def check_instance(argument: str, value: object, kind: type) -> None:
    """Raise :class:`InvalidConfiguration` unless ``value`` is None or a ``kind``."""
    if value is not None and not isinstance(value, kind):
        raise InvalidConfiguration(f"{argument} is {value!r:.80}; it must be a {kind.__name__}")


def check_name(argument: str, value: object) -> None:
    """Raise :class:`InvalidConfiguration` unless ``value`` is a short, non-empty text."""
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise InvalidConfiguration(f"{argument} is {value!r:.80}; it must be text of 1 to 200 characters")


def check_properties(properties: object) -> None:
    """Raise :class:`InvalidConfiguration` unless every property is text to text."""
    if not isinstance(properties, Mapping) or len(properties) > PROPERTIES_MAX:
        raise InvalidConfiguration(
            f"properties must be a dict of at most {PROPERTIES_MAX} entries, whose keys and values are text"
        )
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidConfiguration(f"property {key!r:.80} is {value!r:.80}; both must be text")


def check_schema(schema: object) -> None:
    """Raise :class:`InvalidConfiguration` unless ``schema`` is None or a schema."""
    if schema is not None and not (hasattr(schema, "encode") and hasattr(schema, "decode")):
        raise InvalidConfiguration(
            f"schema is {schema!r:.80}; it must be a schema, as JsonSchema(TYPE) or StringSchema()"
        )
