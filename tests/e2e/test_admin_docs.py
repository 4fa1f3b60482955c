"""The examples of docs/admin.md run as they stand there, in that order, each with the URL of a worker; the page
names every policy. Every path is in docs/reference/http.md (``test_docs_routes.py``)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from admin_support import administered
from engine_support import message
from typer.main import get_command
from typer.testing import CliRunner

from replicator.api.admin.absent_policies import ABSENT_POLICIES
from replicator.api.admin.policy_shapes import ALIASES, SHAPES
from replicator.cli.main import app

DOCS = Path(__file__).parents[2] / "docs" / "admin.md"


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```console\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    return [line.split("#")[0].split() for block in blocks for line in block.splitlines()]


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            for command in commands():
                done = await asyncio.to_thread(CliRunner().invoke, app, [*command[1:], "--url", admin.url])
                assert done.exit_code == 0, f"{command}: {done.output[-2000:]} {done.exception}"
                if command[1:3] == ["topics", "create"]:
                    topic = await admin.engine.topic("acme/orders/eu")
                    await topic.publish([message(b"an order")] * 10)
                if command[2:3] == ["peek"]:
                    assert done.output.count("an order") == 5
            assert admin.engine.catalog.tenants() == ["acme"]
            assert admin.engine.topics() == []

    asyncio.run(main())


def test_the_page_names_every_command() -> None:
    words = set(re.findall(r"[\w-]+", DOCS.read_text()))
    groups = get_command(app).commands  # type: ignore[attr-defined]
    for group in ("topics", "subscriptions", "namespaces", "tenants"):
        assert set(groups[group].commands) <= words, group


def test_the_page_names_every_policy() -> None:
    text = DOCS.read_text()
    words = set(re.findall(r"[\w-]+", text))
    assert set(ABSENT_POLICIES) <= words
    for name in (*SHAPES, *ALIASES):
        assert name in words or "…On" + name.partition("On")[2] in text, name
