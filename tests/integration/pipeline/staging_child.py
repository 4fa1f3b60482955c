"""The worker that the crash test of staging kills: serves a staging area, and says each step of a commit.

Usage: ``python staging_child.py DIRECTORY PORT [hold]``. Prints ``ready PORT``, then ``step`` after each that is
durable; with ``hold`` it does nothing after the first.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_support import DataPlaneServer

from replicator.api.staging import add_staging
from replicator.engine.engine import Engine
from replicator.engine.log.writer import Writer
from replicator.engine.staging.service import StagingService

publish_staged = Writer.publish_staged


async def told(self: Writer, parts: Sequence[Any], writes: Sequence[Any]) -> Any:
    places = await publish_staged(self, parts, writes)
    os.write(1, b"step\n")
    if "hold" in sys.argv:
        await asyncio.Event().wait()
    return places


async def main(directory: Path, port: int) -> None:
    Writer.publish_staged = told  # type: ignore[method-assign]
    engine = await Engine.open(directory, cluster="us-east")
    staging = StagingService(engine)
    server = DataPlaneServer(engine)
    server.port = port
    server.also = lambda app: add_staging(app, staging)
    await server.start()
    staging.start()
    os.write(1, f"ready {server.port}\n".encode())
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
