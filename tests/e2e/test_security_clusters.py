"""Workers that ask each other who they are: links by TLS and tokens, limited roles, switches, tools, bad neighbours."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import forked_commands
import psutil
import pytest
import yaml
from asynchronous import asynchronous
from engine_support import eventually
from failover_support import free_ports
from security_support import Secrets
from served_worker import served_worker

from bench.security import hostile_connections
from replicator.client import AuthenticationTLS, AuthenticationToken, Client
from replicator.gateway.outgoing import UNREAD_BYTES_MAX
from replicator.operating.processes import WorkerProcess
from replicator.security.access import Access, use_in_context
from replicator.security.asking import worker_session
from replicator.security.certificate_making import Authority
from replicator.topology import load_topology
from replicator.worker.starting import start_worker
from replicator.worker.worker import Worker

TOPIC = "persistent://public/default/t"


class Pair:
    """Two workers that speak TLS alone, ``a`` and ``b``, linked both ways."""

    def __init__(self, directory: Path, secrets: Secrets, **auth: Any) -> None:
        directory.mkdir(exist_ok=True, mode=0o755)
        self.secrets = secrets
        self.authority = Authority(directory / "authority")
        self.file = directory / "topology.yaml"
        self.ports = dict(zip(("a", "b"), free_ports(2), strict=True))
        self.workers: dict[str, Worker] = {}
        self._directory = directory
        self.auth = secrets.auth(**auth)
        self.write()

    def write(self) -> None:
        clusters = {}
        for name, port in self.ports.items():
            certificate, key = self.authority.give(name)
            tls = {"certificate": str(certificate), "key": str(key)}
            clusters[name] = {"address": f"127.0.0.1:{port}", "data": str(self._directory / name), "tls": tls}
        content = {
            "clusters": clusters,
            "links": [{"between": ["a", "b"]}],
            "pipeline": {"engine": "embedded"},
            "auth": self.auth,
            "tls": {"required": True, "trust": str(self.authority.file)},
            "store": {"on_empty_store": "start"},  # one starts after the other: the first would wait for the second
        }
        self.file.write_text(yaml.safe_dump(content))

    def url(self, name: str) -> str:
        return f"pulsar+ssl://127.0.0.1:{self.ports[name]}"

    def client(self, name: str, role: str = "operator") -> Client:
        return Client(
            self.url(name),
            authentication=AuthenticationToken(self.secrets.token(role)),
            tls_trust_certs_file_path=str(self.authority.file),
        )

    def messages(self, name: str) -> int:
        topic = self.workers[name].parts.engine.find(TOPIC)
        return 0 if topic is None else topic.log.messages

    def link(self, source: str) -> dict[str, Any]:
        (link,) = list(self.workers[source].parts.links)
        return link.status()

    async def cli(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(forked_commands.run, *arguments, cwd=self._directory, environment=environment)


@asynccontextmanager
async def pair(directory: Path, secrets: Secrets, **auth: Any) -> AsyncIterator[Pair]:
    both = Pair(directory, secrets, **auth)
    try:
        for name in both.ports:
            both.workers[name] = await start_worker(load_topology(both.file), name)
        use_in_context(Access(token=secrets.token("operator"), tls=True, trust=both.authority.file))
        yield both
    finally:
        for worker in both.workers.values():
            await worker.stop()


async def published(both: Pair, cluster: str, count: int, role: str = "operator") -> None:
    async with both.client(cluster, role) as client:
        producer = await client.create_producer(TOPIC)
        for number in range(count):
            await producer.send(b"%d" % number)


@asynchronous
async def test_links_tools_and_switches_go_by_tls_and_tokens(data_dir: Path, tmp_path: Path) -> None:
    secrets = Secrets.made(tmp_path / "secrets")
    async with pair(data_dir, secrets, permissions={"public/default": {"app": ["produce", "consume"]}}) as both:
        await published(both, "a", 10, "app")
        await eventually(lambda: both.messages("b") == 10, "what was published is copied")

        status = await both.cli("status", "-f", str(both.file), "--output", "json")
        assert status.returncode == 0, status.stderr
        assert "error" not in json.loads(status.stdout)["a"]
        for token in (secrets.token("app"), "wrong"):
            for verb in (("status",), ("store", "status")):
                refused = await both.cli(*verb, "-f", str(both.file), "--output", "json", REPLICATOR_TOKEN=token)
                assert refused.returncode == 2, "it is refused, which the user can correct"
                assert token not in refused.stdout + refused.stderr
        token_file = str(secrets.token_file("app"))
        here = ("-f", str(both.file), "--cluster", "a")
        listed = await both.cli("--token-file", token_file, "topics", "list", "public/default", *here)
        assert listed.returncode == 0, listed.stderr
        deleted = await both.cli("--token-file", token_file, "topics", "delete", TOPIC, *here)
        assert deleted.returncode == 2
        assert "may not admin" in deleted.stderr

        moved = await both.cli("failover", "-f", str(both.file), "--from", "a", "--to", "b", "--planned")
        assert moved.returncode == 0, moved.stderr
        await published(both, "b", 5, "app")
        await eventually(lambda: both.messages("a") == 15, "what is published after the switch is copied back")


@asynchronous
async def test_a_lost_disk_heals_itself_by_tls_and_tokens_while_the_other_worker_starts_too(
    data_dir: Path, tmp_path: Path
) -> None:
    secrets = Secrets.made(tmp_path / "secrets")
    async with pair(data_dir, secrets, permissions={"public/default": {"app": ["produce", "consume"]}}) as both:
        await published(both, "a", 10, "app")
        await eventually(lambda: both.messages("b") == 10, "what was published is copied")
        for name in both.ports:
            await both.workers.pop(name).stop()
        shutil.rmtree(data_dir / "a")

        async def start(name: str) -> None:
            topology = load_topology(both.file)
            both.workers[name] = await start_worker(topology, name, on_empty_store="reclaim")

        await asyncio.gather(*(asyncio.create_task(start(name)) for name in both.ports))
        assert both.messages("a") == 10
        asked = f"https://127.0.0.1:{both.ports['a']}/replication/v1/store-of?cluster=b"
        context = ssl.create_default_context(cafile=str(both.authority.file))
        async with aiohttp.ClientSession() as session, session.get(asked, ssl=context) as response:
            assert response.status == 401, "whoever shows nothing is told nothing"


@asynchronous
async def test_a_limited_role_replicates_what_it_may_and_nothing_else(data_dir: Path, tmp_path: Path) -> None:
    secrets = Secrets.made(tmp_path / "secrets")
    small = {"token_file": str(secrets.token_file("worker"))}
    granted = {"public/default": {"worker": ["replicate"]}}
    both = Pair(data_dir, secrets, **small, permissions=granted)
    topology = load_topology(both.file)
    worker = await start_worker(topology, "b")
    both.workers["b"] = worker
    try:
        use_in_context(Access(token=secrets.token("worker"), tls=True, trust=both.authority.file))
        base = f"https://127.0.0.1:{both.ports['b']}/replication/v1"
        async with worker_session() as session:
            for topic, refused in (("persistent://public/default/x", False), ("persistent://other/one/x", True)):
                body = {"topics": {topic: 2}}
                async with session.post(f"{base}/partitions", params={"from": "a"}, json=body) as answer:
                    told = await answer.json()
                assert (topic in told["refused"]) is refused, told
            for path in ("/replication/v1/status", "/replication/v1/audit", "/replication/v1/topology"):
                async with session.get(f"https://127.0.0.1:{both.ports['b']}{path}") as answer:
                    assert answer.status == 403
            epochs = f"https://127.0.0.1:{both.ports['b']}/failover/v1/epochs"
            async with session.post(epochs, json={"record": {}}) as answer:
                assert answer.status == 403, "whoever tells of a failover decides who serves"
        assert worker.parts.engine.partitioned.count("persistent://public/default/x") == 2
        assert worker.parts.engine.partitioned.count("persistent://other/one/x") == 0
    finally:
        await worker.stop()


@asynchronous
async def test_a_link_whose_token_expires_goes_on_with_the_next_one(data_dir: Path, tmp_path: Path) -> None:
    """Its stream is cut when what it has shown is over, and it comes back with what the file says then."""
    secrets = Secrets.made(tmp_path / "secrets")
    file = tmp_path / "worker.token"
    file.write_text(secrets.token("operator", seconds=3))
    async with pair(data_dir, secrets, token_file=str(file)) as both:
        sent = 0
        until = time.monotonic() + 8
        while time.monotonic() < until:
            file.write_text(secrets.token("operator", seconds=3))
            await published(both, "a", 5)
            sent += 5
        file.write_text(secrets.token("operator"))
        await eventually(lambda: both.messages("b") == sent, "all of it is copied")
        assert both.link("a")["state"] in ("idle", "copying")


@asynchronous
async def test_who_would_be_refused_after_a_switch_is_named_before_it(data_dir: Path, tmp_path: Path) -> None:
    secrets = Secrets.made(tmp_path / "secrets")
    async with pair(data_dir, secrets) as both:
        await published(both, "a", 1)
        await eventually(lambda: both.messages("b") == 1, "it is copied")
        async with worker_session() as session:
            base = f"https://127.0.0.1:{both.ports['a']}/admin/v2/namespaces/public/default"
            async with session.post(f"{base}/permissions/app", json=["produce"]) as granted:
                assert granted.status == 204
            async with session.post(f"{base}/messageTTL", json=60) as changed:
                assert changed.status == 204
        dry = await both.cli(
            "failover", "-f", str(both.file), "--from", "a", "--to", "b", "--planned", "--dry-run", "-o", "json"
        )
        assert dry.returncode == 0, dry.stderr
        named = json.loads(dry.stdout)["differences"]
        assert "role 'app' may produce at public/default in a, and b would refuse it" in named
        assert any("policy" in each and "public/default" in each for each in named)
        plan = await both.cli("plan", "-f", str(both.file), "--output", "json")
        warnings = [(each["kind"], each["subject"], each["text"]) for each in json.loads(plan.stdout)["warnings"]]
        assert ("differs", "a → b", "role 'app' may produce at public/default in a, and b would refuse it") in warnings
        assert ("differs", "b → a", "role 'app' may produce at public/default in a, and b would refuse it") in warnings


@asynchronous
async def test_two_hundred_hostile_connections_disturb_nobody_and_hold_nothing(data_dir: Path, tmp_path: Path) -> None:
    """Garbage, half frames, slow reads, huge sizes and floods of wrong tokens. How fast others are meanwhile is
    measured by the benchmark ``hostile``."""
    secrets = Secrets.made(tmp_path / "secrets")
    async with pair(data_dir, secrets) as both:
        async with hostile_connections("127.0.0.1", both.ports["a"], both.authority.file):
            await published(both, "a", 10)  # each waits for its turn among some 200 handshakes
            await eventually(lambda: both.messages("b") == 10, "what was published meanwhile is copied")
            connections = len(asyncio.all_tasks())
        assert both.workers["a"].parts.engine.writer.failed is None
        assert connections < 2_000, "what they hold is bounded"


@asynchronous
async def test_invariant_11_hostile_connections_take_a_bounded_part_of_a_workers_memory(
    data_dir: Path, tmp_path: Path
) -> None:
    """A worker in a process of its own; what 200 of them take together is less than one may be sent at most."""
    both = Pair(data_dir, Secrets.made(tmp_path / "secrets"))
    use_in_context(Access(token=both.secrets.token("operator"), tls=True, trust=both.authority.file))
    worker = WorkerProcess("a", f"127.0.0.1:{both.ports['a']}", both.file, log_file=tmp_path / "a.log")
    await worker.start()
    try:
        await worker.ready()
        process = psutil.Process(worker.pid)
        await published(both, "a", 200)
        before = process.memory_info().rss
        async with hostile_connections("127.0.0.1", both.ports["a"], both.authority.file):
            await published(both, "a", 20)  # each waits for its turn among some 200 handshakes
            grown = process.memory_info().rss - before
        assert grown < UNREAD_BYTES_MAX, f"{grown:,} bytes"
    finally:
        await worker.stop()


@asynchronous
async def test_workers_show_each_other_their_certificates(data_dir: Path, tmp_path: Path) -> None:
    """No token anywhere: the common name of a certificate is the role, and may replicate only what it was granted."""
    both = Pair(data_dir, Secrets.made(tmp_path / "secrets"))
    both.auth = {
        "certificates": "common-name",
        "superusers": ["operator"],
        "permissions": {"public/default": {"a": ["replicate"], "b": ["replicate"]}, "acme": {"a": ["replicate"]}},
    }
    both.write()
    content = yaml.safe_load(both.file.read_text())
    for cluster in content["clusters"].values():
        cluster["tls"]["ca"] = str(both.authority.file)
    both.file.write_text(yaml.safe_dump(content))
    certificate, key = map(str, both.authority.give("operator"))
    try:
        for name in both.ports:
            # Each worker is a task of its own here, as it is a process elsewhere: what it shows is its own certificate.
            both.workers[name] = await asyncio.create_task(start_worker(load_topology(both.file), name))
        client = Client(
            both.url("b"),
            authentication=AuthenticationTLS(certificate, key),
            tls_trust_certs_file_path=str(both.authority.file),
        )
        async with client:
            await (await client.create_producer("persistent://acme/orders/t")).send(b"b may not bring this to a")
            producer = await client.create_producer(TOPIC)
            for _ in range(10):
                await producer.send(b"m")
        await eventually(lambda: both.messages("a") == 10, "what was published is copied")
        await eventually(lambda: bool(both.link("b")["halted"]), "what its role may not bring stops alone")
        (halted,) = both.link("b")["halted"].items()
        assert halted[0] == "persistent://acme/orders/t"
        assert "NotPermitted" in halted[1]
        assert both.workers["a"].parts.engine.find("persistent://acme/orders/t") is None
    finally:
        for worker in both.workers.values():
            await worker.stop()


@pytest.mark.parametrize(
    ("setting", "answers"),
    [
        (None, {"operator": 200, "scraper": 403, "": 401}),
        (["scraper"], {"operator": 200, "scraper": 200, "app": 403, "": 401}),
        ("open", {"operator": 200, "app": 200, "": 200}),
    ],
)
def test_metrics_have_a_switch_of_their_own(tmp_path: Path, setting: Any, answers: dict[str, int]) -> None:
    secrets = Secrets.made(tmp_path)
    auth = secrets.auth(**({} if setting is None else {"metrics": setting}))
    with served_worker(sections={"auth": auth}) as worker:
        for role, status in answers.items():
            shown = {"Authorization": f"Bearer {secrets.token(role)}"} if role else {}
            assert worker.ask("GET", "/metrics", None, shown).status == status, role
            assert worker.ask("GET", "/replication/v1/status", None, shown).status != 200 or role == "operator"


def test_a_worker_whose_keys_cannot_be_read_does_not_start_and_says_which(data_dir: Path, tmp_path: Path) -> None:
    both = Pair(data_dir, Secrets.made(tmp_path / "secrets"))
    both.secrets.key.unlink()
    arguments = [sys.executable, "-m", "replicator.cli", "worker", "-f", str(both.file), "--cluster", "a"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert str(both.secrets.key) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (data_dir / "a").exists()
    with socket.socket() as free:
        free.bind(("127.0.0.1", both.ports["a"]))


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ({"tokens": {}}, "needs one of secret_key"),
        ({"tokens": {"secret_key": "k", "public_key": "p"}}, "needs one of secret_key"),
        ({"tokens": {"jwks": "http://idp.example/keys"}}, "must begin with https://"),
        ({"tokens": {"jwks": "https://me:secret@idp.example/keys"}}, "no user and no password"),
        ({"superusers": []}, "superusers"),
        ({"tokens": None}, "nobody can say who they are"),
        ({"token_file": None}, "needs a token"),
        ({"certificates": "subject"}, "common-name, san"),
        ({"metrics": "all"}, "metrics"),
        ({"permissions": {"a//b": {"r": ["produce"]}}}, "a//b"),
        ({"permissions": {"a/b": {"r": ["fly"]}}}, "fly"),
        ({"permissions": {"a/b": {"r": []}}}, "permissions"),
    ],
)
def test_a_section_that_cannot_be_is_refused_by_field_and_line(tmp_path: Path, auth: dict[str, Any], said: str) -> None:
    secrets = Secrets.made(tmp_path / "secrets")
    section = {name: value for name, value in {**secrets.auth(), **auth}.items() if value is not None}
    file = tmp_path / "topology.yaml"
    content = {"clusters": {"a": {"address": "127.0.0.1:7101", "data": "a"}}, "auth": section}
    file.write_text(yaml.safe_dump(content))
    from replicator.topology import TopologyError

    with pytest.raises(TopologyError) as refused:
        load_topology(file)
    assert said in str(refused.value)
    assert f"{file}:" in str(refused.value)
    assert "me:secret" not in str(refused.value)
