"""The dashboard reads in the worker's name, and changes things in the name of the user who signed in."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer
from asynchronous import asynchronous

from replicator.dashboard.fan_out import FanOut
from replicator.security.access import Access, use_in_context
from replicator.topology.values import default_topology


@asynchronous
async def test_changes_bear_what_their_asker_showed_and_nothing_of_the_worker(tmp_path: Path) -> None:
    seen: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.method, request.headers.get("Authorization")))
        return web.json_response({"message": "not you"}, status=403)

    app = web.Application()
    app.router.add_route("*", "/replication/v1/links/x/pause", answer)
    async with TestServer(app) as server:
        assert server.port is not None
        use_in_context(Access(token="of-the-worker"))
        topology = default_topology(tmp_path, (server.port, 1))
        fan_out = FanOut(lambda: topology)
        path, name = "/replication/v1/links/x/pause", fan_out.clusters[0]
        refused = await fan_out.change("Bearer mine", name, "POST", path)
        await fan_out.change(None, name, "POST", path)
        await fan_out.ask(name, path)
        await fan_out.close()
    assert seen == [("POST", "Bearer mine"), ("POST", None), ("GET", "Bearer of-the-worker")]
    assert (refused.status, refused.error) == (403, f"{name} refuses: not you")
