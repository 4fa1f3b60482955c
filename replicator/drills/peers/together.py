"""Starting programs side by side, each in a thread as it blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def started_together(*starts: Callable[[], None]) -> None:
    """Run each function in a thread. When all have ended, return, or raise the error of one.

    A thread cannot be stopped: ending the programs while one of them still starts would leave that one behind.
    """
    starting = asyncio.gather(*(asyncio.to_thread(start) for start in starts), return_exceptions=True)
    try:
        ended = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await starting
        raise
    for error in ended:
        if isinstance(error, BaseException):
            raise error
