"""``replicator translate`` and ``replicator mapping rebuild`` on two real workers, with and without their databases."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import forked_commands
import psutil
import psycopg
from engine_support import TOPIC, eventually, message

from replicator.drills.ports import free_ports
from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.topology import load_topology
from replicator.worker.starting import start_worker
from replicator.worker.worker import Worker
from snapshots.position import BEFORE_ALL, Position

NAMES = ("us-east", "eu-west")


class Pair:
    """Two workers of one topology, linked both ways, in this process."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)  # as root, the server of the database runs as another user
        self.directory = directory
        self.file = directory / "topology.yaml"
        clusters = "".join(
            f"  {name}: {{address: '127.0.0.1:{free_ports(1)[0]}', data: {directory / name}}}\n" for name in NAMES
        )
        self.file.write_text(
            f"clusters:\n{clusters}links:\n  - {{from: us-east, to: eu-west}}\n  - {{from: eu-west, to: us-east}}\n"
            "pipeline: {engine: embedded}\n"
        )
        topology = load_topology(self.file)
        self.topology = topology
        self.workers: dict[str, Worker] = {}

    def engine(self, name: str) -> Engine:
        return self.workers[name].parts.engine

    def topic(self, name: str) -> Topic:
        topic = self.engine(name).find(TOPIC)
        assert topic is not None
        return topic

    async def published(self) -> dict[str, Position]:
        """What each cluster published last, after all of it is in both."""
        await self.engine("us-east").topic(TOPIC)
        await (await self.engine("eu-west").topic(TOPIC)).publish([message(b"e")] * 3)
        last: dict[str, Position] = {}
        for _ in range(5):
            for name in NAMES:
                last[name] = (await self.topic(name).publish([message()] * 3))[-1]
        await eventually(lambda: {self.topic(name).log.messages for name in NAMES} == {33}, "all messages in both")
        return last

    async def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        asked = (*arguments, "-f", str(self.file))
        return await asyncio.to_thread(forked_commands.run, *asked, cwd=self.file.parent, timeout=90)

    async def translate(self, source: str, to: str, position: Position | str) -> tuple[int, Any]:
        """Exit status, and the JSON or the error."""
        asked = ("--topic", "orders", "--from", source, "--to", to, "--position", str(position))
        done = await self.cli("translate", *asked, "--output", "json")
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def postmaster(self, name: str) -> int:
        return int((self.directory / name / "postgres" / "postmaster.pid").read_text().split()[0])

    def signal_server(self, name: str, how: signal.Signals) -> None:
        """To the server of a cluster's database, and to all processes of it."""
        postmaster = psutil.Process(self.postmaster(name))
        for process in [postmaster, *postmaster.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(how)

    def database(self, name: str) -> str:
        return f"postgresql://postgres@/postgres?host={self.directory / name / 'postgres'}"


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    both = Pair(directory)
    try:
        for name in NAMES:
            both.workers[name] = await start_worker(both.topology, name)
        yield both
    finally:
        for worker in both.workers.values():
            await worker.stop()


def test_a_position_is_translated_there_and_back_and_what_cannot_be_says_why(data_dir: Path) -> None:
    async def main() -> None:
        async with pair(data_dir) as both:
            last = await both.published()
            for source, to in (NAMES, NAMES[::-1]):
                status, found = await both.translate(source, to, last[source])
                assert status == 0, found
                assert found["identity"]["origin"] == source
                assert found["identity"]["position"] == found["from"]["position"] == str(last[source])
                assert found["to"]["source"] == found["source"] == "postgres"
                there = found["to"]["position"]
                assert there != str(last[source])
                status, back = await both.translate(to, source, there)
                assert (status, back["to"]["position"]) == (0, str(last[source]))
            lac = both.topic("us-east").log.last
            beyond = Position(lac.ledger, lac.entry + 1_000)
            assert await refusal(both, beyond) == (2, "error: persistent://public/default/orders ends at")
            assert (await both.translate("us-east", "eu-west", "seven"))[0] == 2
            assert (await both.translate("us-east", "nowhere", lac))[0] == 2
            marker = await both.topic("us-east").writing.marker(message(), local=True)
            status, error = await both.translate("us-east", "eu-west", marker)
            assert (status, "is a marker" in error) == (2, True)
            trimmed = both.topic("us-east").log.first
            assert trimmed is not None
            await both.workers["eu-west"].stop()
            status, error = await both.translate("us-east", "eu-west", last["us-east"])
            assert (status, "connection refused" in error) == (3, True)

    async def refusal(both: Pair, position: Position) -> tuple[int, str]:
        status, error = await both.translate("us-east", "eu-west", position)
        return status, error[: len("error: persistent://public/default/orders ends at")]

    asyncio.run(main())


def test_what_is_not_copied_yet_is_an_answer_and_not_a_mistake(data_dir: Path) -> None:
    async def main() -> None:
        async with pair(data_dir) as both:
            await both.published()
            await both.workers["us-east"].parts.links.stop()
            (alone,) = await both.topic("us-east").publish([message()])
            status, error = await both.translate("us-east", "eu-west", alone)
            assert (status, "is not in eu-west yet" in error) == (1, True)

    asyncio.run(main())


def test_while_postgres_is_away_the_workers_answer_from_their_stores(data_dir: Path) -> None:
    async def main() -> None:
        async with pair(data_dir) as both:
            last = await both.published()
            _, before = await both.translate("us-east", "eu-west", last["us-east"])

            both.signal_server("eu-west", signal.SIGSTOP)
            try:
                status, found = await both.translate("us-east", "eu-west", last["us-east"])
            finally:
                both.signal_server("eu-west", signal.SIGCONT)
            assert status == 0, found
            assert found["to"] == {**before["to"], "source": "store"}
            assert (before["source"], found["source"]) == ("postgres", "store")

    asyncio.run(main())


def test_a_rebuild_over_the_command_line_makes_an_emptied_index_whole(data_dir: Path) -> None:
    async def main() -> None:
        async with pair(data_dir) as both:
            last = await both.published()
            topic = both.topic("us-east")
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            _, before = await both.translate("us-east", "eu-west", last["us-east"])
            await asyncio.to_thread(empty, both.database("eu-west"))
            done = await both.cli("mapping", "rebuild", "--output", "json")
            assert done.returncode == 0, done.stderr
            progress = json.loads(done.stdout)
            assert set(progress) == set(NAMES)
            for each in progress.values():
                assert each["state"] == "done"
                assert each["segments"] >= 1
                assert each["states"] == 1
                assert each["store_rows_repaired"] == 0
            # The writer sees that the index was emptied, too: until it has written it anew, the store answers.
            async with asyncio.timeout(30):
                while (found := await both.translate("us-east", "eu-west", last["us-east"])) != (0, before):
                    assert found[1]["to"]["position"] == before["to"]["position"]
            done = await both.cli("mapping", "rebuild", "--cluster", "us-east", "--topic", "orders")
            assert done.returncode == 0, done.stderr
            assert "eu-west" not in done.stdout
            assert (await both.cli("mapping", "rebuild", "--topic", "never")).returncode == 2

    def empty(url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("TRUNCATE extent_segments, snapshot_mappings, subscription_states")

    asyncio.run(main())
