"""The source's end of a link's connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
import uvloop

from replicator.engine.log.arrow import encode_append
from replicator.engine.log.link_frame import pack_frame
from replicator.links.frame_streams import UpgradedStream


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_frame_for_a_connection_that_is_closed_fails_as_connections_do(run: object) -> None:
    """A link takes any other error for a fault of its own, and logs a traceback."""

    async def main() -> None:
        async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                await reader.read()
            writer.close()

        server = await asyncio.start_server(held, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            stream = UpgradedStream(reader, writer, asyncio.Event())
            stream.close()
            with suppress(OSError):
                await writer.wait_closed()
            with pytest.raises(OSError):
                await stream.send(pack_frame(encode_append(()), "none"))

    run(main())  # type: ignore[operator]
