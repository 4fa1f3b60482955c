"""Topics of the brokers are found, though some have names or answers that nobody can use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from answering_admin import answering
from asynchronous import asynchronous
from engine_support import eventually, opened

from replicator.apache import bridge as bridging
from replicator.apache import broker_clients
from replicator.apache.bridge import ApacheBridge
from replicator.topology.apache import ApacheSettings

ODD = "persistent://public/default/order service"
GOOD = "persistent://public/default/orders"


class Brokers:
    """Their lists of names; a status in the place of a list refuses it."""

    def __init__(self) -> None:
        self.lists: dict[str, Any] = {
            "tenants": ["public"],
            "namespaces/public": ["public/default"],
            "persistent/public/default": [ODD, GOOD],
            "persistent/public/default/partitioned": [],
        }
        self.asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        found = self.lists.get(request.path.removeprefix("/admin/v2/"), 404)
        return web.Response(status=found) if isinstance(found, int) else web.json_response(found)


@asynccontextmanager
async def bridged(path: Path, brokers: Brokers, **settings: Any) -> AsyncIterator[ApacheBridge]:
    async with answering(brokers.answer) as url, opened(path, "a") as engine:
        places = {"service_url": "pulsar://127.0.0.1:1", "admin_url": url}
        made = ApacheBridge(engine, ApacheSettings.model_validate(places | settings), "a.pulsar")
        made.start()
        try:
            yield made
        finally:
            await made.stop()


def found(made: ApacheBridge) -> set[str]:
    return {each["topic"] for each in made.status()["topics"]}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridging, "DISCOVER_SECONDS", 0.1)


@pytest.mark.parametrize("settings", [{}, {"exclude": ["public/other"]}, {"topics": ["public/default"]}])
@asynchronous
async def test_one_oddly_named_topic_stops_no_other_and_is_named_while_it_is_there(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    brokers = Brokers()
    brokers.lists["persistent/public/default/partitioned"] = ["persistent://public/default/q?x"]
    async with bridged(tmp_path, brokers, **settings) as made:
        await eventually(lambda: found(made) == {GOOD})
        await eventually(lambda: len(made.status()["refused"]) == 2)
        assert "must be letters" in made.status()["refused"][ODD]
        assert made.status()["error"] == ""
        brokers.lists["persistent/public/default"] = [GOOD]
        brokers.lists["persistent/public/default/partitioned"] = []
        await eventually(lambda: made.status()["refused"] == {})


@asynchronous
async def test_a_topic_that_is_left_out_on_purpose_is_not_refused(tmp_path: Path) -> None:
    async with bridged(tmp_path, Brokers(), exclude=["public/default/order service"]) as made:
        await eventually(lambda: found(made) == {GOOD})
        assert made.status()["refused"] == {}


@asynchronous
async def test_a_namespace_and_a_tenant_that_are_not_shown_hide_no_other(tmp_path: Path) -> None:
    brokers = Brokers()
    brokers.lists["tenants"] = ["hidden", "public"]
    brokers.lists["namespaces/hidden"] = 403
    brokers.lists["namespaces/public"] = ["public/broken", "public/default"]
    brokers.lists["persistent/public/broken"] = 500
    async with bridged(tmp_path, brokers) as made:
        await eventually(lambda: found(made) == {GOOD})
        await eventually(lambda: "namespaces/hidden: 403" in made.status()["error"])


@asynchronous
async def test_what_was_never_found_is_unknown_to_a_failover(tmp_path: Path) -> None:
    brokers = Brokers()
    brokers.lists["tenants"] = 500
    async with bridged(tmp_path, brokers) as made:
        assert "not found yet" in made.clients.unknown()
        await eventually(lambda: "500" in made.clients.unknown())
        brokers.lists["tenants"] = ["public"]
        await eventually(lambda: ODD in made.clients.unknown())
        assert "apache.exclude" in made.clients.unknown()
        await eventually(lambda: GOOD in made.clients.unknown())  # it cannot be read: nobody is at that port


@asynchronous
async def test_an_end_is_known_though_a_topic_is_refused_and_waits_for_one_that_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_clients, "FIND_AGAIN_SECONDS", 0.01)
    brokers = Brokers()
    brokers.lists["persistent/public/default"] = [ODD]
    async with bridged(tmp_path, brokers) as made:
        await eventually(lambda: ODD in made.status()["refused"])
        await made.clients.ended()
        made._renewing.add(GOOD)
        assert "renewed" in made.clients.unknown()
        ending = asyncio.ensure_future(made.clients.ended())
        asked = brokers.asked
        await eventually(lambda: brokers.asked > asked + 20)
        assert not ending.done()
        made._renewing.clear()
        await ending
