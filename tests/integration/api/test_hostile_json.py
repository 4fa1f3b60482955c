"""JSON with values that no program sends, at every route of a running worker: it is the sender's fault, and goes on.

Routes come from the running application. Names of fields come from the code, so a new one is tried by itself. ``make
soak`` tries more.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, Final

import aiohttp
from api_support import goes_on, writing
from asynchronous import asynchronous
from examples import examples
from failover_support import free_ports

import replicator
from replicator.topology import load_topology
from replicator.worker.starting import start_worker

TOPIC: Final = "persistent://public/default/there"
NOT_ASKED: Final = ("drill", "backup", "failover", "backfill", "dashboard")
"""Parts of routes that start processes or switch clusters. They are for superusers alone."""
PLACES: Final = {"tenant": "public", "namespace": "default", "topic": "there"}
QUERY: Final = {
    "from": "far", "topic": TOPIC, "name": "", "writer": "w", "run": "r",
    "epoch": "1", "partition": "0", "attempt": "a", "at": "0", "bytes": "0",
}  # fmt: skip
LEAVES: Final = (
    *(None, True, False, -1, 0, 1, 7, 2**31, 2**53, 2**63, 2**64, 10**400, 0.5, 1e308),
    *(float("inf"), float("-inf"), float("nan"), "", "x", "7", "-1", "1:2", "-1:-1", "99999999999999999999:1"),
    *("\ud800", "\0", "é" * 300, TOPIC, "far", "solo", "AAAA", "public/default", "consume"),
)
FIELDS_MAX: Final = 12
ROUNDS: Final = 2


def fields() -> list[str]:
    """Return the names of fields that the code reads from JSON."""
    found: set[str] = set()
    for folder in ("api", "peering", "engine/cluster_settings", "engine/schemas"):
        for file in Path(replicator.__file__).parent.joinpath(folder).rglob("*.py"):
            found.update(re.findall(r"""(?:\[|\.get\(|pop\(|, )"([a-zA-Z_]{2,30})"[\],)]""", file.read_text()))
    assert {"topics", "bytes_max", "registered_at_ms"} <= found
    return sorted(found)


def value(dice: random.Random, names: list[str], depth: int = 0) -> Any:
    kind = dice.randrange(6)
    if kind < 3 or depth > 3:
        return dice.choice(LEAVES)
    if kind < 5:
        return [value(dice, names, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice([*names, TOPIC, "far"]): value(dice, names, depth + 1) for _ in range(dice.randrange(4))}


def topology(directory: Path) -> tuple[Path, int]:
    """Write a topology with a link from a cluster that is away. Return its file, and the port of ``solo``."""
    port, away = free_ports(2)
    directory.mkdir(mode=0o755, exist_ok=True)
    file = directory / "topology.yaml"
    file.write_text(
        f"clusters:\n  solo: {{address: '127.0.0.1:{port}', data: {directory / 'data'}}}\n"
        f"  far: {{address: '127.0.0.1:{away}', data: {directory / 'far'}}}\n"
        "links: [{from: far, to: solo}]\npipeline: {engine: embedded}\n"
    )
    return file, port


@asynchronous
async def test_values_that_no_program_sends_are_the_senders_fault_at_every_route(data_dir: Path) -> None:
    file, port = topology(data_dir)
    worker = await start_worker(load_topology(file), "solo")
    url, names, dice = f"http://127.0.0.1:{port}", fields(), random.Random(46)
    failed: list[str] = []
    try:
        async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
            async with session.put(f"{url}/admin/v2/persistent/public/default/there") as made:
                assert made.status == 204
            for method, path in writing(worker, PLACES):
                if any(part in path for part in NOT_ASKED):
                    continue
                for _ in range(examples(ROUNDS)):
                    whole = {name: value(dice, names) for name in names}  # whatever the route reads of it
                    body = dice.choice([whole, whole, whole, value(dice, names)])
                    sent = json.dumps(body).encode()
                    async with session.request(method, f"{url}{path}", data=sent, params=QUERY) as answer:
                        if answer.status in (500, 502):
                            failed.append(f"{method} {path}: {await answer.text()}")
            assert not failed, "\n".join(sorted(set(failed)))
            await goes_on(session, url)
    finally:
        await worker.stop()
