"""The failover paths over real HTTP, on an engine in process: hostile requests, holds, and what a fence does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from engine_support import TOPIC, HeldClock, eventually, message, opened, subscribed

from replicator.api.errors import report_errors
from replicator.api.failover import add_failover
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import ClusterFenced, TooBusy
from replicator.engine.types import ProducerOptions
from replicator.failover.epochs import FIRST, as_json, from_json, precedence, switched
from replicator.failover.errors import EpochConflict
from replicator.failover.service import ENDS, RECORD, FailoverService
from snapshots.position import Position

NOBODY = "127.0.0.1:9"
HOLD = {"operation": "o", "target": "eu-west", "expected": [0, "", ""], "lease_ms": 60_000}


class Asked:
    """The paths of one worker."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def __call__(self, method: str, path: str, body: Any = None, data: bytes | None = None) -> tuple[int, Any]:
        url = f"{self._url}/failover/v1/{path}"
        async with self._session.request(method, url, json=body, data=data) as response:
            return response.status, await response.json()


@asynccontextmanager
async def worker(path: Path) -> AsyncIterator[tuple[Engine, FailoverService, Asked]]:
    async with opened(path) as engine:
        service = FailoverService(engine, {"us-east": NOBODY, "eu-west": NOBODY})
        service.close_gate()
        app = web.Application(middlewares=[report_errors])
        add_failover(app, service, from_json)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with aiohttp.ClientSession() as session:
                yield engine, service, Asked(session, f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()
            await service.stop()


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("hold", {}, "operation"),
        ("hold", {**HOLD, "operation": "x" * 101}, "operation"),
        ("hold", {**HOLD, "expected": [True, "", ""]}, "expected"),
        ("hold", {**HOLD, "expected": None}, "expected"),
        ("hold", {**HOLD, "lease_ms": 10**9}, "lease_ms"),
        ("hold", {**HOLD, "keep_consumers": 1}, "keep_consumers"),
        ("hold", [], "object"),
        ("renew", {"lease_ms": 5}, "operation"),
        ("release", {"operation": 5}, "operation"),
        ("topics", {"names": [1]}, "names"),
        ("missing", {"marks": {"t": "x"}}, "marks"),
        ("missing", {"marks": []}, "marks"),
        ("propose", {"homes": []}, "homes"),
        ("propose", {"homes": ["us-east"], "kind": "odd", "expected": [0, "", ""]}, "kind"),
        ("epochs", {"record": {**as_json(FIRST), "serving": {"A": 5}}}, "serving"),
        ("epochs", {"record": "x"}, "object"),
    ],
)
def test_a_hostile_body_is_refused_by_its_field(tmp_path: Path, path: str, body: Any, named: str) -> None:
    async def main() -> None:
        async with worker(tmp_path) as (_, _, ask):
            status, answer = await ask("POST", path, body)
            assert status == 400
            assert named in answer["message"]
            assert (await ask("POST", path, data=b"\xff{"))[0] == 400

    asyncio.run(main())


def test_a_worker_that_starts_takes_no_clients_before_it_has_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with worker(tmp_path) as (engine, service, ask):
            topic = await engine.topic(TOPIC)
            with pytest.raises(TooBusy, match="asks the other clusters"):
                await topic.producers.create(ProducerOptions("p"))
            with pytest.raises(TooBusy):
                await subscribed(topic)
            assert service.not_ready() is not None
            await service.start()
            assert service.not_ready() is None
            await topic.publish([message()])
            _, state = await ask("GET", "state")
            assert "eu-west" in state["silent"]

    asyncio.run(main())


def test_a_hold_finishes_what_is_in_flight_and_its_release_lets_clients_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with worker(tmp_path) as (engine, service, ask):
            await service.start()
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions("p"))
            closed: list[tuple[str, str]] = []
            producer.on_closed = lambda code, reason: closed.append((code, reason))
            consumer, inbox = await subscribed(topic)
            await topic.publish([message(b"%d" % n) for n in range(3)])
            await inbox.holds(3)
            publishing = asyncio.create_task(producer.publish([message(b"in flight")]))
            await asyncio.sleep(0)
            holding = asyncio.create_task(ask("POST", "hold", HOLD))
            await eventually(lambda: engine.admission.producers is not None, "the fence")
            delivered = len(inbox.deliveries)  # 4 if the one in flight came before the fence
            await publishing
            with pytest.raises(ClusterFenced, match="is being switched to eu-west"):
                await topic.publish([message(b"late")])
            await consumer.acknowledge([_ack(delivery.position) for delivery in inbox.deliveries])
            status, answer = await holding
            assert status == 200
            (held,) = answer["topics"]
            assert held["has"]["us-east"]["position"] == str(topic.log.last)
            assert answer["held_entries"] == 0
            assert consumer.closed
            assert [code for code, _ in closed] == ["ClusterFenced"]
            assert len(inbox.deliveries) == delivered, "something was delivered while consumers were to finish"
            assert (await ask("POST", "renew", {"operation": "other", "lease_ms": 5}))[0] == 409
            assert (await ask("POST", "release", {"operation": "other"}))[0] == 200
            assert engine.admission.producers is not None, "released by somebody else"
            await ask("POST", "release", {"operation": "o"})
            await topic.publish([message(b"again")])
            _, second = await subscribed(topic)
            await second.holds(5 - delivered)

    asyncio.run(main())


