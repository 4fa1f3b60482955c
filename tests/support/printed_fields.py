"""Check that JSON is what a type says. It finds undocumented or missing fields and values of other types."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict


def problems(value: Any, kinds: tuple[Any, ...], at: str = "$") -> list[str]:
    """Return a line for each difference between a value and the type of ``kinds`` that fits it best."""
    return min((list(_wrong(value, kind, at)) for kind in kinds), key=len)


def _wrong(value: Any, kind: Any, at: str) -> Iterator[str]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Annotated, NotRequired):
        yield from _wrong(value, parts[0], at)
    elif origin in (Union, UnionType):
        yield from problems(value, parts, at)
    elif origin is Literal:
        if value not in parts:
            yield f"{at} is {value!r}, and not one of {parts}"
    elif is_typeddict(kind):
        yield from _wrong_fields(value, kind, at)
    elif origin is list:
        yield from _wrong_class(value, list, at)
        for number, each in enumerate(value if isinstance(value, list) else ()):
            yield from _wrong(each, parts[0], f"{at}[{number}]")
    elif origin is dict:
        yield from _wrong_class(value, dict, at)
        for name, each in value.items() if isinstance(value, dict) else ():
            yield from _wrong(each, parts[1], f"{at}.{name}")
    elif kind is float:
        yield from () if type(value) in (int, float) else _wrong_class(value, float, at)
    elif kind is not Any:
        yield from _wrong_class(value, kind, at)


def _wrong_fields(value: Any, kind: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield from _wrong_class(value, dict, at)
        return
    fields = get_type_hints(kind, include_extras=True)
    needed = {name for name, annotation in fields.items() if get_origin(annotation) is not NotRequired}
    yield from (f"{at}.{name} is not documented in {kind.__name__}" for name in value.keys() - fields.keys())
    yield from (f"{at}.{name} is in {kind.__name__}, and is not printed" for name in needed - value.keys())
    for name in value.keys() & fields.keys():
        yield from _wrong(value[name], fields[name], f"{at}.{name}")


def _wrong_class(value: Any, kind: type, at: str) -> Iterator[str]:
    if type(value) is not (NoneType if kind is None else kind):
        yield f"{at} is {value!r:.80}, and not {kind.__name__}"
