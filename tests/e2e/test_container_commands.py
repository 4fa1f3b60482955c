"""Commands for containers: a worker takes changed files by itself, reports its health, and finds its database by a
file; and a few messages show that clusters work together."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import forked_commands
import psycopg
import pytest
import yaml
from security_support import Secrets

from replicator.drills.ports import free_ports
from replicator.index.database import head_revision
from replicator.security.certificate_making import Authority

SECONDS_MAX: Final = 120.0
T = TypeVar("T")


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not below pytest's own: as root, the embedded server runs as another user, who may not enter that."""
    made = Path(tempfile.mkdtemp(prefix="pg-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def command(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return forked_commands.run(*arguments, cwd=Path.cwd(), timeout=SECONDS_MAX, environment=environment)


def eventually(condition: Callable[[], T], said: Callable[[], object] = str) -> T:
    deadline = time.monotonic() + SECONDS_MAX
    while not (value := condition()):
        assert time.monotonic() < deadline, said()
        time.sleep(0.1)
    return value


def is_ready(file: Path, cluster: str) -> bool:
    return command("health", "--ready", "--file", file, "--cluster", cluster).returncode == 0


@contextmanager
def workers(file: Path, *clusters: str, options: Sequence[str] = ()) -> Iterator[dict[str, forked_commands.Forked]]:
    """Processes, ready; they end with the context."""
    started = {}
    try:
        for cluster in clusters:
            log = file.parent / f"{cluster}.log"
            arguments = ("worker", "-f", file, "-c", cluster, *options)
            started[cluster] = forked_commands.start(arguments, cwd=Path.cwd(), stdout=log, stderr=log)
        for cluster in clusters:
            eventually(lambda cluster=cluster: is_ready(file, cluster), (file.parent / f"{cluster}.log").read_text)  # type: ignore[misc]
        yield started
    finally:
        for process in started.values():
            process.send_signal(signal.SIGTERM)
        for process in started.values():
            process.wait(SECONDS_MAX)


def document_of(directory: Path, *clusters: str, **sections: Any) -> dict[str, Any]:
    ports = free_ports(len(clusters))
    return {
        "clusters": {
            name: {"address": f"127.0.0.1:{port}", "data": str(directory / name)}
            for name, port in zip(clusters, ports, strict=True)
        },
        "pipeline": {"engine": "embedded"},
        **sections,
    }


def write(directory: Path, document: dict[str, Any]) -> Path:
    file = directory / "topology.yaml"
    (directory / "topology.new").write_text(yaml.safe_dump(document))
    (directory / "topology.new").replace(file)
    return file


def certificate_at(address: str) -> str:
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def _answer(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
        return str(response.read().decode())


def test_a_worker_takes_a_changed_file_and_a_renewed_certificate_by_itself(directory: Path) -> None:
    authority = Authority(directory)
    certificate, key = authority.give("us-east")
    document = document_of(directory, "us-east")
    document["clusters"]["us-east"]["tls"] = {"certificate": str(certificate), "key": str(key)}
    address = document["clusters"]["us-east"]["address"]
    file = write(directory, document)
    log = directory / "us-east.log"
    with workers(file, "us-east", options=["--reload-on-change"]):
        document["policies"] = {"message_ttl": "1h"}
        write(directory, document)
        eventually(lambda: "topology reloaded" in log.read_text(), log.read_text)
        before = certificate_at(address)
        authority.give("us-east")
        eventually(lambda: certificate_at(address) != before, log.read_text)
        document["clusters"]["us-east"]["namespaces_by_use"] = False
        write(directory, document)
        eventually(lambda: "needs a restart of the worker" in log.read_text(), log.read_text)
        assert is_ready(file, "us-east"), "what cannot be taken under way changes nothing"
        eventually(lambda: "namespaces_by_use" in _answer(address, "/readyz"), log.read_text)
        assert 'replicator_topology_refused{cluster="us-east"} 1.0' in _answer(address, "/metrics")
        del document["clusters"]["us-east"]["namespaces_by_use"]
        write(directory, document)
        eventually(lambda: "topology_refused" not in _answer(address, "/readyz"), log.read_text)
        assert 'replicator_topology_refused{cluster="us-east"} 0.0' in _answer(address, "/metrics")


def test_health_is_asked_where_clients_must_show_a_certificate(directory: Path) -> None:
    authority = Authority(directory)
    certificate, key = authority.give("us-east")
    document = document_of(directory, "us-east")
    document["clusters"]["us-east"]["tls"] = {
        "certificate": str(certificate),
        "key": str(key),
        "ca": str(authority.file),
    }
    document["tls"] = {"required": True, "trust": str(authority.file)}
    document["auth"] = {"certificates": "common-name", "superusers": ["us-east"]}
    file = write(directory, document)
    environment = {"REPLICATOR_TOPOLOGY": str(file), "REPLICATOR_CLUSTER": "us-east"}
    assert command("health", environment=environment).returncode == 3
    with workers(file, "us-east"):
        assert _answer_without_certificate(document["clusters"]["us-east"]["address"]) == b""
        alive = command("health", environment=environment)
        assert (alive.returncode, alive.stdout) == (0, '{"status": "alive"}\n'), alive.stderr
    stopped = command("health", environment=environment)
    assert stopped.returncode == 3
    assert "connection refused" in stopped.stderr


def test_a_worker_finds_its_database_by_a_file_and_so_does_its_upgrade(directory: Path, postgres_url: str) -> None:
    url = postgres_url.replace("postgresql+psycopg://", "postgresql://")
    (directory / "url").write_text(url + "\n")
    document = document_of(directory, "us-east")
    document["clusters"]["us-east"]["database_file"] = str(directory / "url")
    file = write(directory, document)
    upgraded = command("db", "upgrade", "--file", file, "--cluster", "us-east")
    assert upgraded.returncode == 0, upgraded.stderr
    assert "us-east: the database is at revision" in upgraded.stdout
    with workers(file, "us-east"):
        shown = command("plan", "--file", file, "--output", "json").stdout
        assert str(directory / "url") in shown
    assert not (directory / "us-east" / "postgres").exists(), "no server of the worker's own"
    (directory / "url").unlink()
    refused = command("worker", "--file", file, "--cluster", "us-east")
    assert refused.returncode == 2
    assert "clusters.us-east.database_file" in refused.stderr


def test_a_database_is_taken_back_for_an_older_version_and_up_again(directory: Path, postgres_url: str) -> None:
    """This is the way of docs/upgrade.md: the newer version takes the schema back to a revision that the older one
    knows."""
    url = postgres_url.replace("postgresql+psycopg://", "postgresql://")
    document = document_of(directory, "us-east", "eu-west")
    document["clusters"]["us-east"]["database"] = url
    document["clusters"]["eu-west"]["database"] = "postgresql://nobody@127.0.0.1:1/away"
    options = ("--file", write(directory, document), "--cluster", "us-east")

    def tables() -> set[str]:
        with psycopg.connect(url) as connection:
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            return {name for (name,) in found}

    upgraded = command("db", "upgrade", *options)
    assert upgraded.returncode == 0, upgraded.stderr
    assert upgraded.stdout == f"us-east: the database is at revision {head_revision()}\n"
    newest = tables()
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO subscription_states VALUES ('us-east', 't', 's', 1, 2, 3, true)")

    back = command("db", "downgrade", "--to", "0003", *options)
    assert back.returncode == 0, back.stderr
    assert back.stdout == "us-east: the database is at revision 0003\n"
    assert newest - tables() == {"link_states", "failover_epochs", "drill_runs", "audit_log", "index_heads"}
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT cluster FROM subscription_states").fetchall() == [("us-east",)]

    unknown = command("db", "downgrade", "--to", "9999", *options)
    assert unknown.returncode == 2
    assert "clusters.us-east.database" in unknown.stderr
    assert "revision 9999" in unknown.stderr
    away = command("db", "downgrade", "--to", "0003", *options[:2])
    assert away.returncode == 3
    assert "clusters.eu-west.database" in away.stderr, "without --cluster it is done for all, one after the other"

    again = command("db", "upgrade", *options)
    assert again.stdout == f"us-east: the database is at revision {head_revision()}\n"
    assert tables() == newest


@pytest.mark.timeout(600)
def test_a_roundtrip_shows_that_clusters_work_together_and_leaves_nothing(directory: Path) -> None:
    document = document_of(directory, "us-east", "eu-west", links=[{"between": ["us-east", "eu-west"]}])
    file = write(directory, document)
    with workers(file, "us-east", "eu-west"):
        seen = command("roundtrip", "--file", file, "--cluster", "us-east", "--messages", "5")
        assert seen.returncode == 0, seen.stderr
        assert "us-east: all consumed" in seen.stdout
        assert "eu-west: all copied and consumed" in seen.stdout
        for cluster in ("us-east", "eu-west"):
            listed = command("topics", "list", "public/roundtrip", "--file", file, "--cluster", cluster)
            assert "replicator-roundtrip" not in listed.stdout

        paused = command("links", "pause", "--file", file, "--from", "us-east", "--to", "eu-west")
        assert paused.returncode == 0, paused.stderr
        late = command("roundtrip", "--file", file, "--cluster", "us-east", "--timeout", "15")
        assert late.returncode == 1
        assert "eu-west: not every message came in time" in late.stderr
        alone = command("roundtrip", "--file", file, "--cluster", "us-east", "--no-links")
        assert alone.returncode == 0, alone.stderr
    away = command("roundtrip", "--file", file, "--cluster", "us-east", "--timeout", "15")
    assert away.returncode == 3
    assert "us-east at 127.0.0.1" in away.stderr


@pytest.mark.timeout(600)
def test_a_roundtrip_shows_a_token_and_is_refused_without(directory: Path) -> None:
    secrets = Secrets.made(directory / "secrets")
    document = document_of(directory, "us-east", auth=secrets.auth())
    file = write(directory, document)
    with workers(file, "us-east"):
        seen = command("roundtrip", "--file", file, "--cluster", "us-east")
        assert seen.returncode == 0, seen.stderr
        (directory / "guest").write_text(secrets.token("guest"))
        refused = command("--token-file", directory / "guest", "roundtrip", "--file", file, "--cluster", "us-east")
        assert refused.returncode == 2, refused.stderr
        assert "AuthorizationError" in refused.stderr


def _answer_without_certificate(address: str) -> bytes:
    """Return the answer to a Kubernetes probe without a certificate: TLS 1.3 refuses it after the handshake."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), timeout=30) as plain, context.wrap_socket(plain) as asked:
        try:
            asked.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            return asked.recv(1024)
        except (ssl.SSLError, ConnectionError):
            return b""
