"""Block a loop while nobody reads standard error and its pipe has few free bytes. Then print the turns.

Arguments: the free bytes, for how many seconds the loop stands still, and after how many it is ended (0: never).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time

from replicator.worker import watchdog


def fill(free: int) -> None:
    os.set_blocking(2, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(2, b"x" * 4096)
    os.set_blocking(2, True)
    os.read(int(os.environ["READ_END"]), free)


async def main() -> None:
    watched = watchdog.Watchdog(of_process=True, end_after=int(sys.argv[3]))
    watched.start()
    watched.arm(True)
    await asyncio.sleep(0)
    fill(int(sys.argv[1]))
    time.sleep(float(sys.argv[2]))  # noqa: ASYNC251 - the loop is to stand still
    for turn in range(5):
        await asyncio.sleep(watchdog.BEAT_SECONDS)
        print("turn", turn, flush=True)
    watched.stop()


watchdog.STACKS_SECONDS = 1.0  # type: ignore[misc]
asyncio.run(main())
os._exit(0)
