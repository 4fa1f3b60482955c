"""Steps that lose a disk, put an earlier state back, or damage a block."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb

from histories.judging import Violation
from histories.operating import UNAVAILABLE, failed
from histories.pauses import BACKUP, RECLAIM, Pause
from histories.traffic import Traffic
from replicator.engine.log.block import BlockKind
from replicator.engine.log.segments.places import parse_row
from replicator.engine.log.store_files import LOG

BARE: Final = "zz-bare"
"""Name of a topic without subscriptions, whose retention keeps nothing. A reclaim reads it last."""
BARE_BLOCKS: Final = 3
"""Blocks of that topic. Retention never deletes the last block of a log."""
UID: Final = re.compile(rb"\x0a\x03uid\x12([\x01-\x7f])")
"""Property of a message in its stored metadata, up to the length of its value."""


class Disks(Traffic):
    """Steps about disks and backups. They need links in both directions between all clusters."""

    async def lose_disk(
        self, *, at: str, damaged: str | None = None, meanwhile: str | None = None, other: str = "", topic: str = ""
    ) -> None:
        """Kill a worker, delete its directory, and start it. It takes back its messages from other clusters.

        ``damaged`` names another cluster. It gets a damaged block before, which ``at`` published and a third cluster
        has, too. ``meanwhile`` says what happens while the worker takes back messages: "kill" kills it again. The
        others happen at the cluster ``other``: see :meth:`_while_reclaiming`.
        """
        if damaged is not None:
            await self.settle()
            await self.kill(at=damaged)
            damage_block(self.regions.path / f"data-{damaged}", at, f"/{self._name}-")
            self.model.damaged = True
            await self.start(at=damaged)
        await self.kill(at=at)
        shutil.rmtree(self.regions.path / f"data-{at}")
        self.model.disk_lost(at, unreadable=damaged)
        if meanwhile is not None:
            pause = Pause(RECLAIM)
            self.regions.launch(at)
            try:
                await asyncio.to_thread(pause.wait, partial(self.regions.is_ready, at))
                if meanwhile == "kill":
                    self.regions.kill(at)
                else:
                    await self._while_reclaiming(at, meanwhile, other, topic)
            finally:
                pause.end()
            if meanwhile != "kill":
                if other in self.model.down:
                    await self.start(at=other)
                await asyncio.to_thread(self.regions.wait_ready, at)
                self.model.down.discard(at)
                return
        await self.start(at=at)

    async def _while_reclaiming(self, at: str, meanwhile: str, other: str, topic: str) -> None:
        """Let something happen at the cluster ``other`` while ``at`` takes back messages.

        "kill_other" kills its worker. "trim" lets retention pass over a topic there, and "delete_topic" deletes it.
        """
        if meanwhile == "kill_other":
            await self.kill(at=other)
            return
        await getattr(self, meanwhile)(at=other, topic=topic)
        if meanwhile == "delete_topic":
            self.model.disk_lost(at)  # what only ``other`` had does not come back

    async def back_up(self, *, at: str, meanwhile: str | None = None, topic: str = "") -> None:
        """Make a backup of a running worker.

        ``meanwhile`` says what happens to the worker in the middle: "kill", or "trim" or "delete_topic" of ``topic``.
        """
        create = ("backup", "create", "--cluster", at, "--at", str(self._backups))
        if meanwhile is None:
            await self._command(*create)
            self.model.backed_up.add(at)
            return
        pause = Pause(BACKUP)
        going = asyncio.create_task(self._run(*create))
        try:
            await asyncio.to_thread(pause.wait, going.done)
            if meanwhile == "kill":
                await self.kill(at=at)
            else:
                await getattr(self, meanwhile)(at=at, topic=topic)
        finally:
            pause.end()
        done = await going
        if done.returncode == 0:
            self.model.backed_up.add(at)
        elif meanwhile != "kill" or done.returncode != UNAVAILABLE:
            raise failed(done)
        if meanwhile == "kill":
            await self.start(at=at)

    async def restore(self, *, at: str) -> None:
        """Kill a worker, and restore its newest backup in place of its directory."""
        await self.kill(at=at)
        await self._command("backup", "restore", "--cluster", at, "--at", str(self._backups), "--replace")
        self.model.disk_lost(at)
        await self.start(at=at)

    async def reclaim_while_trimming(
        self, *, at: str, meanwhile: str | None = None, other: str = "", topic: str = ""
    ) -> None:
        """Start a worker on an empty directory, and take its messages back while the others delete what retention does
        not keep. They hold that back, so everything that the dry run counted must come back.

        ``meanwhile`` says what else happens at the cluster ``other``: see :meth:`_while_reclaiming`. Nothing is said
        about messages of a topic that it deletes. After it was killed, the reclaim is run again if it failed by that.
        """
        for _ in range(BARE_BLOCKS):
            await self.publish(at=at, topic=BARE, how="single", count=1)
        await self.settle()
        await self.kill(at=at)
        shutil.rmtree(self.regions.path / f"data-{at}")
        self.model.disk_lost(at)
        await asyncio.to_thread(self.regions.start_empty, at)
        await asyncio.to_thread(self.regions.stop_one, at)
        self.model.trims(BARE)
        reclaim = ("backup", "reclaim", "--cluster", at)
        planned = await self._command(*reclaim, "--dry-run")
        pause = Pause(RECLAIM)
        going = asyncio.create_task(self._run(*reclaim))
        try:
            await asyncio.to_thread(pause.wait, going.done)
            for name in self.shape.clusters:
                if name != at:
                    await self._retain_nothing_at(name, BARE)
                    await self.trim(at=name, topic=BARE)
            if meanwhile is not None:
                await self._while_reclaiming(at, meanwhile, other, topic)
        finally:
            pause.end()
        ended = await going
        if other in self.model.down:
            await self.start(at=other)
        if not ended.returncode:
            done = json.loads(ended.stdout)
        elif meanwhile == "kill_other":
            done = await self._command(*reclaim)
        else:
            raise failed(ended)
        await self.start(at=at)
        but = self._full(topic) if meanwhile == "delete_topic" else ""
        missing = _counts(planned, but) - _counts(done, but)
        if missing > 0:
            raise Violation(
                f"the reclaim of {at} took back {missing} messages less than it had planned: {planned} {done}"
            )

    @property
    def _backups(self) -> Path:
        return self.regions.path / f"backups-{self._name}"


def _counts(answer: Any, but: str) -> int:
    """Return the number of messages of all topics except ``but`` in the answer of a reclaim or its dry run."""
    return sum(topic["messages"] or 0 for topic in answer["topics"] if topic["name"] != but)


def damage_block(data: Path, origin: str, name: str) -> bool:
    """Flip a bit at the end of a stored block of messages of ``origin``, in a topic with ``name`` in its own name.

    Nobody may have the store open. Return False if there is no such block.
    """
    with lmdb.open(str(data / LOG), max_dbs=100, map_size=1 << 32) as env:
        topics, blocks = env.open_db(b"topics", create=False), env.open_db(b"blocks", create=False)
        with env.begin(write=True) as txn:
            ids = {
                int(json.loads(record)["id"]) for topic, record in txn.cursor(topics) if name in bytes(topic).decode()
            }
            for key, value in txn.cursor(blocks):
                header = parse_row(value).header
                mine = int.from_bytes(key[:4], "big") in ids
                if mine and header.origin == origin and header.kind is BlockKind.MESSAGES:
                    return txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=blocks)
    return False
