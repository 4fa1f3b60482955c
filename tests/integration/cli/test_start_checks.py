"""Every refusal of a worker's start is found by the doctor, and nothing is left behind by either."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lmdb
import psycopg
import pytest
import yaml

from replicator.drills.ports import free_ports
from replicator.engine.engine import Engine
from replicator.engine.log.store_files import LOG, RESTORING, lock_directory
from replicator.engine.restored import RestoredMark, put_mark
from replicator.operating import start_checks
from replicator.operating.binding import WorkerError
from replicator.operating.doctor import examining
from replicator.operating.doctor.findings import Level
from replicator.operating.start_checks import REFUSALS, START_CHECKS, Setup, StartCheck
from replicator.running import extras
from replicator.topology import Topology, load_topology
from replicator.worker.starting import start_worker

MADE: list[tuple[str, str, Callable[..., Any]]] = []
"""Changes that break a set-up, by check and by error text."""


class Broken:
    """A set-up of one cluster that works, until a case breaks it."""

    def __init__(self, path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, postgres_url: str) -> None:
        self.path = path
        self.data = path / "solo"
        self.stack = stack
        self.monkeypatch = monkeypatch
        self.postgres_url = postgres_url.replace("postgresql+psycopg", "postgresql")
        self.cluster: dict[str, Any] = {
            "address": f"127.0.0.1:{free_ports(1)[0]}",
            "data": str(self.data),
            "database": self.postgres_url,
        }
        self.sections: dict[str, Any] = {"pipeline": {"engine": "embedded"}}

    def topology(self) -> Topology:
        file = self.path / "topology.yaml"
        file.write_text(yaml.safe_dump({"clusters": {"solo": self.cluster}, **self.sections}))
        return load_topology(file)

    async def store(self, cluster: str = "solo") -> None:
        await (await Engine.open(self.data, cluster=cluster)).close()

    def put_meta(self, name: str, value: Any) -> None:
        with lmdb.open(str(self.data / LOG), max_dbs=1) as env:
            table = env.open_db(b"meta")
            with env.begin(write=True, db=table) as txn:
                txn.put(name.encode(), json.dumps(value).encode())


def case(check: str, said: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(made: Callable[..., Any]) -> Callable[..., Any]:
        MADE.append((check, said, made))
        return made

    return add


@case("extras", "traces.endpoint")
async def an_extra_is_not_installed(broken: Broken) -> None:
    broken.sections["traces"] = {"endpoint": "http://127.0.0.1:4318"}
    broken.monkeypatch.setattr(extras, "is_installed", lambda extra: False)


@case("exposure", "reached from other hosts")
async def it_listens_on_all_interfaces_without_auth(broken: Broken) -> None:
    broken.cluster["listen"] = f"0.0.0.0:{free_ports(1)[0]}"


@case("exposure", "clusters.solo.pulsar: ")
async def a_further_port_is_open_to_all_without_auth(broken: Broken) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which address would be used
        except OSError:
            pytest.skip("this host has no address but loopback")
        host = str(probe.getsockname()[0])
    if host.startswith("127."):
        pytest.skip("this host has no address but loopback")
    broken.cluster["pulsar"] = f"{host}:{free_ports(1)[0]}"


@case("port", "cannot be used")
async def another_process_has_its_port(broken: Broken) -> None:
    taken = broken.stack.enter_context(socket.socket())
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    broken.cluster["pulsar"] = f"127.0.0.1:{taken.getsockname()[1]}"


@case("port", "clusters.solo.address")
async def its_address_is_of_another_machine(broken: Broken) -> None:
    broken.cluster["address"] = "192.0.2.1:7101"
    broken.cluster["insecure"] = True


@case("certificate", "clusters.solo.tls")
async def the_key_is_none(broken: Broken) -> None:
    for name in ("certificate", "key"):
        (broken.path / name).write_text("nothing")
    broken.cluster["tls"] = {"certificate": str(broken.path / "certificate"), "key": str(broken.path / "key")}


@case("auth", "password file")
async def the_password_file_is_missing(broken: Broken) -> None:
    (broken.path / "token").write_text("x")
    broken.sections["auth"] = {"passwords": "none", "superusers": ["root"], "token_file": "token"}


@case("auth", "secret key")
async def the_secret_key_is_too_short(broken: Broken) -> None:
    (broken.path / "token").write_text("x")
    broken.sections["auth"] = {"tokens": {"secret_key": "token"}, "superusers": ["root"], "token_file": "token"}


@case("disk", "is not a directory")
async def its_data_lies_below_a_file(broken: Broken) -> None:
    (broken.path / "file").touch()
    broken.cluster["data"] = str(broken.path / "file" / "solo")


@case("disk", "mount its volume")
async def its_data_is_a_link_to_what_is_not_mounted(broken: Broken) -> None:
    broken.data.symlink_to(broken.path / "volume" / "solo")


@case("disk", "mount its volume")
async def its_data_lies_behind_a_link_to_what_is_not_mounted(broken: Broken) -> None:
    (broken.path / "link").symlink_to(broken.path / "volume")
    broken.cluster |= {"data": str(broken.path / "link" / "solo"), "database": "embedded"}


@case("disk", "a backup is being restored here")
async def a_restore_was_cut_off(broken: Broken) -> None:
    (broken.data / RESTORING).mkdir(parents=True)


@case("disk", "in use by another worker")
async def another_process_has_the_store(broken: Broken) -> None:
    broken.stack.enter_context(lock_directory(broken.data))


@case("store", "belongs to cluster 'other', not 'solo'")
async def the_store_is_of_another_cluster(broken: Broken) -> None:
    await broken.store("other")


@case("store", "store format 99")
async def the_store_is_of_a_newer_version(broken: Broken) -> None:
    await broken.store()
    broken.put_meta("store", {"format": 99, "cluster": "solo", "version": "99.0"})


@case("store", "was restored from backup b1")
async def the_store_was_restored_and_has_not_reclaimed(broken: Broken) -> None:
    engine = await Engine.open(broken.data, cluster="solo")
    put_mark(engine.store, RestoredMark("id", "b1", 1, 2))
    await engine.close()


@case("store", "is cut short")
async def the_store_is_cut_short(broken: Broken) -> None:
    await broken.store()
    (broken.data / LOG / "data.mdb").open("r+b").truncate(2 * 4096)


@case("store", "the log cannot be opened")
async def the_store_is_no_store(broken: Broken) -> None:
    await broken.store()
    (broken.data / LOG / "data.mdb").write_bytes(b"x" * 100_000)


@case("database", "database_file")
async def the_file_with_the_database_is_missing(broken: Broken) -> None:
    del broken.cluster["database"]
    broken.cluster["database_file"] = "none"


@case("database", "it must end in /DATABASE")
async def the_url_names_no_database(broken: Broken) -> None:
    (broken.path / "url").write_text("postgresql://127.0.0.1:9/")
    del broken.cluster["database"]
    broken.cluster["database_file"] = "url"


@case("database", "cannot be reached")
async def the_database_is_another_one_than_before_and_was_never_reached(broken: Broken) -> None:
    await broken.store()
    broken.put_meta(start_checks.DATABASE_REACHED, "another")
    broken.cluster["database"] = f"postgresql://127.0.0.1:{free_ports(1)[0]}/none"


@case("database", "has revision 9999")
async def the_database_is_of_a_newer_version(broken: Broken) -> None:
    with psycopg.connect(broken.postgres_url) as connection:
        connection.execute("create table alembic_version (version_num varchar(32))")
        connection.execute("insert into alembic_version values ('9999')")


@case("database", "may not make tables")
async def the_database_takes_no_tables(broken: Broken) -> None:
    with psycopg.connect(broken.postgres_url) as connection:
        connection.execute(f"alter database {connection.info.dbname} set search_path to nowhere")


@case("database", "its files are of PostgreSQL 9")
async def the_embedded_database_is_of_another_version(broken: Broken) -> None:
    broken.cluster["database"] = "embedded"
    (broken.data / "postgres").mkdir(parents=True)
    (broken.data / "postgres" / "PG_VERSION").write_text("9\n")


@contextmanager
def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str) -> Iterator[Broken]:
    with ExitStack() as stack:
        yield Broken(tmp_path, stack, monkeypatch, postgres_url)


def contents(path: Path) -> dict[str, int]:
    return {str(each): each.lstat().st_size for each in sorted(path.rglob("*"))}


async def refused(topology: Topology) -> Exception:
    with pytest.raises(REFUSALS) as caught:
        await (await start_worker(topology, "solo")).stop()
    return caught.value


async def errors(topology: Topology) -> dict[str, str]:
    """Return the doctor's errors, by check."""
    found = await examining.examine(topology, ("solo",), lambda: "Java")
    return {each.check: each.text for each in found if each.level is Level.ERROR}