def test_an_epoch_is_durable_and_known_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        body = {"kind": "promote", "homes": ["eu-west"], "expected": [0, "", ""]}
        async with worker(tmp_path) as (_, service, ask):
            await service.start()
            status, switch = await ask("POST", "propose", body)
            assert status == 200
            assert switch["record"]["serving"] == {"eu-west": "us-east"}
            status, answer = await ask("POST", "propose", body)
            assert (status, answer["error"]) == (409, "EpochConflict"), "the same was done twice"
        async with worker(tmp_path) as (engine, service, ask):
            assert service.state()["epoch"] == 1
            await service.start()
            assert service.state()["serves"] == ["eu-west", "us-east"]
            fenced = {**switch["record"], "epoch": 2, "writer": "eu-west", "serving": {"us-east": "eu-west"}}
            await ask("POST", "epochs", {"record": fenced})
            topic = await engine.topic(TOPIC)
            with pytest.raises(
                ClusterFenced, match=f"is served by eu-west at pulsar://{NOBODY} since failover epoch 2"
            ):
                await topic.publish([message()])
            await ask("POST", "epochs", {"record": switch["record"]})
            assert service.state()["epoch"] == 2, "an older record was adopted"

    asyncio.run(main())


class StopsAt:
    """A clock at which the writer stops in the ``group``-th group of writes after :meth:`arm`, until it is freed."""

    def __init__(self, group: int) -> None:
        self._left: int | None = None
        self._group = group
        self.reached, self.free = threading.Event(), threading.Event()

    def arm(self) -> None:
        self._left = self._group

    def __call__(self) -> int:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.reached.set()
                assert self.free.wait(10)
        return 1_000_000


@pytest.mark.parametrize("write", [1, 2, 3], ids=["before the switch", "before its name", "with the record"])
def test_a_restart_knows_the_record_that_won_while_a_takeover_was_stored(tmp_path: Path, write: int) -> None:
    """Otherwise a fenced cluster would serve if no other one answered at its start."""
    addresses = dict.fromkeys(("eu-west", "us-east", "us-west"), NOBODY)
    won = switched(FIRST, kind="promote", homes=list(addresses), target="us-west", record_id="x", at_ms=0)

    async def main() -> None:
        clock = StopsAt(write)
        async with opened(tmp_path, settings=EngineSettings(wall_clock_ms=clock)) as engine:
            service = FailoverService(engine, addresses)
            service.close_gate()
            await service.start()
            clock.arm()
            taking_over = asyncio.create_task(
                service.propose(kind="promote", homes=["eu-west"], expected=precedence(FIRST), keep_consumers=False)
            )
            await eventually(clock.reached.is_set)
            service.adopt(won)
            await asyncio.sleep(0.05)
            clock.free.set()
            with pytest.raises(EpochConflict, match="us-west"):
                await taking_over
            await eventually(lambda: engine.store.meta(RECORD) == as_json(won), "the record that won is stored")
            assert service.state()["fenced"]
            await service.stop()
        async with opened(tmp_path) as engine:
            service = FailoverService(engine, addresses)
            service.close_gate()
            await service.start()
            assert service.state()["fenced"], "it serves after a restart"
            await service.stop()

    asyncio.run(main())


def test_messages_in_flight_at_the_fence_are_stranded_too(tmp_path: Path) -> None:
    """Their producers get confirmations, and the new server lacks them."""
    fenced = switched(FIRST, kind="promote", homes=["us-east"], target="eu-west", record_id="x", at_ms=0)

    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            service = FailoverService(engine, {"us-east": NOBODY, "eu-west": NOBODY})
            service.close_gate()
            await service.start()
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions("p"))
            (mark,) = await producer.publish([message()])  # the new server has this one
            clock.free.clear()
            clock.asked.clear()
            publishing = [asyncio.create_task(producer.publish([message()])) for _ in range(20)]
            await eventually(clock.asked.is_set)
            service.adopt(fenced)
            counting = asyncio.create_task(service.missing({TOPIC: mark}, "x"))
            await asyncio.sleep(0.05)
            clock.free.set()
            await asyncio.gather(*publishing)
            for missing in (await counting, await _missing_once_remembered(service, mark)):
                assert missing[TOPIC]["messages"] == 20
            await service.stop()

    asyncio.run(main())


async def _missing_once_remembered(service: FailoverService, mark: Position) -> dict[str, dict[str, Any]]:
    await eventually(lambda: service.engine.store.meta(f"{ENDS} x") is not None, "the end is stored")
    return await service.missing({TOPIC: mark}, "x")


def _ack(position: Any) -> Any:
    from replicator.engine.types import Ack

    return Ack(position)
