"""Nothing that the system writes holds a secret: logs, errors, plans, topologies, reports, answers, figures, the index.

Secrets are put everywhere where users may put one, things are made to fail with them, and everything that came out is
searched for them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import forked_commands
import psutil
import psycopg
import pytest
from failover_support import free_ports
from malformed_support import MALFORMED, answer_to
from passlib.hash import bcrypt
from sqlalchemy import make_url

from replicator.protocol.commands_pb2 import BaseCommand, CommandConnect
from replicator.protocol.frames import encode
from replicator.security.tokens import create_token, read_secret

START_SECONDS_MAX = 60.0
SECRET = "s3cr3t"
"""Each secret has it, and says where it comes from."""
GETS = (
    "/healthz", "/readyz", "/metrics", "/replication/v1/status", "/replication/v1/topology", "/replication/v1/links",
    "/pipeline/v1/links", "/admin/v2/clusters", "/admin/v2/clusters/solo", "/admin/v2/brokers/configuration/runtime",
    "/admin/v2/namespaces/public", "/replication/v1/no-such-thing",
)  # fmt: skip


def secret(where: str) -> str:
    return f"{SECRET}-{where}"


@pytest.fixture
def database(postgres_server: str) -> Iterator[tuple[str, str]]:
    """A database of a user with a password; the other URL is for dropping it."""
    name = f"secrets_{os.getpid()}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"DROP ROLE IF EXISTS {name}")
        connection.execute(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{secret('database')}'")
        connection.execute(f"CREATE DATABASE {name} OWNER {name}")
        url = make_url(postgres_server).set(
            drivername="postgresql", username=name, password=secret("database"), database=name
        )
        yield url.render_as_string(hide_password=False), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"DROP ROLE {name}")


def said_by(*arguments: str, cwd: Path) -> str:
    done = forked_commands.run(*arguments, cwd=cwd)
    return done.stdout + done.stderr


def answer(url: str, **headers: str) -> str:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as response:
            return f"{response.headers}{response.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.headers}{error.read().decode()}"


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def command_lines_of(pid: int) -> str:
    """Return the command lines of a process and of all its descendants."""
    process = psutil.Process(pid)
    return str([each.cmdline() for each in (process, *process.children(recursive=True))])


def connect_with_a_token(port: int) -> str:
    """Send a token over the binary protocol, and then bytes that are no frame; return the worker's answers."""
    shown = CommandConnect(client_version="test", auth_method_name="token", auth_data=secret("client").encode())
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(encode(BaseCommand(type=BaseCommand.CONNECT, connect=shown)))
        said += client.recv(65536)
        client.sendall(b"\xff\xff\xff\xff" + secret("garbage").encode())
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(65536):
                said += piece
    return said.decode(errors="replace")


@pytest.mark.parametrize("asks", [False, True], ids=["without auth", "with auth"])
def test_no_secret_is_in_anything_that_the_system_writes(
    tmp_path: Path, database: tuple[str, str], postgres_server: str, asks: bool
) -> None:
    url, drop = database
    token = ""
    (port,) = free_ports(1)
    file, log = tmp_path / "topology.yaml", tmp_path / "worker.log"
    document = {
        "clusters": {"solo": {"address": f"127.0.0.1:{port}", "data": "data", "database": url}},
        "pipeline": {
            "engine": "embedded",
            "conf": {"spark.hadoop.fs.s3a.secret.key": secret("spark"), "spark.x.password": secret("spark-password")},
        },
    }
    if asks:
        (tmp_path / "key").write_text(f"{secret('key')}-of-32-bytes-at-least-and-more")
        token = create_token(read_secret(tmp_path / "key"), "operator")
        (tmp_path / "token").write_text(token)
        (tmp_path / "htpasswd").write_text(f"alice:{bcrypt.using(rounds=4).hash(secret('password'))}\n")
        document["auth"] = {
            "tokens": {"secret_key": "key"},
            "passwords": "htpasswd",
            "superusers": ["operator"],
            "token_file": "token",
        }
    file.write_text(json.dumps(document))
    base, found = f"http://127.0.0.1:{port}", {}
    worker_command = [sys.executable, "-m", "replicator.cli", "worker", "--cluster", "solo", "-f", str(file)]
    with log.open("wb") as written:
        worker = subprocess.Popen(worker_command, cwd=tmp_path, stdout=written, stderr=subprocess.STDOUT)
    try:
        until_ready(worker, base, log)
        for path in GETS:
            found[path] = answer(f"{base}{path}", Authorization=f"Bearer {secret('header')}")
            found[f"{path} by a password"] = answer(f"{base}{path}", Authorization=basic("alice", secret("password")))
            found[f"{path} by a wrong one"] = answer(f"{base}{path}", Authorization=basic("alice", secret("wrong")))
            found[f"{path} by a token"] = answer(f"{base}{path}", Authorization=f"Bearer {token or secret('x')}")
        found["command lines"] = command_lines_of(worker.pid)
        found["websocket"] = answer(f"{base}/ws/v2/producer/persistent/public/default/t?token={secret('query')}")
        for kind, request in MALFORMED.items():
            seeds = {b"token": secret("malformed").encode(), b"good": token.encode(), b"long": SECRET.encode() * 2000}
            found[f"malformed: {kind}"] = answer_to(port, request % seeds).decode(errors="replace")
        found["client"] = connect_with_a_token(port)
        for verb in (("plan",), ("plan", "--output", "json"), ("status",), ("status", "--output", "json"), ("apply",),
                     ("failover-status",)):  # fmt: skip
            found[" ".join(verb)] = said_by(*verb, "-f", str(file), cwd=tmp_path)
        with psycopg.connect(url) as connection:
            tables = connection.execute(
                "SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables "
                "WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
            ).fetchall()
            rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables}  # type: ignore[arg-type]
        assert len(rows) > 5
        found["the index"] = str(rows)
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(drop)  # from now on every use of it fails
        for path in ("/replication/v1/mappings?topic=t", "/replication/v1/status"):
            found[f"{path} without a database"] = answer(f"{base}{path}")
        file.write_text(file.read_text().replace(secret("database"), secret("newer")))
        found["a changed topology"] = said_by("apply", "-f", str(file), cwd=tmp_path)
        found["a changed plan"] = said_by("plan", "-f", str(file), cwd=tmp_path)
        found["migrating"] = said_by("db", "upgrade", "--cluster", "solo", "-f", str(file), cwd=tmp_path)
        file.write_text(file.read_text().replace("postgresql://", "postgres//"))
        found["a wrong topology"] = said_by("plan", "-f", str(file), cwd=tmp_path)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    found["the log"] = log.read_text()
    assert "worker ready" in found["the log"]
    assert "does not exist" in found["migrating"] + found["the log"], "nothing failed at the database"
    assert [where for where, text in found.items() if not text] == []
    seeded = [SECRET, *([token, "$2b$"] if asks else [])]
    leaks = {
        (where, each): text[max(0, text.index(each) - 80) :][:200]
        for where, text in found.items()
        for each in seeded
        if each in text
    }
    assert not leaks


def until_ready(worker: subprocess.Popen[bytes], base: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        assert worker.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            urllib.request.urlopen(f"{base}/readyz", timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
