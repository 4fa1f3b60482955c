"""Tests that are coroutines: each runs on an event loop of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

_P = ParamSpec("_P")


def asynchronous(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Run the coroutine function as a test."""

    @functools.wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
