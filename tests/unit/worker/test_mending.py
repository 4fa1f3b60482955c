"""A worker's memory of damaged blocks: bounded, each once, and never more than is true."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import TOPIC, eventually, message, opened

from replicator.engine.errors import BlockCorrupt
from replicator.running.supervisor import Supervisor
from replicator.worker import mending
from replicator.worker.mending import BlockRepair
from snapshots.position import BEFORE_ALL, Position


def test_a_block_that_nobody_has_is_said_with_the_reason_and_forgotten_when_its_topic_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "RETRY_SECONDS", 0.05)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            (at,) = await topic.publish([message(b"x" * 100)])
            with engine.store.env.begin(write=True, db=engine.store.tables["blocks"]) as txn:
                ((key, value),) = list(txn.cursor())
                txn.put(key, value[:-1] + b"!")
            mends = BlockRepair(engine, Supervisor(), lambda _: None)
            mends.change({"elsewhere": "http://127.0.0.1:1"})
            mends.start()
            for _ in range(3):
                with pytest.raises(BlockCorrupt, match="checksum"):
                    topic.reading.blocks(BEFORE_ALL, bytes_max=1)
            await eventually(lambda: "cannot be reached" in str(mends.status()["damaged"]), "it is said")
            assert mends.status()["damaged"][0]["position"] == str(at)  # type: ignore[index]
            assert len(mends.status()["damaged"]) == 1  # type: ignore[arg-type]
            await engine.deleting.delete(TOPIC, force=True)
            await eventually(lambda: mends.status() == {"mended": 0, "damaged": []}, "it is forgotten")
            await eventually(lambda: not mends._noted, "for good")
            await mends.stop()

    asyncio.run(main())


def test_invariant_11_so_many_are_remembered_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mending, "NOTED_MAX", 5)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            mends = BlockRepair(engine, Supervisor(), lambda _: None)
            for entry in range(20):
                mends._damaged(1, Position(1, entry))
            await asyncio.sleep(0)
            assert len(mends._noted) == 5

    asyncio.run(main())
