"""A worker on an older store ends with exit status 2, by the command that users run: at its start, and while it runs.

Invariants (DESIGN §3): 13, an older store never serves. ``test_lost_disk.py`` has the ways on, in one process.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from backup_support import ORDERS, Mesh, numbered, publish
from failover_support import deployment
from lost_disk_support import NOWHERE

END_SECONDS_MAX = 60
"""Longest wait for the end of a worker. It asks its peers every five seconds."""


def test_a_worker_on_an_older_store_ends_with_status_2_at_its_start_and_while_it_runs(tmp_path: Path) -> None:
    databases = dict.fromkeys("AB", NOWHERE)
    with deployment(tmp_path, "A", "B", links="[{between: [A, B]}]", databases=databases, kind=Mesh) as mesh:
        asyncio.run(publish(mesh.client_url("A"), numbered("a", 0, 10)))
        mesh.until(lambda: mesh.messages("B", ORDERS) == 10, "copies")
        mesh.until(lambda: "A" in mesh.status("B")["stores"], "B knows A's store")
        mesh.kill("A")
        mesh.data("A").rename(tmp_path / "old")
        mesh.start("A")  # its volume was not mounted
        mesh.until(lambda: mesh.status("B")["stores"]["A"]["earlier"], "B knows the newer store")
        mesh.kill("A")
        mesh.data("A").rename(tmp_path / "new")
        (tmp_path / "old").rename(mesh.data("A"))

        said = " ".join(mesh.start_refused("A").split())
        assert "has an older store of A" in said
        assert "B knows a newer one" in said
        reclaim = "replicator backup reclaim -f FILE --cluster A --from-directory"
        assert said.count(reclaim) == 2, "two ways on"

        mesh.kill("B")
        mesh.start("A")  # nobody is there to tell
        worker = mesh._processes.pop("A")
        mesh.start("B")
        ended = worker.wait(END_SECONDS_MAX)
        said = " ".join((tmp_path / "A.log").read_text().split())
        assert ended == 2, said[-3000:]
        assert "another store took the place of this one" in said
        assert "has an older store of A" in said