@pytest.mark.parametrize(("check", "said", "made"), [pytest.param(*each, id=each[2].__name__) for each in MADE])
def test_what_keeps_a_worker_from_starting_is_an_error_of_the_doctor(
    check: str,
    said: str,
    made: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgres_url: str,
) -> None:
    async def main(broken: Broken) -> None:
        await made(broken)
        topology = broken.topology()
        before = contents(tmp_path)
        found = await errors(topology)
        assert contents(tmp_path) == before, "the doctor changed something"
        assert said in str(await refused(topology))
        assert contents(tmp_path) == before, "a start that is refused changed something"
        assert check in found

    with set_up(tmp_path, monkeypatch, postgres_url) as broken:
        asyncio.run(main(broken))


def test_a_set_up_that_nobody_broke_starts_and_has_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    async def main(broken: Broken) -> None:
        topology = broken.topology()
        assert await errors(topology) == {}
        worker = await start_worker(topology, "solo")
        try:
            assert await errors(topology) == {}, "it runs"
        finally:
            await worker.stop()
        assert await errors(topology) == {}

    with set_up(tmp_path, monkeypatch, postgres_url) as broken:
        asyncio.run(main(broken))


def test_a_database_that_is_away_and_was_there_is_a_warning_and_the_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    async def main(broken: Broken) -> None:
        url = f"postgresql://127.0.0.1:{free_ports(1)[0]}/none"
        broken.cluster["database"] = url
        engine = await Engine.open(broken.data, cluster="solo")
        await engine.remember(start_checks.DATABASE_REACHED, start_checks.Database.fingerprint_of(url))
        await engine.close()
        topology = broken.topology()
        found = await examining.examine(topology, ("solo",), lambda: "Java")
        assert [each.level for each in found if each.check == "database"] == [Level.WARNING]
        await (await start_worker(topology, "solo")).stop()

    with set_up(tmp_path, monkeypatch, postgres_url) as broken:
        asyncio.run(main(broken))


