"""``replicator topics|subscriptions|namespaces|tenants`` against a worker's application over a real engine."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import forked_commands
import pytest
from admin_support import Admin, NoStatus, administered
from engine_support import eventually, message, subscribed
from typer.testing import CliRunner, Result

from replicator.cli.main import app
from replicator.client import Client, InvalidUrl
from replicator.drills.ports import free_ports

EU = "persistent://acme/orders/eu"


class Cli:
    """Runs commands against one worker, on a thread of their own; the worker is on this one."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.engine = admin.engine

    async def run(self, *arguments: str) -> str:
        """Run a command, which must end with exit status 0; return what it prints."""
        done = await self._invoke(arguments)
        assert done.exit_code == 0, f"{arguments}: {done.output}"
        return done.output

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.run(*arguments, "--output", "json"))

    async def refused(self, *arguments: str, status: int = 2) -> str:
        """Return the error of a command that must end with ``status``."""
        done = await self._invoke(arguments)
        assert done.exit_code == status, f"{arguments}: {done.output}"
        assert done.stderr.count("\n") == 1
        return done.stderr

    async def _invoke(self, arguments: tuple[str, ...]) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--url", self.admin.url])


def with_cli(path: Path, work: Callable[[Cli], Awaitable[None]]) -> None:
    async def main() -> None:
        async with administered(path) as admin:
            await work(Cli(admin))

    asyncio.run(main())


def test_topics_are_made_listed_grown_measured_and_deleted(tmp_path: Path) -> None:
    async def work(cli: Cli) -> None:
        assert await cli.run("topics", "create", EU) == ""
        await cli.run("topics", "create-partitioned", "acme/orders/us", "--partitions", "2")
        await cli.run("topics", "grow", "acme/orders/us", "-p", "3")
        us = "persistent://acme/orders/us"
        assert (await cli.run("topics", "list", "acme/orders")).split() == [
            EU, f"{us}-partition-0", f"{us}-partition-1", f"{us}-partition-2"
        ]  # fmt: skip
        assert await cli.json("topics", "list", "acme/orders", "--partitioned") == [us]
        topic = await cli.engine.topic(EU)
        await subscribed(topic, "jobs", permits=1, consumer_name="worker-1")
        await topic.publish([message(), message()])
        assert (await cli.json("topics", "stats", EU))["subscriptions"]["jobs"]["msgBacklog"] == 2
        shown = await cli.run("topics", "stats", EU)
        assert "worker-1" in shown
        assert "msgInCounter" in shown
        assert (await cli.json("topics", "stats", us))["metadata"] == {"partitions": 3, "deleted": False}
        assert (await cli.json("topics", "stats", EU, "--internal"))["numberOfEntries"] == 2
        assert (await cli.run("topics", "subscriptions", EU)).split() == ["jobs"]
        assert "force" in await cli.refused("topics", "delete", EU)
        said = await cli.run("topics", "delete", EU, "--force")
        assert "Copies at other clusters stay" in said
        await cli.run("topics", "delete", us)
        assert await cli.run("topics", "list", "acme/orders") == ""
        assert "fewer" in await refused_growth(cli)

    with_cli(tmp_path, work)


async def refused_growth(cli: Cli) -> str:
    await cli.run("topics", "create-partitioned", "acme/orders/asia", "-p", "3")
    return await cli.refused("topics", "grow", "acme/orders/asia", "-p", "2")


def test_a_topic_is_compacted(tmp_path: Path) -> None:
    async def work(cli: Cli) -> None:
        topic = await cli.engine.topic(EU)
        await topic.publish([message()])
        assert (await cli.json("topics", "compact", EU, "--status"))["status"] == "NOT_RUN"
        await cli.run("topics", "compact", EU)
        await eventually(lambda: not topic.compaction.running, "the end of compaction")
        assert "SUCCESS" in await cli.run("topics", "compact", EU, "--status")

    with_cli(tmp_path, work)


