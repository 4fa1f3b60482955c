"""`replicator links` and the metrics of links, against the real application over real links."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from admin_support import NoStatus
from aiohttp import web as aiohttp_web
from engine_support import TOPIC, eventually
from link_support import Web, web
from typer.testing import CliRunner

from replicator.api.app import make_app
from replicator.api.linked_sources import LinkedSources
from replicator.cli.main import app
from replicator.links.link import Link
from replicator.topology import Link as LinkSpec


class Status(NoStatus):
    """Stand-in for a worker's status, for an engine that has no worker."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links

    def links(self) -> Sequence[Link]:
        return self._links

    def status(self) -> dict[str, Any]:
        return {
            "database": {"state": "up", "detail": ""},
            "store": {"failed": None, "bytes": 0, "commits": 0},
            "links": [link.status() for link in self._links],
            "counters": {},
        }


@asynccontextmanager
async def applied(path: Path, spec: LinkSpec) -> AsyncIterator[tuple[Web, Path, str]]:
    """A link from a to b with the application of a; a topology file; the application's address."""
    async with web(path, [spec]) as made:
        source = Status(list(made.links.values()))
        runner = aiohttp_web.AppRunner(make_app(made.engines["a"], source, LinkedSources()), shutdown_timeout=0.2)
        await runner.setup()
        await aiohttp_web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"127.0.0.1:{runner.addresses[0][1]}"
        file = path / "topology.yaml"
        file.write_text(
            f"clusters:\n  a: {{address: '{address}', data: ./a}}\n"
            f"  b: {{address: '{made.servers['b'].address}', data: ./b}}\nlinks:\n  - {{from: a, to: b, name: x}}\n"
        )
        try:
            yield made, file, address
        finally:
            await runner.cleanup()


async def run(*arguments: str) -> tuple[int, str]:
    """The exit status and the output of a command, in a thread: the worker that it asks runs in this process."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["links", *arguments])
    return result.exit_code, result.output


def test_links_are_listed_paused_resumed_and_resolved(tmp_path: Path) -> None:
    async def main() -> None:
        async with applied(tmp_path, LinkSpec("a", "b", name="x")) as (made, file, address):
            options = ("-f", str(file), "--from", "a", "--to", "b", "--name", "x")
            old = await made.publish("a", 0, 3)
            await eventually(lambda: made.entries("b", "a") == old)
            assert await run("pause", *options) == (0, "a>b#x is paused; 0 entries wait\n")
            await made.publish("a", 3, 3)
            status, output = await run("list", "-f", str(file), "-c", "a", "--topics", "-o", "json")
            assert status == 0
            (link,) = json.loads(output)
            assert (link["key"], link["state"], link["backlog_by_topic"]) == ("a>b#x", "paused", {TOPIC: 3})
            assert link["lag_ms"] >= 0
            assert (await run("resume", *options))[0] == 0
            await eventually(lambda: len(made.entries("b", "a")) == 6)

            resolve = ("resolve", *options, "--topic", TOPIC, "--policy")
            status, output = await run(*resolve, "skip-and-record")
            assert status == 2
            assert "has no gap" in output
            status, output = await run(*resolve, "whatever")
            assert status == 2
            assert "policy must be one of" in output
            status, output = await run(
                "resolve", *options, "--topic", TOPIC.rpartition("/")[2], "--policy", "keep-both"
            )
            assert f"has no gap in '{TOPIC}'" in output, "a short name is enough"
            await made.engines["a"].deleting.delete(TOPIC)
            anew = await made.publish("a", 0, 1)
            await eventually(lambda: made.links["a>b#x"].status()["gap_count"] == 1)
            async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as response:
                metrics = await response.text()
            assert 'replicator_link_gaps{cluster="a",kind="made-anew",link="a>b#x",to="b"} 1.0' in metrics
            status, output = await run("list", "-f", str(file), "-c", "a")
            assert (status, "made-anew" in output) == (0, True)
            assert (await run(*resolve, "copy-anew"))[0] == 0
            await eventually(lambda: made.entries("b", "a") == anew)

    asyncio.run(main())


def test_a_gap_is_shown_in_full_and_its_refusal_too(tmp_path: Path) -> None:
    """A table has no room for long names and whole commands, and an error must not end before its reason."""
    name = f"persistent://public/default/{'orders-' * 20}1"

    async def main() -> None:
        async with applied(tmp_path, LinkSpec("a", "b", name="x")) as (made, file, _):
            old = await made.publish("a", 0, 3, name)
            await eventually(lambda: made.entries("b", "a", name) == old)
            await made.engines["a"].deleting.delete(name)
            await made.publish("a", 0, 1, name)
            await made.publish("b", 0, 1, name)
            link = made.links["a>b#x"]
            await eventually(lambda: link.status()["gap_count"] == 1)
            (gap,) = link.status()["gaps"]
            assert "keep-both" in gap["detail"]
            status, output = await run("list", "-f", str(file), "-c", "a")
            assert status == 0
            table, _, below = output.partition("\n\n")
            assert "made-anew" not in table
            shown = "".join(f"a>b#x: gap made-anew: {name}: {gap['detail']}".split())
            assert shown in "".join(below.split()), "each character is there"

            options = ("-f", str(file), "--from", "a", "--to", "b", "--name", "x", "--topic", name)
            status, output = await run("resolve", *options, "--policy", "copy-anew")
            assert status == 2
            error = output[output.index("error: ") :].rstrip()  # the worker logs before it, in this process
            still = f"error: the gap in '{name}' is still there, so the link does not copy this topic: "
            assert error.startswith(f"{still}the destination refuses copy-anew: ")
            assert "published here" in error
            assert error.count("copy-anew") == 1, "it is not advised again"
            status, output = await run("resolve", *options, "--policy", "keep-both")
            assert status == 0

    asyncio.run(main())


def test_a_link_that_there_is_not_is_named_with_those_there_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with applied(tmp_path, LinkSpec("a", "b", name="x")) as (_, file, address):
            status, output = await run("pause", "-f", str(file), "--from", "a", "--to", "b")
            assert (status, "there is no link 'a>b'; there are: a>b#x" in output) == (2, True)
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"http://{address}/replication/v1/links/a%3Ec/pause") as response,
            ):
                assert response.status == 404
                assert (await response.json())["error"] == "LinkNotFound"

    asyncio.run(main())


def test_a_worker_that_is_away_is_told_apart_from_a_mistake(tmp_path: Path) -> None:
    async def main() -> None:
        async with applied(tmp_path, LinkSpec("a", "b", name="x")) as (_, file, _):
            text = file.read_text().splitlines()
            text[1] = "  a: {address: '127.0.0.1:1', data: ./a}"
            file.write_text("\n".join(text))
            assert (await run("pause", "-f", str(file), "--from", "a", "--to", "b", "--name", "x"))[0] == 3
            assert (await run("list", "-f", str(file), "-c", "a"))[0] == 3

    asyncio.run(main())
