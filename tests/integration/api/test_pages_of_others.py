"""No route of a worker does anything for a page of another site, or under a name that is not the worker's."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from api_support import routes_of, topology
from asynchronous import asynchronous

from replicator.topology import load_topology
from replicator.worker.starting import start_worker

TOPIC = "persistent/public/default/there"


@asynchronous
async def test_every_route_refuses_other_names_and_other_sites_and_does_nothing(data_dir: Path) -> None:
    file, port = topology(data_dir)
    worker = await start_worker(load_topology(file), "solo")
    url = f"http://127.0.0.1:{port}"
    try:
        routes = routes_of(worker)
        assert len(routes) > 150
        async with aiohttp.ClientSession() as session:
            async with session.put(f"{url}/admin/v2/{TOPIC}") as made:
                assert made.status == 204
            for method, path in routes:
                for headers, status, code in (
                    ({"Host": f"evil.example:{port}"}, 421, "UnknownHost"),
                    ({"Origin": "https://evil.example"}, 403, "ForeignOrigin"),
                    ({"Origin": "null"}, 403, "ForeignOrigin"),
                ):
                    async with session.request(method, f"{url}{path}", headers=headers) as answer:
                        assert answer.status == status, (method, path, headers)
                        if method != "HEAD":
                            assert (await answer.json())["error"] == code
            for headers in ({"Host": "evil.example"}, {"Origin": f"http://evil.example:{port}"}):
                async with session.delete(f"{url}/admin/v2/{TOPIC}", headers=headers) as refused:
                    assert refused.status in (403, 421)
                with pytest.raises(aiohttp.WSServerHandshakeError):
                    await session.ws_connect(f"{url}/ws/v2/producer/{TOPIC}", headers=headers)
            async with session.get(f"{url}/admin/v2/persistent/public/default") as listed:
                assert await listed.json() == [f"persistent://{TOPIC.removeprefix('persistent/')}"]
    finally:
        await worker.stop()


@asynchronous
async def test_names_and_sites_that_the_topology_has_are_served(data_dir: Path) -> None:
    file, port = topology(
        data_dir, ", advertised: 'outside.example:7000', hosts: [by-another.name], origins: ['https://app.example']"
    )
    worker = await start_worker(load_topology(file), "solo")
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as session:
            for headers in (
                {"Host": "outside.example:7000"},
                {"Host": "By-Another.name"},
                {"Host": "by-another.name", "Origin": "http://by-another.name"},
                {"Origin": "https://app.example"},
                {"Origin": url},
            ):
                async with session.get(f"{url}/readyz", headers=headers) as answer:
                    assert answer.status == 200, headers
                async with session.ws_connect(f"{url}/ws/v2/producer/{TOPIC}", headers=headers) as socket:
                    await socket.send_json({"payload": "YQ=="})
                    assert (await socket.receive_json())["result"] == "ok"
    finally:
        await worker.stop()