def test_subscriptions_are_made_put_elsewhere_skipped_and_deleted(tmp_path: Path) -> None:
    async def work(cli: Cli) -> None:
        topic = await cli.engine.topic(EU)
        positions = await topic.publish([message(b"message %d" % number) for number in range(10)])

        def backlog() -> int:
            return topic.subscriptions["jobs"].backlog_messages()

        await cli.run("subscriptions", "create", EU, "jobs", "--to", "earliest", "--replicated")
        listed = await cli.run("subscriptions", "list", EU)
        assert "jobs" in listed
        assert "yes" in listed
        await cli.run("subscriptions", "skip", EU, "jobs", "-n", "3")
        assert backlog() == 7
        await cli.run("subscriptions", "seek", EU, "jobs", "--to", str(positions[8]))
        assert backlog() == 2
        shown = await cli.run("subscriptions", "peek", EU, "jobs", "-n", "5")
        assert "message 8" in shown
        assert "message 9" in shown
        (first, _) = await cli.json("subscriptions", "peek", EU, "jobs", "-n", "5")
        assert (first["id"], first["payload"], first["messages"]) == (str(positions[8]), "message 8", 1)
        await cli.run("subscriptions", "seek", EU, "jobs", "--time", "2023-11-14T22:13:20Z")
        assert backlog() == 10
        await cli.run("subscriptions", "seek", EU, "jobs", "--time", "2023-11-14T22:13:21")
        assert backlog() == 0
        await cli.run("subscriptions", "seek", EU, "jobs", "--ago", "36500d")
        assert backlog() == 10
        await cli.run("subscriptions", "expire", EU, "jobs", "--older-than", "1h")
        assert backlog() == 0
        await cli.run("subscriptions", "seek", EU, "jobs", "--to", "earliest")
        await cli.run("subscriptions", "expire", EU, "--older-than", "60")
        assert backlog() == 0
        await cli.run("subscriptions", "seek", EU, "jobs", "--to", "earliest")
        await cli.run("subscriptions", "clear", EU, "jobs")
        assert backlog() == 0
        assert await cli.json("subscriptions", "peek", EU, "jobs") == []
        await cli.run("subscriptions", "set-replicated", EU, "jobs", "off")
        assert not topic.subscriptions["jobs"].replicated
        await cli.run("subscriptions", "set-replicated", EU, "jobs", "on")
        assert topic.subscriptions["jobs"].replicated
        assert "on or off" in await cli.refused("subscriptions", "set-replicated", EU, "jobs", "maybe")
        await cli.run("subscriptions", "create", EU, "here", "--not-replicated")
        await cli.run("subscriptions", "delete", EU, "here")
        await subscribed(topic, "jobs")
        assert "force" in await cli.refused("subscriptions", "delete", EU, "jobs")
        await cli.run("subscriptions", "delete", EU, "jobs", "--force")
        assert await cli.json("subscriptions", "list", EU) == {}

    with_cli(tmp_path, work)


def test_namespaces_and_tenants_are_made_listed_and_deleted(tmp_path: Path) -> None:
    async def work(cli: Cli) -> None:
        await cli.run("tenants", "create", "acme")
        await cli.run("namespaces", "create", "acme/orders")
        await cli.run("namespaces", "create", "other/things")
        assert (await cli.run("tenants", "list")).split() == ["acme", "other"]
        assert (await cli.run("namespaces", "list")).split() == ["acme/orders", "other/things"]
        assert await cli.json("namespaces", "list", "acme") == ["acme/orders"]
        await cli.run("topics", "create", EU)
        assert "force" in await cli.refused("namespaces", "delete", "acme/orders")
        await cli.run("namespaces", "delete", "acme/orders", "--force")
        await cli.run("tenants", "delete", "acme")
        assert (await cli.run("tenants", "list")).split() == ["other"]

    with_cli(tmp_path, work)


