"""``replicator translate`` and ``replicator mapping rebuild`` on two real workers, with and without their databases."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import psycopg
from engine_support import message
from worker_pair import NAMES, Pair, pair

from snapshots.position import BEFORE_ALL, Position


def test_a_position_is_translated_there_and_back_and_what_cannot_be_says_why(data_dir: Path) -> None:
    async def main() -> None:
        async with pair(data_dir) as both:
            last = await both.published()
            for source, to in (NAMES, NAMES[::-1]):
                status, found = await both.translate_by_index(source, to, last[source])
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
            _, before = await both.translate_by_index("us-east", "eu-west", last["us-east"])

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
            _, before = await both.translate_by_index("us-east", "eu-west", last["us-east"])
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
