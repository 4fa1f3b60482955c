"""Two workers that run on copies of one store."""

from __future__ import annotations

import asyncio
import shutil
import urllib.request
from typing import Any

import forked_commands
from backup_support import Mesh, numbered, publish

from replicator.drills.ports import free_ports


class Twins(Mesh):
    """Clusters A and B, and where wanted a second worker on a copy of A's directory."""

    def start_copy(self) -> None:
        """Copy A's directory as it is, and start a worker on the copy, elsewhere."""
        shutil.copytree(self.data("A"), self.path / "data-copy", ignore=shutil.ignore_patterns("postgres"))
        self.ports["copy"] = free_ports(1)[0]
        text = self.file.read_text()
        text = text.replace(f"127.0.0.1:{self.ports['A']}", f"127.0.0.1:{self.ports['copy']}")
        text = text.replace(self._databases["A"], self._databases["C"])
        (self.path / "copy.yaml").write_text(text.replace("data: data-A", "data: data-copy"))
        log = self.path / "copy.log"
        arguments = ("worker", "--cluster", "A", "-f", str(self.path / "copy.yaml"))
        self._processes["copy"] = forked_commands.start(arguments, cwd=self.path, stdout=log, stderr=log)
        self.wait_ready("copy")

    def run(self, name: str) -> Any:
        return self.get(name, "/replication/v1/status?topics=false")["run"]

    def answers_heard(self, name: str) -> int:
        """Return how many answers to snapshot requests a worker heard since its start."""
        return int(self.get(name, "/replication/v1/status?topics=false")["counters"]["responses"])

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self.url(name, "/metrics"), timeout=10) as response:
            lines = response.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith("replicator_store_twins{")).split()[-1])

    def links(self, verb: str, *arguments: str, status: int = 0) -> str:
        done = forked_commands.run("links", verb, "-f", "topology.yaml", *arguments, cwd=self.path)
        assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def part(self) -> None:
        """Let a copy of A take 30 messages, dismiss it, and let A take 10 more. Both have ended after that.

        A and B have 20 messages before, and B gets those that A takes.
        """
        self.until(lambda: self.messages("B") == 20, "messages at B")
        self.start_copy()
        self.until(lambda: self.run("copy")["twins"], "that they are twins")
        asyncio.run(publish(self.client_url("copy"), numbered("second", 0, 30)))
        self.links("stays", "--cluster", "A", "--run", self.run("A")["id"])
        self.kill("copy")
        self.kill("A")
        self.start("A")
        asyncio.run(publish(self.client_url("A"), numbered("third", 0, 10)))
        self.until(lambda: self.messages("B") == 30, "messages at B")
        self.kill("A")
