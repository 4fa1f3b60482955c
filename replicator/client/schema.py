"""Schemas: they turn typed values into payloads, and payloads back into values.

Names and payloads (UTF-8 text, JSON objects) are those of ``pulsar.schema``, so that official clients can read them. A
cluster does not keep schemas: each side brings its own. A payload that does not fit the reader's schema raises a named
error when its value is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any, Protocol, get_type_hints

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticSerializationError

from replicator.client.errors import InvalidConfiguration, SchemaError


class Schema(Protocol):
    """Interface of a schema. Both methods raise :class:`SchemaError`, which names the field."""

    def encode(self, obj: Any) -> bytes:
        """Return the payload for a value."""

    def decode(self, data: bytes) -> Any:
        """Return the value of a payload."""


class BytesSchema:
    """Schema of plain bytes, which are not changed."""

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, bytes):
            raise SchemaError(f"BytesSchema: the value is {type(obj).__name__}; it must be bytes")
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


class StringSchema:
    """Schema of text in UTF-8."""

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, str):
            raise SchemaError(f"StringSchema: the value is {type(obj).__name__}; it must be str")
        try:
            return obj.encode()
        except UnicodeEncodeError as error:
            raise SchemaError(f"StringSchema: the value is not text that UTF-8 can hold: {error.reason}") from None

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise SchemaError(
                f"the payload is not UTF-8 at byte {error.start}: StringSchema cannot read it; read the topic with "
                "its producers' schema"
            ) from None


class JsonSchema:
    """Schema of JSON objects of one class: a dataclass, a pydantic model, or a class with annotated attributes.

    A class of the last kind is made from keyword arguments, one for each annotated attribute. Values are checked in
    both directions. Raises :class:`InvalidConfiguration` for a class that cannot be described.
    """

    def __init__(self, record_cls: type) -> None:
        self._record_cls = record_cls
        self._adapter: TypeAdapter[Any]
        self._make: Callable[[Any], Any] = _as_it_is
        self._read: Callable[[Any], Any] = _as_it_is
        try:
            if is_dataclass(record_cls):
                self._adapter = TypeAdapter(record_cls)
                self._read = asdict  # as plain values, so that they are checked: instances are taken as they are
            elif isinstance(record_cls, type) and issubclass(record_cls, BaseModel):
                self._adapter = TypeAdapter(record_cls)
                self._read = _fields_of_model
            else:
                self._describe_record(record_cls)
        except (PydanticUserError, NameError, TypeError) as error:
            raise InvalidConfiguration(f"JsonSchema: {record_cls!r} cannot be described: {error}") from None

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, self._record_cls):
            raise SchemaError(f"JsonSchema: the value is {type(obj).__name__}; it must be {self._record_cls.__name__}")
        try:
            return self._adapter.dump_json(self._adapter.validate_python(self._read(obj)))
        except ValidationError as error:
            raise SchemaError(f"the value does not fit {self._record_cls.__name__}: {_faults(error)}") from None
        except PydanticSerializationError as error:
            raise SchemaError(
                f"the value of type {self._record_cls.__name__} cannot be written as JSON: {error}"
            ) from None

    def decode(self, data: bytes) -> Any:
        try:
            return self._make(self._adapter.validate_json(data))
        except ValidationError as error:
            raise SchemaError(
                f"the payload is not JSON that fits {self._record_cls.__name__}: {_faults(error)}"
            ) from None

    def _describe_record(self, record_cls: type) -> None:
        hints = get_type_hints(record_cls)
        if not hints:
            raise TypeError("the class has no annotated attributes; write them as NAME: TYPE")
        fields: dict[str, Any] = {
            name: (hint, getattr(record_cls, name)) if hasattr(record_cls, name) else (hint, ...)
            for name, hint in hints.items()
        }
        model = create_model(record_cls.__name__, **fields)
        self._adapter = TypeAdapter(model)
        self._read = lambda obj: {name: getattr(obj, name) for name in hints if hasattr(obj, name)}
        self._make = lambda read: record_cls(**{name: getattr(read, name) for name in hints})


def _as_it_is(value: Any) -> Any:
    return value


def _fields_of_model(model: BaseModel) -> Any:
    """Return a model as plain values, which are then checked again: assignments to a model are not checked."""
    return model.model_dump(warnings=False)


def _faults(error: ValidationError) -> str:
    """Return a text that lists each wrong field by its path, with its fault."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"field {'.'.join(map(str, fault['loc'])) or '(the whole)'}: {fault['msg']}" for fault in faults)
