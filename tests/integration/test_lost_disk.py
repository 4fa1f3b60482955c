"""A worker whose disk was lost heals itself at its start, and an older store never serves.

Invariants (DESIGN §3): 2, 3, 5, 10, 12 and 13. Real workers as processes, started as a user starts them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked_commands
import pytest
from backup_support import MESH, ORDERS, Mesh, numbered, publish, take
from failover_support import deployment
from postgres_support import databases_of


class Losing(Mesh):
    """Clusters A, B and C, whose disks are lost."""

    def launch(self, *names: str, options: tuple[str, ...] = ()) -> None:
        """Start workers, and do not wait until they are ready."""
        for name in names:
            log = self.path / f"{name}.log"
            arguments = ("worker", "--cluster", name, "-f", "topology.yaml", *options)
            self._processes[name] = forked_commands.start(arguments, cwd=self.path, stdout=log, stderr=log)

    def readiness(self, name: str) -> tuple[int, Any]:
        """Return status and answer of ``/readyz``; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(self.url(name, "/readyz"), timeout=5) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    def ended(self, name: str) -> tuple[int, str]:
        """Return exit status and log of a worker that ends by itself."""
        status = self._processes.pop(name).wait(timeout=60)
        return status, (self.path / f"{name}.log").read_text()

    def started(self, name: str) -> Any:
        return self.status(name)["start"]

    def set_aside(self, name: str, to: str) -> Path:
        """Move the data directory of a worker that does not run."""
        place = self.path / to
        self.data(name).rename(place)
        return place


@pytest.fixture
def mesh(tmp_path: Path, postgres_server: str) -> Iterator[Losing]:
    with (
        databases_of("ABC", postgres_server, "lost") as databases,
        deployment(tmp_path, *databases, links=MESH, databases=databases, kind=Losing) as deployed,
    ):
        yield deployed


def filled(mesh: Mesh, count: int = 300) -> None:
    """Let each cluster publish, and half of what A published be consumed."""
    for name in "ABC":
        asyncio.run(publish(mesh.client_url(name), numbered(name.lower(), 0, count)))
    mesh.until(lambda: {mesh.messages(name) for name in "ABC"} == {3 * count}, "copies everywhere")
    asyncio.run(take(mesh.client_url("A"), count))
    mesh.until(lambda: mesh.agree("sub"), "the same state everywhere")


def test_a_lost_disk_heals_itself_at_the_next_start_and_nothing_is_lost_or_repeated(mesh: Losing) -> None:
    filled(mesh)
    left = mesh.unconsumed("B", "sub")
    mesh.lose("A")
    mesh.start("A")
    assert mesh.started("A")["how"] == "reclaimed"
    mesh.until(lambda: mesh.messages("A") == 900, "everything at A")
    mesh.until(lambda: mesh.agree("sub"), "the same state everywhere")
    assert mesh.unconsumed("A", "sub") == left, "nothing that was acknowledged is repeated"
    assert mesh.status("A")["restored"]["reclaimed_messages"] == 300
    assert mesh.status("A")["restored"]["lost"] == []
    asyncio.run(publish(mesh.client_url("A"), numbered("a", 300, 310)))
    mesh.until(lambda: {mesh.messages(name) for name in "ABC"} == {910}, "what is published since")
    assert [mesh.halted(name) for name in "ABC"] == [{}, {}, {}]
    mesh.verify()
    stores = mesh.status("B")["stores"]["A"]
    assert len(stores["earlier"]) == 1
    assert stores["since_ms"] is not None
    assert "A's store is a new one" in " ".join(mesh.command("status").stdout.split())
