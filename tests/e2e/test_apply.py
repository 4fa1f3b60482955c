"""``replicator apply`` and ``plan`` over HTTP: all workers take a topology, or none does."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import forked_commands
from aiohttp import web
from topology_files import topology_of, write

from replicator.api.errors import report_errors
from replicator.api.topology import add_topology
from replicator.drills.ports import free_ports
from replicator.operating.rollout import _resolved, ask_workers
from replicator.topology import Link, SyncSettings, Topology, load_topology
from replicator.topology.diff import diff_of_worker, digest, portable_text
from replicator.topology.reader import parse_topology
from replicator.worker.reload import TopologyReloader

NAMES = ("us-east", "eu-west", "ap-south")


@dataclass
class Served:
    """The topology endpoints of a worker, on its address, over a file of its own."""

    cluster: str
    file: Path
    ran: list[Topology] = field(default_factory=list)
    reloader: TopologyReloader = field(init=False)
    runner: web.AppRunner = field(init=False)

    async def start(self) -> None:
        topology = load_topology(self.file)
        self.reloader = TopologyReloader(self.cluster, topology, self._carry_out)
        self.reloader.ready()
        app = web.Application(middlewares=[report_errors])
        add_topology(app, self)
        self.runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", topology.cluster(self.cluster).port, reuse_address=True).start()

    async def _carry_out(self, topology: Topology) -> None:
        self.ran.append(topology)

    def topology_status(self) -> dict[str, Any]:
        return {"cluster": self.cluster, **self.reloader.status(), "text": self.reloader.text()}

    async def reload_file(self, *, expected: str | None = None, dry_run: bool = False) -> list[str]:
        return await self.reloader.reload_file(expected=expected, dry_run=dry_run)


@asynccontextmanager
async def serving_all(root: Path, topology: Topology, *names: str) -> AsyncIterator[dict[str, Served]]:
    """A worker for each of ``names``, with a file of its own that holds ``topology``."""
    workers: dict[str, Served] = {}
    try:
        for name in names:
            write(topology, root / name / "topology.yaml")
            workers[name] = Served(name, root / name / "topology.yaml")
            await workers[name].start()
        yield workers
    finally:
        for worker in workers.values():
            await worker.runner.cleanup()


async def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(forked_commands.run, *arguments, cwd=cwd, timeout=60)


def runs(workers: Mapping[str, Served]) -> dict[str, int]:
    return {name: len(worker.ran) for name, worker in workers.items()}


def faster(topology: Topology) -> Topology:
    return replace(topology, sync=SyncSettings(update_interval_ms=50))


def test_all_workers_take_a_file_that_was_distributed(tmp_path: Path) -> None:
    async def main() -> None:
        before = topology_of(tmp_path, *NAMES)
        async with serving_all(tmp_path, before, *NAMES) as workers:
            after = write(replace(faster(before), links=before.links[1:]), tmp_path / "topology.yaml")
            for worker in workers.values():
                write(after, worker.file)
            planned = await command("plan", "-f", "topology.yaml", cwd=tmp_path)
            assert "link us-east → eu-west: removed" in planned.stdout, planned.stderr
            assert "sync.update_interval_ms: 5 → 50" in planned.stdout
            done = await command("apply", "-f", "topology.yaml", "--yes", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert "us-east: link us-east → eu-west: removed; sync.update_interval_ms: 5 → 50" in done.stdout
            assert "ap-south: sync.update_interval_ms: 5 → 50" in done.stdout
            assert runs(workers) == dict.fromkeys(NAMES, 1)
            again = await command("apply", "-f", "topology.yaml", "--yes", cwd=tmp_path)
            assert (again.returncode, runs(workers)) == (0, dict.fromkeys(NAMES, 1))
            assert "Changes: none" in again.stdout

    asyncio.run(main())


def test_a_worker_that_reads_another_text_keeps_all_from_changing(tmp_path: Path) -> None:
    async def main() -> None:
        before = topology_of(tmp_path, *NAMES)
        async with serving_all(tmp_path, before, *NAMES) as workers:
            after = write(faster(before), tmp_path / "topology.yaml")
            for name in ("us-east", "ap-south"):
                write(after, workers[name].file)
            done = await command("apply", "-f", "topology.yaml", "--yes", cwd=tmp_path)
            assert done.returncode == 2, done.stdout
            assert "error: eu-west: the topology file " in done.stderr
            assert " of the worker of eu-west is another than the one to apply" in done.stderr
            assert "copy the same file to every worker first" in done.stderr
            assert runs(workers) == dict.fromkeys(NAMES, 0)

    asyncio.run(main())


def test_a_worker_that_is_down_keeps_all_from_changing_unless_it_is_to_be_skipped(tmp_path: Path) -> None:
    async def main() -> None:
        before = topology_of(tmp_path, *NAMES)
        async with serving_all(tmp_path, before, "us-east", "eu-west") as workers:
            after = write(faster(before), tmp_path / "topology.yaml")
            for worker in workers.values():
                write(after, worker.file)
            done = await command("apply", "-f", "topology.yaml", "--yes", cwd=tmp_path)
            assert done.returncode == 3, done.stdout
            address = before.cluster("ap-south").address
            assert f"error: workers do not answer: ap-south: {address}: connection refused" in done.stderr
            assert runs(workers) == {"us-east": 0, "eu-west": 0}
            done = await command("apply", "-f", "topology.yaml", "--yes", "--skip-unreachable", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert runs(workers) == {"us-east": 1, "eu-west": 1}

    asyncio.run(main())


def test_without_any_worker_there_is_nobody_to_ask(tmp_path: Path) -> None:
    async def main() -> None:
        write(topology_of(tmp_path, *NAMES), tmp_path / "topology.yaml")
        for more in ([], ["--skip-unreachable"]):
            done = await command("apply", "-f", "topology.yaml", "--yes", *more, cwd=tmp_path)
            assert done.returncode == 3
            assert done.stderr.count("connection refused") == 3

    asyncio.run(main())


def test_one_that_needs_a_restart_keeps_all_from_changing_and_is_found_at_its_old_address(tmp_path: Path) -> None:
    async def main() -> None:
        before = topology_of(tmp_path, *NAMES)
        async with serving_all(tmp_path, before, *NAMES) as workers:
            moved = before.clusters[1].model_copy(update={"address": f"127.0.0.1:{free_ports(1)[0]}"})
            after = replace(faster(before), clusters=(before.clusters[0], moved, before.clusters[2]))
            write(after, tmp_path / "topology.yaml")
            for worker in workers.values():
                write(after, worker.file)
            done = await command("apply", "-f", "topology.yaml", "--yes", cwd=tmp_path)
            assert done.returncode == 2, done.stdout
            assert "error: eu-west: clusters.eu-west.address: " in done.stderr
            assert "restart" in done.stdout
            assert runs(workers) == dict.fromkeys(NAMES, 0)

    asyncio.run(main())


def test_a_new_cluster_need_not_run_yet_and_one_that_is_removed_is_not_asked(tmp_path: Path) -> None:
    async def main() -> None:
        before = topology_of(tmp_path, "us-east", "eu-west", "old")
        async with serving_all(tmp_path, before, "us-east", "eu-west", "old") as workers:
            new = topology_of(tmp_path, "ap-south").clusters[0]
            after = replace(before, clusters=(*before.clusters[:2], new), links=(Link("us-east", "ap-south"),))
            write(after, tmp_path / "topology.yaml")
            for worker in workers.values():
                write(after, worker.file)
            done = await command("apply", "-f", "topology.yaml", "--yes", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert f"cluster ap-south: added, at {new.address}" in done.stdout
            assert "To be started: the worker of ap-south" in done.stdout
            assert "To be stopped: the worker of old" in done.stdout
            assert runs(workers) == {"us-east": 1, "eu-west": 1, "old": 0}

    asyncio.run(main())


def test_nothing_is_changed_without_somebody_who_says_yes(tmp_path: Path) -> None:
    async def main() -> None:
        before = topology_of(tmp_path, "us-east", "eu-west")
        async with serving_all(tmp_path, before, "us-east", "eu-west") as workers:
            after = write(faster(before), tmp_path / "topology.yaml")
            for worker in workers.values():
                write(after, worker.file)
            done = await command("apply", "-f", "topology.yaml", cwd=tmp_path)
            assert done.returncode == 2
            assert "give --yes" in done.stderr
            assert await at_terminal(tmp_path, "n\n") == 1
            assert runs(workers) == {"us-east": 0, "eu-west": 0}
            assert await at_terminal(tmp_path, "y\n") == 0
            assert runs(workers) == {"us-east": 1, "eu-west": 1}

    asyncio.run(main())


async def at_terminal(path: Path, typed: str) -> int:
    """Run ``apply`` with a person at a terminal; return its exit status."""
    person, terminal = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "replicator.cli", "apply", "-f", "topology.yaml"),
            cwd=path,
            stdin=terminal,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.write(person, typed.encode())
        return await process.wait()
    finally:
        os.close(person)
        os.close(terminal)


def test_scripts_get_what_changed_as_json_and_no_password(tmp_path: Path) -> None:
    async def main() -> None:
        before = topology_of(tmp_path, "us-east", "eu-west", database="postgresql://u:secret@127.0.0.1:1/d")
        async with serving_all(tmp_path, before, "us-east", "eu-west") as workers:
            same = await ask_workers(load_topology(write(before, tmp_path / "topology.yaml").path or Path()))
            assert (same.nothing_to_do, same.changes()) == (True, [])
            after = write(faster(before), tmp_path / "topology.yaml")
            for worker in workers.values():
                write(after, worker.file)
            planned = await command("plan", "-f", "topology.yaml", "-o", "json", cwd=tmp_path)
            (group,) = json.loads(planned.stdout)["rollout"]["changes"]
            assert group["workers"] == ["us-east", "eu-west"]
            (change,) = group["changes"]
            assert (change["kind"], change["field"], change["before"], change["after"]) == (
                "setting-changed",
                "update_interval_ms",
                5,
                50,
            )
            done = await command("apply", "-f", "topology.yaml", "--yes", "-o", "json", cwd=tmp_path)
            answer = json.loads(done.stdout)
            assert (answer["applied"], answer["digest"]) == (True, digest(after))
            assert answer["workers"]["us-east"]["changed"] == ["sync.update_interval_ms: 5 → 50"]
            assert "secret" not in planned.stdout + planned.stderr + done.stdout + done.stderr

    asyncio.run(main())


def relative(topology: Topology) -> str:
    """The text of a topology whose data directories lie beside its file."""
    clusters = "".join(
        f"  {each.name}: {{address: '{each.address}', data: data/{each.name}}}\n" for each in topology.clusters
    )
    return f"clusters:\n{clusters}links: [{{between: [us-east, eu-west]}}]\npipeline: {{engine: embedded}}\n"


def in_folder(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "topology.yaml"
    file.write_text(text)
    return file


@asynccontextmanager
async def serving_in(folder: Path, text: str) -> AsyncIterator[dict[str, Served]]:
    """Two workers that were started with one file."""
    file = in_folder(folder, text)
    workers = {name: Served(name, file) for name in ("us-east", "eu-west")}
    try:
        for worker in workers.values():
            await worker.start()
        yield workers
    finally:
        for worker in workers.values():
            await worker.runner.cleanup()


def test_the_same_text_in_another_folder_has_other_data_directories_and_is_not_what_runs(tmp_path: Path) -> None:
    async def main() -> None:
        text = relative(topology_of(tmp_path, "us-east", "eu-west"))
        async with serving_in(tmp_path / "one", text) as workers:
            there = in_folder(tmp_path / "one", text)
            other = in_folder(tmp_path / "two", text)
            link = tmp_path / "link"
            link.symlink_to(there.parent)
            for same in (there, link / "topology.yaml"):
                planned = await command("plan", "-f", str(same), cwd=tmp_path)
                assert "Changes: none; the workers run it already." in planned.stdout, planned.stdout + planned.stderr
                assert (await command("apply", "-f", str(same), cwd=tmp_path)).returncode == 0
            planned = await command("plan", "-f", str(other), cwd=tmp_path)
            assert "run it already" not in planned.stdout
            wrapped = f"data: {tmp_path}/one/data/us-east → {tmp_path}/two/data/us-east"
            assert "".join(wrapped.split()) in "".join(planned.stdout.split())
            done = await command("apply", "-f", str(other), "--yes", "-o", "json", cwd=tmp_path)
            answer = json.loads(done.stdout)
            assert (done.returncode, answer["applied"]) == (2, False)
            assert [answer["running"][name]["same"] for name in workers] == [False, False]
            assert f"reads another value in {there}" in answer["problems"][0]
            assert runs(workers) == {"us-east": 0, "eu-west": 0}

    asyncio.run(main())


def test_a_data_directory_that_was_changed_in_the_workers_file_is_no_topology_that_runs(tmp_path: Path) -> None:
    async def main() -> None:
        before = topology_of(tmp_path, "us-east", "eu-west")
        async with serving_all(tmp_path, before, "us-east", "eu-west") as workers:
            east, west = before.clusters
            after = replace(before, clusters=(east.model_copy(update={"data": tmp_path / "moved"}), west))
            write(after, tmp_path / "topology.yaml")
            undistributed = await command("apply", "-f", "topology.yaml", "--yes", cwd=tmp_path)
            assert undistributed.returncode == 2
            assert "us-east: cluster us-east: data:" in undistributed.stderr
            assert "reads another value in" in undistributed.stderr
            for worker in workers.values():
                write(after, worker.file)
            distributed = await command("apply", "-f", "topology.yaml", "--yes", cwd=tmp_path)
            assert distributed.returncode == 2
            assert "needs a restart of the worker of us-east" in distributed.stderr
            assert runs(workers) == {"us-east": 0, "eu-west": 0}

    asyncio.run(main())


def test_on_another_machine_a_folder_may_have_another_name_and_an_absolute_path_may_not(tmp_path: Path) -> None:
    text = "clusters: {a: {address: 'h:1', data: data, tls: {certificate: tls/c, key: /k}}}\n"
    ours = parse_topology(text, tmp_path / "topology.yaml")
    theirs = _resolved(
        portable_text(parse_topology(text, Path("/etc/x/t.yaml"))), "/etc/x/t.yaml", ours.path or Path(), "192.0.2.1:1"
    )
    assert diff_of_worker(theirs, ours, "a") == ()
    elsewhere = parse_topology(text.replace("data: data", "data: /data"), tmp_path / "topology.yaml")
    (change,) = diff_of_worker(theirs, elsewhere, "a")
    assert (change.field, change.after, change.in_digest) == ("data", "/data", False)


def test_a_link_to_the_workers_file_in_another_folder_has_other_data_directories(tmp_path: Path) -> None:
    text = "clusters: {a: {address: '127.0.0.1:1', data: data}}\n"
    file = in_folder(tmp_path / "one", text)
    (tmp_path / "two").mkdir()
    link = tmp_path / "two" / file.name
    link.symlink_to(file)
    for theirs, ours in ((file, link), (link, file)):
        running = _resolved(portable_text(load_topology(theirs)), str(theirs), ours, "127.0.0.1:1")
        (change,) = diff_of_worker(running, load_topology(ours), "a")
        assert (change.before, change.after) == (str(theirs.parent / "data"), str(ours.parent / "data"))


def test_the_endpoint_refuses_what_is_no_request_of_a_reload(tmp_path: Path) -> None:
    import aiohttp

    async def main() -> None:
        before = topology_of(tmp_path, "us-east")
        async with serving_all(tmp_path, before, "us-east") as workers, aiohttp.ClientSession() as session:
            url = f"http://{before.clusters[0].address}/replication/v1/topology/reload"
            for body in (b"[]", b"{", b'{"digest": 1}', b'{"dry_run": "no"}', b"[" * 4000, b" " * 5000):
                async with session.post(url, data=body) as response:
                    assert (response.status, (await response.json())["error"]) == (400, "BadRequest"), body
            async with session.post(url) as response:
                assert (response.status, (await response.json())["changed"]) == (200, [])
            assert runs(workers) == {"us-east": 1}

    asyncio.run(main())
