"""Starting programs side by side, each in a thread as it blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def started_together(*starts: Callable[[], None]) -> None:
    """Run each in a thread. Returns, or raises what one raised, when all have ended.

    A thread cannot be stopped: whoever ends the programs while one of them still starts would leave it behind.
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
