"""Steps of operators: topics, retention, links, workers, failovers and lost disks."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

import forked_commands

from histories.judging import Violation
from histories.pauses import FAILOVER, UNPLANNED, Pause
from histories.settling import Settling
from histories.shapes import Shape
from histories.steps import PARTED
from histories.watch import REQUEST_SECONDS, patient
from replicator.failover.planned_run import LEASE_MS

COMMAND_SECONDS: Final = 90.0
HELD: Final = "already: wait for that to end"
"""Reason of a refusal: another command holds the fence of the source, or held it when it was killed."""
HELD_SECONDS: Final = 1.0
"""Pause before a failover that was refused so is run again."""
MAKES_ANEW: Final = re.compile(r"`replicator (topics create[^`]*)`")
"""Command in a refusal that makes a topic anew at a cluster that deleted it."""
LONG_TTL_SECONDS: Final = 3_600
UNAVAILABLE: Final = 3
"""Exit status of a command during which a worker went away."""


def links_of(shape: Shape, without: Collection[tuple[str, str]] = ()) -> str:
    """Return the links of a shape as text for a topology file. Leave out the links ``without``."""
    more = ", forward: true" if shape.forwards else ""
    links = (f"{{from: {link[0]}, to: {link[1]}{more}}}" for link in shape.links if link not in without)
    return f"[{', '.join(links)}]"


def failed(done: subprocess.CompletedProcess[str]) -> Violation:
    """Return a violation that says how a command failed, and what it printed."""
    said = done.stdout if len(done.stdout) <= 3_000 else f"{done.stdout[:1_500]} … {done.stdout[-1_500:]}"
    said += f" {done.stderr[-1_500:]}"
    return Violation(f"{' '.join(map(str, done.args))} ended with {done.returncode}: {said}")


class Operating(Settling):
    """Steps of operators. Each step tells the model what it did."""

    # Topics and links.

    async def compact(self, *, at: str, topic: str) -> None:
        """Compact a topic, and wait until that ends."""
        await self._admin(at, "PUT", f"{self._path(topic)}/compaction", allow=(404, 409))

        async def done() -> bool:
            found = await self._admin(at, "GET", f"{self._path(topic)}/compaction", allow=(404,))
            return found is None or found.get("status") != "RUNNING"

        await self._until(done, f"compaction of {topic} at {at}")

    async def retain_nothing(self, *, topic: str) -> None:
        """Set the retention of a topic to nothing, at every cluster that has the topic."""
        for name in self.shape.clusters:
            await self._retain_nothing_at(name, topic)
        self.model.trims(topic)

    async def _retain_nothing_at(self, at: str, topic: str) -> None:
        body = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        await self._ask(at, "POST", f"/admin/v2/persistent/{self._path(topic)}/retention", body, allow=(404,))

    async def retain_again(self, *, topic: str) -> None:
        """Take back :meth:`retain_nothing`: from now on, retention deletes nothing."""
        for name in self.shape.clusters:
            await self._admin(name, "DELETE", f"{self._path(topic)}/retention", allow=(404,))
        self.model.keeps(topic)

    async def set_ttl(self, *, topic: str, seconds: int) -> None:
        """Set the age at which messages of a topic count as consumed, at every cluster that has the topic; 0 removes
        it. No history takes an hour, so such an age must change nothing."""
        short = 0 < seconds < LONG_TTL_SECONDS
        if short:
            self.model.ages(topic, may=True)
        for name in self.shape.clusters:
            path = f"{self._path(topic)}/messageTTL"
            if seconds:
                await self._admin(name, "POST", f"{path}?messageTTL={seconds}", allow=(404,))
            else:
                await self._admin(name, "DELETE", path, allow=(404,))
        if not short and self.model.topic(topic).ages:
            self.model.ages(topic, may=False)

    async def trim(self, *, at: str, topic: str) -> None:
        """Have retention check a topic now. Messages that are too old count as consumed. Retention deletes the messages
        that it need not keep. The check is one whole (:data:`histories.edits.WHOLE_PASS`)."""
        await self._admin(at, "POST", f"{self._path(topic)}/trim", allow=(404,))

    async def grow(self, *, at: str, to: int) -> None:
        """Give the topic with partitions more of them, and wait until other clusters have them, too.

        Make the topic if there is none. Do the same at each cluster to which no link tells it.
        """
        path = f"/admin/v2/persistent/{self._path(PARTED)}/partitions"
        others = [name for name in self.shape.clusters if name != at]
        if self.model.partitions:
            await self._ask(at, "POST", path, to)
        else:
            await self._ask(at, "PUT", path, to)

        for name in others:
            if self.shape.reaches(at, name):
                await self._until(partial(self._has_partitions, name, to), f"telling {name} of {to} partitions")
            elif self.model.partitions:
                await self._ask(name, "POST", path, to)
            else:
                await self._ask(name, "PUT", path, to)
        self.model.partitions = to

    async def _has_partitions(self, at: str, count: int) -> bool:
        found = await self._ask(at, "GET", f"/admin/v2/persistent/{self._path(PARTED)}/partitions", allow=(404,))
        return found is not None and found["partitions"] == count

    async def delete_topic(self, *, at: str, topic: str) -> None:
        """Delete a topic at one cluster, with its subscriptions there."""
        await self._forget_producers(at)
        await self._admin(at, "DELETE", f"{self._path(topic)}?force=true", allow=(404,))
        self.model.topic_deleted(topic, at)

    async def pause(self, *, source: str, to: str) -> None:
        """Pause a link."""
        await self._link(source, f"{source}>{to}", "pause")
        self.model.paused.add((source, to))

    async def resume(self, *, source: str, to: str) -> None:
        """Let a paused link go on, or put a link that was taken away into the topology again."""
        if (source, to) in self.model.dropped:
            self.model.dropped.discard((source, to))
            await self._change_links()
        else:
            await self._link(source, f"{source}>{to}", "resume")
        self.model.paused.discard((source, to))
        self.model.held.pop((source, to), None)

    async def drop_link(self, *, source: str, to: str) -> None:
        """Take a link out of the topology, while all workers run."""
        self.model.dropped.add((source, to))
        self.model.paused.add((source, to))
        await self._change_links()

    async def _change_links(self) -> None:
        """Write the topology without the links that were taken away, and let all workers that run read it."""
        self.regions.write(links_of(self.shape, without=self.model.dropped))
        await self._reload([name for name in self.shape.clusters if name not in self.model.down])

    async def _reload(self, names: Collection[str]) -> None:
        """Let workers read the topology file."""
        for name in names:
            await self._ask(name, "POST", "/replication/v1/topology/reload", {})

    async def join(self, *, at: str, starts_first: bool) -> None:
        """Add a cluster to the topology, with links from and to each other one.

        Its worker starts before or after the other ones read the topology.
        """
        others = self.shape.clusters
        self.model.joined()
        self.regions.add(at)
        self.regions.write(links_of(self.shape))
        if starts_first:
            await asyncio.to_thread(self.regions.start, at)
        await self._reload(others)
        if not starts_first:
            await asyncio.to_thread(self.regions.start, at)
        if self.model.partitions:
            await self._until(partial(self._has_partitions, at, self.model.partitions), f"telling {at} of partitions")

    # Workers.

    async def stop(self, *, at: str) -> None:
        """Stop a worker in good order."""
        await self._leave(at)
        await asyncio.to_thread(self.regions.stop_one, at)
        self.model.down.add(at)

    async def kill(self, *, at: str) -> None:
        """Kill a worker by SIGKILL."""
        self.regions.kill(at)
        self.model.down.add(at)
        await self._leave(at)

    async def start(self, *, at: str) -> None:
        """Start a worker that was stopped or killed.

        Let it connect to its database again first: a worker that starts takes a refusal by the database for a wrong
        setting.
        """
        if at in self.model.without_postgres:
            await self.postgres_back(at=at)
        await asyncio.to_thread(self.regions.start, at)
        self.model.down.discard(at)

    async def fail_over(self, *, source: str, to: str, meanwhile: str | None = None, topic: str = "") -> None:
        """Move the clients of a cluster by a planned failover, which leaves nothing behind.

        ``meanwhile`` says what happens before the new epoch is written. See :meth:`_in_the_middle`. If the failover
        fails by that, run it again: then it must succeed.
        """
        await self._leave(source)
        await self._end_gaps()
        words = ("failover", "--from", source, "--to", to, "--planned")
        if meanwhile is not None:
            await self._in_the_middle(FAILOVER, words, source, to, meanwhile, topic)
        if meanwhile is None or not await self._serves(to, source):
            await self._switch(*words)
        self.model.failed_over(source, to, planned=True)

    async def _end_gaps(self) -> None:
        """Settle the clusters if a topic was deleted, because a deletion makes gaps of links.

        Until a gap is ended, the link's destination lacks messages, and a failover or failback to it is refused.
        """
        if any(topic.void for topic in self.model.topics.values()):
            await self.settle()

    async def _switch(self, *words: str) -> None:
        """Run a planned failover or a failback as an operator does: what a refusal advises is done, and the command is
        run again.

        Where a command was killed, the source holds its fence for a while, and a failover is refused until then. Where
        a cluster deleted a topic, a refusal names the command that makes the topic anew.
        """
        deadline = time.monotonic() + LEASE_MS / 1000 + patient(REQUEST_SECONDS)
        while (done := await self._run(*words)).returncode:
            if time.monotonic() > deadline:
                raise failed(done)
            if HELD in done.stdout:
                await asyncio.sleep(HELD_SECONDS)
            elif advised := MAKES_ANEW.findall(done.stdout):
                for command in dict.fromkeys(advised):
                    await self._make_anew_as_advised(command)
                await self.settle()  # what is trimmed elsewhere makes a gap
            else:
                raise failed(done)

    async def _make_anew_as_advised(self, command: str) -> None:
        *words, name = command.split()
        own = self._full("")
        if not name.startswith(own):
            raise Violation(f"a switch waits for {name}, a topic of an earlier history")
        words[words.index("FILE")] = str(self.regions.file)
        done = await asyncio.to_thread(forked_commands.run, *words, name, cwd=self.regions.path)
        if done.returncode:
            raise failed(done)
        self.model.made_anew(name.removeprefix(own), words[words.index("--cluster") + 1])

    async def dry_run(self, *, source: str, to: str) -> None:
        """Ask how many messages an unplanned failover would lose, and judge the answer."""
        answer = await self._command("failover", "--from", source, "--to", to, "--unplanned", "--dry-run")
        self.model.judge_dry_run(source, to, answer["not_received"])

    async def fail_over_dead(self, *, source: str, to: str, meanwhile: str | None = None, topic: str = "") -> None:
        """Kill a cluster, and move its clients by an unplanned failover.

        ``meanwhile`` says what happens once the new epoch is written and no other cluster is told of it. See
        :meth:`_in_the_middle`. The failover must count all the same.
        """
        await self.kill(at=source)
        words = ("failover", "--from", source, "--to", to, "--unplanned")
        if meanwhile is None:
            await self._command(*words)
        else:
            await self._in_the_middle(UNPLANNED, words, source, to, meanwhile, topic)
            if not await self._serves(to, source):
                raise Violation(f"{to} wrote that it serves the clients of {source}, and does not say so any more")
        self.model.failed_over(source, to, planned=False)

    async def _in_the_middle(
        self, point: str, words: Sequence[str], source: str, to: str, meanwhile: str, topic: str
    ) -> None:
        """Run a failover, and do what ``meanwhile`` says at ``point`` in its middle.

        * "command": kill the operator's command.
        * "target" or "source": kill that cluster's worker, if it runs, and start it.
        * "trim at target" or "trim at source": have retention check ``topic`` at that cluster.
        * "delete_topic at target" or "delete_topic at source": delete ``topic`` at that cluster.

        Nothing is trimmed or deleted at a source that does not run.
        """
        pause = Pause(point)
        command = self._begin(*words)
        try:
            await asyncio.to_thread(pause.wait, lambda: command.poll() is not None)
            if meanwhile == "command":
                command.kill()
            else:
                step, _, where = meanwhile.rpartition(" at ")
                worker = {"source": source, "target": to}[where]
                if step and worker not in self.model.down:
                    await getattr(self, step)(at=worker, topic=topic)
                elif not step:
                    if worker not in self.model.down:
                        await self.kill(at=worker)
                    await self.start(at=worker)
        finally:
            pause.end()
        await asyncio.to_thread(command.wait, patient(COMMAND_SECONDS))

    async def _serves(self, to: str, source: str) -> bool:
        """Return whether ``to`` says that it serves the clients of ``source``."""
        return source in (await self._ask(to, "GET", "/failover/v1/state"))["serves"]

    def _begin(self, *words: str) -> forked_commands.Forked:
        """Start a ``replicator`` command as a process, which writes to ``command.log``. Return the process."""
        log = self.regions.path / "command.log"
        given = (*words, "-f", str(self.regions.file), "--output", "json")
        return forked_commands.start(given, cwd=self.regions.path, stdout=log, stderr=log)

    async def fail_back(self, *, to: str) -> None:
        """Let a cluster serve its own clients again."""
        for name in self.shape.clusters:
            await self._leave(name)
        await self._end_gaps()
        await self._switch("failback", "--to", to)
        self.model.failed_back(to)

    async def postgres_away(self, *, at: str) -> None:
        """End all connections of a worker to its database, and refuse new ones."""
        await asyncio.to_thread(self.regions.allow_database, at, allowed=False)
        self.model.without_postgres.add(at)

    async def postgres_back(self, *, at: str) -> None:
        """Let a worker connect to its database again."""
        await asyncio.to_thread(self.regions.allow_database, at, allowed=True)
        self.model.without_postgres.discard(at)

    async def _command(self, *words: str) -> Any:
        """Run a command as an operator does. It must succeed."""
        done = await self._run(*words)
        if done.returncode:
            raise failed(done)
        return json.loads(done.stdout) if done.stdout.strip() else None

    async def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        given = (*words, "-f", str(self.regions.file), "--output", "json")
        return await asyncio.to_thread(
            partial(forked_commands.run, *given, cwd=self.regions.path, timeout=patient(COMMAND_SECONDS))
        )