def test_a_database_that_was_never_reached_is_a_warning_and_the_worker_starts_twice_and_writes_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    async def main(broken: Broken) -> None:
        broken.cluster["database"] = f"postgresql://127.0.0.1:{free_ports(1)[0]}/none"
        topology = broken.topology()
        found = await examining.examine(topology, ("solo",), lambda: "Java")
        (said,) = [each for each in found if each.check == "database"]
        assert said.level == Level.WARNING
        assert "was never reached" in said.text
        for how in ("first", "usual"):
            worker = await start_worker(topology, "solo")
            try:
                start = worker.parts.stores.status()
                assert (start["how"], start["database"]) == (how, "away" if how == "first" else "none")
                assert worker.parts.database.state == "down"
            finally:
                await worker.stop()
        broken.cluster["database"] = postgres_url
        worker = await start_worker(broken.topology(), "solo")
        try:
            assert worker.parts.database.state == "up"
        finally:
            await worker.stop()

    with set_up(tmp_path, monkeypatch, postgres_url) as broken:
        asyncio.run(main(broken))


def test_a_worker_that_strangers_reach_because_that_is_meant_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    async def main(broken: Broken) -> None:
        broken.cluster |= {"listen": f"0.0.0.0:{free_ports(1)[0]}", "insecure": True}
        found = await examining.examine(broken.topology(), ("solo",), lambda: "Java")
        (said,) = [each for each in found if each.check == "exposure"]
        assert said.level == Level.WARNING
        assert "anybody who reaches 0.0.0.0:" in said.text

    with set_up(tmp_path, monkeypatch, postgres_url) as broken:
        asyncio.run(main(broken))


def test_each_check_of_a_start_has_a_set_up_that_it_refuses() -> None:
    assert {each.name for each in START_CHECKS} == {check for check, _, _ in MADE}


def test_a_check_that_is_added_serves_start_and_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    async def refuse(setup: Setup) -> None:
        raise WorkerError(f"{setup.cluster.name} is too new")

    added = (*START_CHECKS, StartCheck("added", "it is old", "wait", refuse))
    for module in (start_checks, examining):
        monkeypatch.setattr(module, "START_CHECKS", added)

    async def main(broken: Broken) -> None:
        topology = broken.topology()
        assert (await errors(topology)) == {"added": "solo is too new"}
        assert str(await refused(topology)) == "solo is too new"

    with set_up(tmp_path, monkeypatch, postgres_url) as broken:
        asyncio.run(main(broken))
