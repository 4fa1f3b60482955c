"""``replicator doctor`` before a worker was ever started, beside one that runs, and with one thing wrong at a time."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from cli_support import ended
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from served_worker import ServedWorker, served_worker

from replicator.drills.ports import free_ports
from replicator.index.database import head_revision
from replicator.security.access import Access, use_in_process


@pytest.fixture(autouse=True)
def _shows_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("REPLICATOR_TOKEN", "REPLICATOR_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    yield
    use_in_process(Access())


@pytest.fixture(scope="module")
def worker() -> Iterator[ServedWorker]:
    with served_worker(cluster="solo") as served:
        yield served


def topology(path: Path, more: dict[str, Any] | None = None, **solo: Any) -> Path:
    file = path / "topology.yaml"
    cluster = {"address": f"127.0.0.1:{free_ports(1)[0]}", "data": str(path / "solo"), **solo}
    content = {"clusters": {"solo": cluster}, "pipeline": {"engine": "embedded"}, **(more or {})}
    file.write_text(yaml.safe_dump(content))
    return file


def examined(file: Path, *options: str, status: int = 0) -> dict[str, list[dict[str, str]]]:
    """Run the doctor and return its findings by check; every finding that is not ok must name a remedy."""
    done = ended("doctor", "-f", str(file), *options, "--output", "json")
    assert (done.status, done.stderr) == (status, ""), done
    found: dict[str, list[dict[str, str]]] = {}
    told = json.loads(done.stdout)
    for each in told["findings"]:
        assert (each["level"] == "ok") == (not each["remedy"]), each
        found.setdefault(each["check"], []).append(each)
    assert told["counts"]["error"] == sum(each["level"] == "error" for each in told["findings"])
    return found


def wrong(found: dict[str, list[dict[str, str]]], check: str) -> str:
    """The text of the one thing that is wrong, and what to do."""
    (each,) = [each for each in found[check] if each["level"] != "ok"]
    return f"{each['level']}: {each['text']} → {each['remedy']}"


def test_a_machine_on_which_nothing_was_ever_started(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    found = examined(topology(tmp_path, address=address))
    assert {"python", "extras", "java", "open-files", "port", "disk", "file-system", "o-direct", "database"} <= {*found}
    assert found["worker"][0]["text"] == f"no worker runs at {address}: connection refused"
    assert "clock" not in found
    assert sorted(each.name for each in tmp_path.iterdir()) == ["topology.yaml"], "something was left behind"


def test_beside_a_running_worker_its_port_is_its_own_and_its_clock_is_ours(
    worker: ServedWorker, tmp_path: Path
) -> None:
    found = examined(topology(tmp_path, address=f"127.0.0.1:{worker.port}", data=str(worker.data)))
    assert "is used by this worker" in found["port"][0]["text"]
    assert found["worker"][0]["text"].startswith("the worker answers; its version is ")
    (clock,) = found["clock"]
    offset, bound = map(float, re.findall(r"[+-]?[0-9.]+(?= s)", clock["text"]))
    assert clock["level"] == "ok"
    assert abs(offset) <= bound + 0.002 <= 3


def test_the_worker_of_another_topology_is_not_taken_for_this_one_s(worker: ServedWorker, tmp_path: Path) -> None:
    said = wrong(examined(topology(tmp_path, address=f"127.0.0.1:{worker.port}"), status=1), "port")
    assert said.startswith(f"error: 127.0.0.1:{worker.port} (address) is used by another worker")
    assert str(tmp_path / "solo") in said


def test_the_worker_of_another_cluster_is_an_error(worker: ServedWorker, tmp_path: Path) -> None:
    clusters = {"other": {"address": f"127.0.0.1:{worker.port}", "data": str(tmp_path / "other")}}
    file = topology(tmp_path, {"clusters": clusters})
    assert "serves 'solo'" in wrong(examined(file, "-c", "other", status=1), "worker")


def test_a_port_that_something_else_has_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = wrong(examined(topology(tmp_path, pulsar=f"127.0.0.1:{port}"), status=1), "port")
    assert said.startswith(
        f"error: 127.0.0.1:{port} (pulsar): Address already in use → find the process that uses it with"
    )


def test_an_address_of_another_machine_is_no_matter_of_this_one_unless_it_is_said_to_be(tmp_path: Path) -> None:
    file = topology(tmp_path, address="192.0.2.1:7101")
    found = examined(file)
    assert "port" not in found
    assert wrong(found, "worker").startswith("warning: the worker at 192.0.2.1:7101 cannot be reached: ")
    assert examined(file, "--strict", status=1).keys() == found.keys()
    assert "such as 0.0.0.0:7101" in wrong(examined(file, "-c", "solo", status=1), "port")


def test_data_below_a_file_or_in_memory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is no directory" in wrong(examined(topology(tmp_path, data=str(tmp_path / "file" / "x")), status=1), "disk")
    if os.access("/dev/shm", os.W_OK):
        done = ended("doctor", "-f", str(topology(tmp_path, data="/dev/shm/replicator-not-there")))
        assert "tmpfs" in done.stdout


def test_a_database_is_reached_judged_and_not_changed(postgres_url: str, tmp_path: Path) -> None:
    url = postgres_url.replace("postgresql+psycopg", "postgresql")
    file = topology(tmp_path, database=url)
    found = examined(file)
    assert found["database"][0]["text"].startswith("Postgres ")
    assert "is empty" in found["migrations"][0]["text"]
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regclass('alembic_version')").fetchone() == (None,)
        connection.execute("create table alembic_version (version_num varchar(32))")
        connection.execute("insert into alembic_version values ('0001')")
    assert f"not {head_revision()}" in wrong(examined(file), "migrations")
    with psycopg.connect(url) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    assert "revision 9999, which this version does not know" in wrong(examined(file, status=1), "database")


def test_a_database_that_was_never_reached_is_a_warning_without_its_password(tmp_path: Path) -> None:
    file = topology(tmp_path, database="postgresql://nobody:secret@127.0.0.1:9/none")
    said = wrong(examined(file), "database")
    assert "127.0.0.1" in said
    assert "secret" not in said


def certificate(path: Path, host: str, *, days: float = 90, issuer: Any = None) -> tuple[Path, Path, Any]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, path.name)])
    now = datetime.now(UTC)
    signer, signer_name = issuer or (key, name)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(signer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=300))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    files = path.with_suffix(".pem"), path.with_suffix(".key")
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pkcs8 = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *pkcs8))
    return *files, (key, name)


@pytest.mark.parametrize(
    ("days", "host", "expected"),
    [
        (90, "localhost", None),
        (-1, "localhost", "error: the certificate expired at"),
        (5, "localhost", "warning: the certificate expires at"),
        (90, "elsewhere.example", "error: the certificate names elsewhere.example, but others connect to localhost"),
    ],
)
def test_certificates_are_judged(tmp_path: Path, days: float, host: str, expected: str | None) -> None:
    authority, _, signer = certificate(tmp_path / "authority", "authority")
    own, key, _ = certificate(tmp_path / "own", host, days=days, issuer=signer)
    place = {"address": f"localhost:{free_ports(1)[0]}", "tls": {"certificate": str(own), "key": str(key)}}
    file = topology(tmp_path, {"tls": {"trust": str(authority)}}, **place)
    found = examined(file, status=int(expected is not None and expected.startswith("error")))
    if expected is not None:
        assert wrong(found, "certificate").startswith(expected)
    else:
        assert [each["level"] for each in found["certificate"]] == ["ok"] * 4
        key.write_bytes((tmp_path / "authority.key").read_bytes())
        assert "does not belong to" in wrong(examined(file, status=1), "certificate")
        key.unlink()
        assert "No such file" in wrong(examined(file, status=1), "certificate")


def test_a_certificate_of_an_authority_that_is_not_trusted_is_an_error(tmp_path: Path) -> None:
    other, _, _ = certificate(tmp_path / "other", "authority")
    own, key, _ = certificate(tmp_path / "own", "localhost")
    place = {"address": f"localhost:{free_ports(1)[0]}", "tls": {"certificate": str(own), "key": str(key)}}
    file = topology(tmp_path, {"tls": {"trust": str(other)}}, **place)
    assert "no authority in" in wrong(examined(file, status=1), "certificate")
