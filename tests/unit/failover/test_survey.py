"""Clusters that a switch waits for, and the limit of the wait."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from replicator.failover import survey
from replicator.failover.epochs import FIRST, as_json
from replicator.failover.peers import PATH, Peers
from replicator.failover.survey import Survey


def test_a_switch_waits_longer_for_a_cluster_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "ASK_SECONDS_MAX", 0.05)

    async def main() -> Survey:
        given_up = asyncio.Event()

        async def never(_: web.Request) -> web.Response:
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()
            raise AssertionError

        async def late(_: web.Request) -> web.Response:
            await given_up.wait()
            return web.json_response({"record": as_json(FIRST)})

        async with AsyncExitStack() as stack:
            addresses = {}
            for name, handler in (("busy", late), ("silent", never)):
                app = web.Application()
                app.router.add_get(f"{PATH}/state", handler)
                runner = web.AppRunner(app, handler_cancellation=True)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                host, port = runner.addresses[0]
                addresses[name] = f"{host}:{port}"
            peers = await stack.enter_async_context(Peers(addresses))
            return await Survey.of(peers, ("busy", "silent"), needed=("busy",))

    found = asyncio.run(main())
    assert set(found.states) == {"busy"}
    assert set(found.silent) == {"silent"}
    assert "no answer in time" in found.silent["silent"]