@pytest.mark.parametrize(
    ("command", "policy", "shown"),
    [
        (["set-retention", "NAME", "--age", "7d", "--size", "10GiB"], "retention",
         {"age_seconds_max": 604_800, "bytes_max": 10 * 1024**3}),
        (["set-retention", "NAME", "--age", "90s"], "retention", {"age_seconds_max": 120, "bytes_max": None}),
        (["set-message-ttl", "NAME", "2h"], "message_ttl_seconds", 7200),
        (["set-backlog-quota", "NAME", "--size", "1MiB", "--policy", "producer_exception"], "backlog_quota",
         {"bytes_max": 1024**2, "age_seconds_max": None, "policy": "producer_exception"}),
        (["set-backlog-quota", "NAME", "--age", "1d"], "backlog_quota",
         {"bytes_max": None, "age_seconds_max": 86_400, "policy": "producer_request_hold"}),
        (["set-deduplication", "NAME", "on"], "deduplication", True),
        (["set-delayed-delivery", "NAME", "off"], "delayed_delivery", False),
        (["set-replicate-subscription-state", "NAME", "on"], "replicate_subscription_state", True),
        (["set-schema-compatibility", "NAME", "backward-transitive"], "schema_compatibility", "BACKWARD_TRANSITIVE"),
        (["set-schema-auto-update", "NAME", "off"], "schema_auto_update", False),
        (["set-schema-validation", "NAME", "on"], "schema_validation_enforced", True),
        (["set-compaction-threshold", "NAME", "100MiB"], "compaction_threshold_bytes", 100 * 1024**2),
        (["set-max-message-size", "NAME", "1KiB"], "max_message_bytes", 1024),
        (["set-max-producers", "NAME", "3"], "max_producers", 3),
        (["set-max-consumers", "NAME", "4"], "max_consumers", 4),
        (["set-max-unacked-per-consumer", "NAME", "unlimited"], "max_unacked_messages_per_consumer", None),
        (["set-max-unacked-per-subscription", "NAME", "10"], "max_unacked_messages_per_subscription", 10),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("group", "name"), [("topics", EU), ("namespaces", "acme/orders")])
def test_a_policy_is_set_shown_and_unset(
    tmp_path: Path, group: str, name: str, command: list[str], policy: str, shown: Any
) -> None:
    async def work(cli: Cli) -> None:
        await cli.run("topics", "create", EU)
        before = (await cli.json("topics", "policies", EU))["policies"]
        await cli.run(group, *(name if part == "NAME" else part for part in command))
        assert (await cli.json("topics", "policies", EU))["policies"] == {**before, policy: shown}
        assert await cli.run(group, "policies", name)
        unset = command[0].removeprefix("set-")
        if unset == "backlog-quota":
            unset += command[2].replace("--", "-")
        await cli.run(group, "unset", name, unset)
        after = (await cli.json("topics", "policies", EU))["policies"]
        assert {**after, "backlog_quota": {**after["backlog_quota"], "policy": "producer_request_hold"}} == before

    with_cli(tmp_path, work)


def test_a_cluster_that_no_link_leads_to_is_chosen_with_a_warning(tmp_path: Path) -> None:
    class Linked(NoStatus):
        def status(self) -> dict[str, Any]:
            return {"cluster": "us-east", "links": [{"to": "eu-west"}]}

    async def main() -> None:
        async with administered(tmp_path, source=Linked()) as admin:
            cli = Cli(admin)
            await cli.run("namespaces", "create", "acme/orders")
            clusters = ["us-east", "eu-west", "eu-wst"]
            said = await cli.run("namespaces", "set-replication-clusters", "acme/orders", *clusters)
            assert said.count("warning") == 1
            assert "us-east has no link to 'eu-wst', its links lead to eu-west" in said
            assert (await cli.json("namespaces", "policies", "acme/orders"))["replication_clusters"] == clusters

    asyncio.run(main())


def test_what_only_namespaces_have(tmp_path: Path) -> None:
    async def work(cli: Cli) -> None:
        await cli.run("namespaces", "create", "acme/orders")
        await cli.run("namespaces", "set-replication-clusters", "acme/orders", "us-east", "eu-west")
        await cli.run("namespaces", "set-auto-topic-creation", "acme/orders", "on", "-p", "4")
        shown = await cli.json("namespaces", "policies", "acme/orders")
        assert shown["replication_clusters"] == ["us-east", "eu-west"]
        assert shown["autoTopicCreationOverride"]["defaultNumPartitions"] == 4
        assert "us-east, eu-west" in await cli.run("namespaces", "policies", "acme/orders")
        await cli.run("namespaces", "unset", "acme/orders", "replication-clusters")
        await cli.run("namespaces", "unset", "acme/orders", "auto-topic-creation")
        shown = await cli.json("namespaces", "policies", "acme/orders")
        assert shown["replication_clusters"] == ["us-east"], "all clusters that there are"
        await cli.refused("topics", "unset", EU, "replication-clusters")

    with_cli(tmp_path, work)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topics", "stats", "acme/orders/none"], "no topic"),
        (["topics", "create", "acme/or ders/eu"], "namespace"),
        (["topics", "create", "persistent://acme/eu"], "expected persistent://tenant/namespace/topic"),
        (["topics", "create-partitioned", EU, "-p", "0"], "--partitions"),
        (["topics", "create-partitioned", EU, "-p", "10001"], "10000"),
        (["topics", "list", "acme"], "tenant/namespace"),
        (["topics", "list", "acme/orders", "--output", "xml"], "'table', 'json', 'yaml'"),
        (["subscriptions", "create", EU, "a\nb"], "subscription name"),
        (["subscriptions", "create", EU, "jobs", "--to", "noon"], "earliest, latest or LEDGER:ENTRY"),
        (["subscriptions", "seek", EU, "jobs"], "one of --to, --time and --ago"),
        (["subscriptions", "seek", EU, "jobs", "--time", "noon"], "noon"),
        (["subscriptions", "seek", EU, "jobs", "--ago", "noon"], "is not a duration"),
        (["subscriptions", "expire", EU, "jobs"], "--older-than"),
        (["subscriptions", "skip", EU, "jobs", "-n", "0"], "--messages"),
        (["subscriptions", "peek", EU, "jobs"], "no topic"),
        (["namespaces", "delete", "acme/none"], "no namespace"),
        (["namespaces", "set-message-ttl", "acme/none", "1h"], "no namespace"),
        (["namespaces", "set-message-ttl", "acme/orders", "0"], "unlimited"),
        (["namespaces", "set-deduplication", "acme/orders", "maybe"], "on or off"),
        (["namespaces", "set-max-producers", "acme/orders", "few"], "not a number"),
        (["namespaces", "set-backlog-quota", "acme/orders"], "one of --size and --age"),
        (["namespaces", "set-retention", "acme/orders", "--age", "0"], "no namespace"),
        (["namespaces", "unset", "acme/orders", "colour"], "is not one of"),
        (["tenants", "delete", "none"], "no tenant"),
    ],
)
def test_a_mistake_gives_one_error_exit_status_2_and_changes_nothing(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    async def work(cli: Cli) -> None:
        assert said in await cli.refused(*arguments)
        assert cli.engine.catalog.tenants() == []

    if arguments[:2] == ["namespaces", "set-retention"]:
        said = "both to 0"  # the body is checked before the namespace is looked for
    with_cli(tmp_path, work)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return forked_commands.run(*arguments, cwd=cwd, timeout=60)


def test_a_worker_that_is_down_gives_exit_status_3_and_one_line(tmp_path: Path) -> None:
    done = run("topics", "list", "--url", f"http://127.0.0.1:{free_ports(1)[0]}", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "connection refused" in done.stderr


def test_the_worker_is_found_by_the_topology(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path / "data") as admin:
            address = admin.url.removeprefix("http://")
            file = tmp_path / "topology.yaml"
            file.write_text(
                "clusters:\n"
                f"  us-east: {{address: '{address}', data: a}}\n"
                "  eu-west: {address: '127.0.0.1:9', data: b}\n"
                "links: []\n"
            )
            here = ("-f", "topology.yaml")
            done = await asyncio.to_thread(run, "topics", "create", EU, *here, "--cluster", "us-east", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert [topic.name for topic in admin.engine.topics()] == [EU]
            for arguments, said in (
                (here, "us-east, eu-west"),
                ((*here, "-c", "asia"), "asia"),
                ((), "--url"),
                ((*here, "--url", admin.url), "not both"),
                (("--url", "ftp://x"), "is not http://HOST:PORT"),
                (("--url", "http://x:99999"), "is not http://HOST:PORT"),
            ):
                done = await asyncio.to_thread(run, "topics", "list", *arguments, cwd=tmp_path)
                assert done.returncode == 2, arguments
                assert said in done.stderr
                assert "Traceback" not in done.stderr

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("HTTP/1.1 404 Not Found\r\n\r\n<html>", 3, "is this a worker"),
        ("HTTP/1.1 200 OK\r\n\r\n<html>", 3, "is not JSON, so it is not a worker's: correct the address"),
        ('HTTP/1.1 503 Down\r\n\r\n{"error": "StoreFailed", "reason": "the store\\nfailed"}', 3, "the store failed"),
        ('HTTP/1.1 507 Full\r\n\r\n{"error": "StoreFull", "reason": "the store is full"}', 3, "is full"),
        ('HTTP/1.1 501 No\r\n\r\n{"error": "NotSupported", "reason": "not in this version"}', 2, "not in this version"),
        ("", 3, "disconnected"),
    ],
)
def test_what_a_worker_cannot_do_is_told_from_what_it_refuses(
    tmp_path: Path, answer: str, status: int, said: str
) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer.encode())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            done = await asyncio.to_thread(run, "topics", "list", "--url", url, cwd=tmp_path)
        assert done.returncode == status
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr

    asyncio.run(main())


def test_a_path_in_the_address_is_told_from_a_topic_that_there_is_not(tmp_path: Path) -> None:
    async def work(cli: Cli) -> None:
        done = await asyncio.to_thread(run, "topics", "stats", EU, "--url", f"{cli.admin.url}/admin/v2", cwd=tmp_path)
        assert done.returncode == 2
        assert "give the worker's http://HOST:PORT alone" in done.stderr
        with pytest.raises(InvalidUrl, match="pulsar://127"):  # the client's URL is another one, and is named
            Client(f"{cli.admin.url}/admin/v2")

    with_cli(tmp_path, work)
