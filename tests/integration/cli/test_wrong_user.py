"""Commands on a directory that is not what they need: of another user, on a full disk, or of a volume that is not
mounted. Status 1 would say that something is damaged."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import forked_commands
import psycopg
import pytest
from backup_support import numbered, publish
from failover_support import Deployment, deployment
from sqlalchemy import make_url

NOBODY = 65_534

STORE_COMMANDS = (
    ("store", "check"),
    ("store", "repair"),
    ("store", "compact"),
    ("backup", "create", "--at", "backups", "--offline"),
    ("backup", "reclaim"),
    ("worker",),
)
RESTORE = ("backup", "restore", "--at", "backups", "--replace", "--no-reclaim")
PLACE_COMMANDS = (
    ("backup", "create", "-f", "topology.yaml", "-c", "A", "--offline", "--at"),
    ("backup", "list", "--at"),
    ("backup", "verify", "-c", "A", "--at"),
    ("backup", "prune", "-c", "A", "--keep", "1", "--at"),
    ("backup", "restore", "-c", "A", "--into", "into", "--at"),
)
"""Each is followed by the place."""


@pytest.fixture(scope="module")
def stopped(postgres_server: str) -> Iterator[Deployment]:
    """Give two clusters whose workers have stopped, and a backup of one."""
    path = Path(tempfile.mkdtemp(prefix="replicator-tests-users-"))
    path.chmod(0o755)
    try:
        url = make_url(postgres_server).set(database=f"users_{os.getpid()}")
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {url.database}")
        databases = dict.fromkeys("AB", url.render_as_string(hide_password=False))
        with deployment(path, "A", "B", links="[{between: [A, B]}]", databases=databases) as made:
            contents = [*numbered("m", 0, 20), os.urandom(1_000_000)]  # the last one lies in a segment
            asyncio.run(publish(made.client_url("A"), contents, batching_enabled=False))
            made.stop()
            done = run(path, "backup", "create", "-f", "topology.yaml", "-c", "A", "--at", "backups", "--offline")
            assert done.returncode == 0, done.stderr
            yield made
    finally:
        shutil.rmtree(path)


def run(path: Path, *arguments: str, unprivileged: bool = False) -> subprocess.CompletedProcess[str]:
    return forked_commands.run(*arguments, cwd=path, unprivileged=unprivileged)


@contextmanager
def of_another_user(*paths: Path) -> Iterator[None]:
    """These and all in them are of another user, who lets nobody else in."""
    files = [each for path in paths for each in (path, *path.rglob("*"))]
    modes = [(each, each.lstat().st_mode) for each in files]
    try:
        for each, mode in modes:
            if not stat.S_ISSOCK(mode):
                os.chown(each, NOBODY, NOBODY)
                each.chmod(0o700 if stat.S_ISDIR(mode) else 0o600)
        yield
    finally:
        for each, mode in modes:
            os.chown(each, 0, 0)
            each.chmod(stat.S_IMODE(mode))


def on_store(command: Sequence[str]) -> tuple[str, ...]:
    """The command about the store of cluster A."""
    return (*command, "-f", "topology.yaml", "--cluster", "A")


def assert_one_line(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr.replace("\n", " "), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("command", STORE_COMMANDS, ids=" ".join)
@pytest.mark.parametrize("closed", ["data", "log", "segments", "files", "segment", "lock"])
def test_a_store_of_another_user_is_refused_with_status_2_and_nothing_is_called_damaged(
    stopped: Deployment, command: Sequence[str], closed: str
) -> None:
    log = stopped.path / "data-A" / "log"
    chosen = {
        "data": [log.parent],
        "log": [log],
        "segments": [log / "segments"],
        "files": [each for each in log.iterdir() if each.is_file()],
        "segment": [*(log / "segments").iterdir()],
        "lock": [log.parent / "worker.lock"],
    }
    with of_another_user(*chosen[closed]):
        done = run(stopped.path, *on_store(command), unprivileged=True)
    assert_one_line(done, 2, "ermission")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize(("closed", "status"), [("", 2), ("log", 3), ("worker.lock", 2)])
def test_a_restore_over_the_store_of_another_user_leaves_it_as_it_was(
    stopped: Deployment, closed: str, status: int
) -> None:
    data = stopped.path / "data-A"
    before = sorted(each.name for each in data.iterdir())
    with of_another_user(data / closed):
        done = run(stopped.path, *on_store(RESTORE), unprivileged=True)
    assert_one_line(done, status, "ermission denied")
    assert sorted(each.name for each in data.iterdir()) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("command", PLACE_COMMANDS, ids=lambda each: each[1])
def test_a_place_of_another_user_is_refused_with_status_3(stopped: Deployment, command: Sequence[str]) -> None:
    with of_another_user(stopped.path / "backups"):
        assert_one_line(run(stopped.path, *command, "backups", unprivileged=True), 3, "Permission denied")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_scratch_directory_of_another_user_is_refused_with_status_2(stopped: Deployment) -> None:
    scratch = stopped.path / "scratch"
    scratch.mkdir()
    verify = ("backup", "verify", "-c", "A", "--at", "backups", "--scratch", "scratch")
    with of_another_user(scratch):
        assert_one_line(run(stopped.path, *verify, unprivileged=True), 2, "Permission denied")


@pytest.mark.parametrize("command", [*STORE_COMMANDS, RESTORE], ids=" ".join)
@pytest.mark.parametrize("database", ["embedded", "beside"])
def test_a_data_directory_whose_volume_is_not_mounted_is_refused_and_not_made(
    stopped: Deployment, command: Sequence[str], database: str
) -> None:
    """The link leads into a volume that is not there. A worker that made the target would begin with an empty store."""
    data, volume, kept = stopped.path / "data-A", stopped.path / "volume", stopped.path / "kept"
    topology = stopped.path / "topology.yaml"
    text = topology.read_text()
    data.rename(kept)
    data.symlink_to(volume / "deep")
    try:
        if database == "embedded":
            topology.write_text(text.replace(stopped._databases["A"], "embedded"))
        assert_one_line(run(stopped.path, *on_store(command)), 2, "is a symbolic link to", "mount its volume")
        assert not volume.exists()
    finally:
        topology.write_text(text)
        data.unlink()
        kept.rename(data)


def test_a_data_directory_below_a_volume_that_is_not_mounted_is_refused(stopped: Deployment) -> None:
    (stopped.path / "link").symlink_to(stopped.path / "volume")
    restored = run(stopped.path, "backup", "restore", "-c", "A", "--at", "backups", "--into", "link/data")
    assert_one_line(restored, 2, "link is a symbolic link to")
    assert not (stopped.path / "volume").exists()


@pytest.mark.parametrize("command", PLACE_COMMANDS, ids=lambda each: each[1])
def test_a_place_of_backups_whose_volume_is_not_mounted_is_no_empty_place(
    stopped: Deployment, command: Sequence[str]
) -> None:
    link = stopped.path / "unmounted"
    link.symlink_to(stopped.path / "volume")
    try:
        assert_one_line(run(stopped.path, *command, "unmounted/backups"), 3, "mount its volume")
    finally:
        link.unlink()
    assert not (stopped.path / "volume").exists()


def test_a_link_to_a_directory_that_is_there_is_followed(stopped: Deployment) -> None:
    kept = stopped.path / "kept"
    (stopped.path / "data-A").rename(kept)
    (stopped.path / "data-A").symlink_to(kept)
    try:
        done = run(stopped.path, *on_store(("store", "check")))
        assert done.returncode == 0, done.stderr
    finally:
        (stopped.path / "data-A").unlink()
        kept.rename(stopped.path / "data-A")
