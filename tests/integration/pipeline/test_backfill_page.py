"""The commands of docs/backfill.md run as they stand there, in that order, except for ports and databases."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import forked_commands
import psycopg
import pytest
from failover_support import Deployment
from sqlalchemy import make_url
from typer.main import get_command

from replicator.cli.main import app
from replicator.client import Client, ConsumerType, InitialPosition

PAGE = (Path(__file__).parents[3] / "docs" / "backfill.md").read_text()
PORTS = {"us-east": "7101", "ap-south": "7102"}

_serial = count()


class Page(Deployment):
    """The clusters of the page; its topologies are written as they stand there."""

    def use(self, text: str) -> None:
        for name, port in PORTS.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.ports[name]}")
            text = text.replace(f"data: {name}", f"data: {name}, database: '{self._databases[name]}'")
        (self.path / "regions.yaml").write_text(f"{text}pipeline: {{engine: embedded}}\n")


@pytest.fixture
def page(tmp_path: Path, postgres_server: str) -> Iterator[Page]:
    names = {cluster: f"page_{os.getpid()}_{next(_serial)}" for cluster in PORTS}
    url = make_url(postgres_server)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        for name in names.values():
            connection.execute(f"CREATE DATABASE {name}")
        urls = {each: url.set(database=name).render_as_string(hide_password=False) for each, name in names.items()}
        deployed = Page(tmp_path, list(PORTS), "[]", urls)
        try:
            yield deployed
        finally:
            deployed.stop()
            for name in names.values():
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_steps_of_the_page_bring_a_region_up(page: Page) -> None:
    before, after = blocks("yaml")
    page.use(before)
    page.start("us-east", file="regions.yaml")

    async def use() -> None:
        async with Client(page.client_url("us-east")) as client:
            producer = await client.create_producer("orders")
            await producer.send_many([b"%d" % number for number in range(100)])
            consumer = await client.subscribe(
                "orders",
                "billing",
                consumer_type=ConsumerType.Shared,
                initial_position=InitialPosition.Earliest,
                replicate_subscription_state_enabled=True,
            )
            for number in range(100):
                received = await consumer.receive(timeout_millis=5_000)
                if number % 3:
                    await consumer.acknowledge(received)

    asyncio.run(use())
    page.use(after)
    for line in "".join(blocks("console")).splitlines():
        program, *arguments = line.removeprefix("$ ").partition("#")[0].split()
        assert program == "replicator"
        if arguments[0] == "worker":
            page.start(arguments[-1], file="regions.yaml")
            continue
        done = forked_commands.run(*arguments, cwd=page.path)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        if arguments[0] == "backfill":
            assert "done: ap-south has everything that us-east had" in done.stdout

    async def move() -> list[bytes]:
        async with Client(page.client_url("ap-south")) as client:
            consumer = await client.subscribe("orders", "billing", consumer_type=ConsumerType.Shared)
            return [(await consumer.receive(timeout_millis=5_000)).data() for _ in range(34)]

    assert asyncio.run(move()) == [b"%d" % number for number in range(0, 100, 3)]


def test_the_page_names_every_option() -> None:
    for option in get_command(app).commands["backfill"].params:  # type: ignore[attr-defined]
        assert any(name in PAGE for name in option.opts), option.opts
