"""Topic policies as JSON, for the store and for admin APIs.

A missing name has its default, and null stands for None. An error names the invalid policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from replicator.engine.errors import InvalidPolicies
from replicator.engine.policies import PolicyOverrides, TopicPolicies

NUMBER_MAX: Final = 2**53 - 1
"""Largest integer that every reader of JSON keeps exactly."""

_T = TypeVar("_T")


def policies_to_json(policies: TopicPolicies) -> dict[str, Any]:
    """Return all policies as a JSON object, by name."""
    return {field.name: _to_json(getattr(policies, field.name)) for field in fields(policies)}


def policies_from_json(stored: Any) -> TopicPolicies:
    """Return the policies of a JSON object. Raise :class:`InvalidPolicies`."""
    return _record(TopicPolicies, stored, "policies")


def overrides_to_json(overrides: PolicyOverrides) -> dict[str, Any]:
    """Return the policies that are set as a JSON object."""
    return {name: _to_json(value) for name, value in overrides.values.items()}


def overrides_from_json(stored: Any) -> PolicyOverrides:
    """Return the policies that a JSON object names. Raise :class:`InvalidPolicies`."""
    policies = policies_from_json(stored)
    return PolicyOverrides({name: getattr(policies, name) for name in stored})


def encode_overrides(overrides: PolicyOverrides) -> bytes:
    """Return the topic's own policies in the form of the store."""
    return json.dumps(overrides_to_json(overrides), separators=(",", ":")).encode()


def decode_overrides(stored: bytes) -> PolicyOverrides:
    """Read what :func:`encode_overrides` wrote."""
    return overrides_from_json(json.loads(stored))


def _to_json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: _to_json(getattr(value, field.name)) for field in fields(value)}
    return value


def _record(kind: type[_T], stored: Any, name: str) -> _T:
    if not isinstance(stored, Mapping):
        raise InvalidPolicies(f"{name} must be a JSON object, not {stored!r}")
    hints = get_type_hints(kind)
    unknown = [key for key in stored if key not in hints]
    if unknown:
        raise InvalidPolicies(f"{name} has no field {unknown[0]!r}; its fields are {', '.join(hints)}")
    return kind(**{key: _value(hints[key], value, f"{name}.{key}") for key, value in stored.items()})


def _value(kind: Any, stored: Any, name: str) -> Any:
    if get_origin(kind) is UnionType:  # a kind or None
        if stored is None:
            return None
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    if is_dataclass(kind):
        return _record(kind, stored, name)  # type: ignore[arg-type]
    if issubclass(kind, Enum):
        try:
            return kind(stored)
        except ValueError:
            raise InvalidPolicies(f"{name} must be one of {[each.value for each in kind]}, not {stored!r}") from None
    if kind is bool:
        if isinstance(stored, bool):
            return stored
        raise InvalidPolicies(f"{name} must be true or false, not {stored!r}")
    if type(stored) is int and 0 <= stored <= NUMBER_MAX:
        return stored
    raise InvalidPolicies(f"{name} must be a whole number from 0 to {NUMBER_MAX}, not {stored!r}")
