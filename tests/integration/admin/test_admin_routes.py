"""Each route that a Pulsar 4.0.0 broker declares, as listed, is served here or is refused with the reason.

``answers/routes_pulsar_4_0_0.txt`` has the broker's routes: the annotations of the classes under
``org.apache.pulsar.broker.admin`` in its jar.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

from admin_support import administered

from replicator.api.admin.absent_paths import PARTS, PARTS_V3

ROUTES: Final = (Path(__file__).parent / "answers" / "routes_pulsar_4_0_0.txt").read_text().splitlines()
VALUES: Final = {
    "tenant": "acme",
    "namespace": "orders",
    "topic": "eu",
    "cluster": "us-east",
    "bundle": "0x00000000_0xffffffff",
    "subName": "jobs",
    "subscription": "jobs",
}
"""Values of parameters of a path; any other is a number."""
NOBODYS: Final = {"NotFound", "MethodNotAllowed", "InternalError"}
"""Codes of answers that no handler gave on purpose."""


def test_every_listed_route_of_a_broker_is_served_or_refused_with_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.engine.topic("persistent://acme/orders/eu")
            wrong, refused = [], 0
            for route in sorted(ROUTES, key=lambda each: each.startswith("DELETE")):  # deletions come last
                method, path = route.split()
                shown = re.sub(r"\{(\w+)\}", lambda name: VALUES.get(name[1], "7"), path)
                async with admin.session.request(method, admin.url + shown) as response:
                    answer = await response.json() if response.status >= 400 else {}
                    refused += response.status == 501
                    if answer.get("error") in NOBODYS or (response.status == 501 and len(answer["reason"]) < 10):
                        wrong.append(f"{route}: {response.status} {answer}")
            assert not wrong, "\n".join(wrong)
            assert 150 < refused < 300

    asyncio.run(main())


def test_a_part_that_brokers_do_not_have_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin, admin.session.get(f"{admin.url}/admin/v3/nix") as response:
            assert response.status == 404
            assert (await response.json())["reason"]

    asyncio.run(main())


def test_the_parts_that_are_refused_are_parts_of_a_broker() -> None:
    parts = {tuple(route.split()[1].split("/")[2:4]) for route in ROUTES}
    assert {("v2", part) for part in PARTS} | {("v3", part) for part in PARTS_V3} <= parts
    assert {part for version, part in parts if version == "v3"} == set(PARTS_V3)
