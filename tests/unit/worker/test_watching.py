"""Files that change as Kubernetes changes them: by a symbolic link that leads elsewhere from one moment to the next."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import yaml
from engine_support import eventually

from replicator.topology import Topology, load_topology
from replicator.worker.watching import FileWatcher, files_to_watch


class Mounted:
    """A folder as a node mounts a ConfigMap: its files are links into a folder behind a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0
        folder.mkdir()

    def put(self, **files: str) -> None:
        self._versions += 1
        version = self.folder / f"..version-{self._versions}"
        version.mkdir()
        for name, text in files.items():
            (version / name).write_text(text)
            os.utime(version / name, (1, 1))  # times say nothing
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(Path("..data") / name)
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").replace(self.folder / "..data")


def text_of(batch: str = "10s", **of_us_east: object) -> str:
    clusters = {
        "us-east": {"address": "127.0.0.1:7101", "data": "./us", **of_us_east},
        "eu-west": {"address": "127.0.0.1:7102", "data": "./eu", "tls": {"certificate": "eu.crt", "key": "eu.key"}},
    }
    return yaml.safe_dump({"clusters": clusters, "pipeline": {"batch": batch}})


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path / "mounted")


def loaded(mounted: Mounted) -> Topology:
    return load_topology(mounted.folder / "topology")


def test_a_file_that_was_exchanged_is_seen_once(mounted: Mounted) -> None:
    async def main() -> None:
        changed = asyncio.Event()
        mounted.put(topology=text_of())
        watcher = FileWatcher("us-east", changed)
        await watcher.look(loaded(mounted))
        await watcher.look(loaded(mounted))
        assert not changed.is_set()
        mounted.put(topology=text_of("5s"))
        await watcher.look(loaded(mounted))
        assert changed.is_set()
        changed.clear()
        await watcher.look(loaded(mounted))
        assert not changed.is_set()

    asyncio.run(main())


def test_the_same_content_is_no_change(mounted: Mounted) -> None:
    async def main() -> None:
        changed = asyncio.Event()
        watcher = FileWatcher("us-east", changed)
        for _ in range(2):
            mounted.put(topology=text_of())
            await watcher.look(loaded(mounted))
        assert not changed.is_set()

    asyncio.run(main())


def test_certificates_and_keys_of_this_worker_are_looked_at_and_no_others(mounted: Mounted, tmp_path: Path) -> None:
    tls = {"certificate": str(tmp_path / "us.crt"), "key": str(tmp_path / "us.key"), "ca": str(tmp_path / "ca.crt")}
    auth = {"tokens": {"public_key": str(tmp_path / "public.pem")}, "passwords": str(tmp_path / "htpasswd")}
    document = yaml.safe_load(text_of(tls=tls))
    document["auth"] = {**auth, "superusers": ["operator"], "token_file": str(tmp_path / "token")}
    mounted.put(topology=yaml.safe_dump(document))
    names = {path.name for path in files_to_watch(loaded(mounted), "us-east")}
    assert names == {"topology", "us.crt", "us.key", "ca.crt", "public.pem", "htpasswd"}

    async def main() -> None:
        changed = asyncio.Event()
        watcher = FileWatcher("us-east", changed)
        await watcher.look(loaded(mounted))
        (tmp_path / "us.crt").write_text("one")  # it was not there: what cannot be read is a content too
        await watcher.look(loaded(mounted))
        assert changed.is_set()
        changed.clear()
        (mounted.folder / "eu.crt").write_text("other")
        await watcher.look(loaded(mounted))
        assert not changed.is_set()

    asyncio.run(main())


def test_files_that_a_reload_brings_are_no_change_of_what_was_read(mounted: Mounted, tmp_path: Path) -> None:
    async def main() -> None:
        changed = asyncio.Event()
        watcher = FileWatcher("us-east", changed)
        mounted.put(topology=text_of())
        await watcher.look(loaded(mounted))
        mounted.put(topology=text_of(tls={"certificate": str(tmp_path / "us.crt"), "key": str(tmp_path / "us.key")}))
        await watcher.look(loaded(mounted))
        assert not changed.is_set()

    asyncio.run(main())


def test_it_looks_again_and_again_until_it_is_stopped(mounted: Mounted) -> None:
    async def main() -> None:
        changed = asyncio.Event()
        mounted.put(topology=text_of())
        topology = loaded(mounted)
        watcher = FileWatcher("us-east", changed, look_seconds=0.01)
        await watcher.look(topology)
        task = asyncio.get_running_loop().create_task(watcher.run(lambda: topology))
        for batch in ("5s", "6s"):
            mounted.put(topology=text_of(batch))
            await eventually(changed.is_set)
            changed.clear()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
