"""The ports of the binary protocol alone: closed while no client belongs here, unless the topology keeps them open."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest
from asynchronous import asynchronous
from test_worker_address import cluster_at

from replicator.engine.gate import Closed, Gate
from replicator.gateway.own_port import OwnPort
from replicator.running.supervisor import Supervisor
from replicator.security.client_limits import ClientLimits
from replicator.worker.starting import _open_or_close

FENCED = Gate(Closed.FENCED, Closed.FENCED, "another", 2)
SERVING = Gate(None, None, "solo", 3)


async def can_connect(port: int) -> bool:
    with suppress(ConnectionError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


@pytest.mark.parametrize(("setting", "reached"), [("closed", False), ("open", True)])
@asynchronous
async def test_a_port_is_closed_while_fenced_unless_it_is_to_stay_open(setting: str, reached: bool) -> None:
    supervisor = Supervisor()
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    place = bound.getsockname()[1]
    port = OwnPort(bound, asyncio.Protocol, supervisor, backlog=10, limits=ClientLimits())
    cluster = cluster_at(1, pulsar_while_fenced=setting)
    try:
        for gate, expected in ((SERVING, True), (FENCED, reached), (SERVING, True)):
            _open_or_close(cluster, [port], gate)
            await port.settled()
            assert await can_connect(place) is expected, gate
    finally:
        await port.stop()
        await supervisor.stop()
