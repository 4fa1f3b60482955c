"""Warnings of the plan, which asks the workers quickly whatever they do."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import time
from dataclasses import replace
from pathlib import Path

from aiohttp import web
from rich.console import Console

from replicator.operating.plan import Plan, plan, probe_workers
from replicator.topology import Cluster, Link, PolicySettings, SyncSettings, Topology


def cluster(name: str, port: int) -> Cluster:
    return Cluster.model_validate({"name": name, "address": f"127.0.0.1:{port}", "data": f"/srv/{name}"})


def kinds(made: Plan) -> dict[str, str]:
    return {warning.subject: warning.kind for warning in made.warnings}


def text_of(made: Plan) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(made.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_links_both_ways_give_no_warning() -> None:
    topology = Topology((cluster("a", 1), cluster("b", 2)), (Link("a", "b"), Link("b", "a")))
    made = plan(topology)
    assert made.warnings == ()
    assert "both ways" in text_of(made)
    assert "all topics" in text_of(made)


def test_links_that_differ_each_way_or_come_back_over_a_third_cluster_give_no_warning() -> None:
    two = Topology((cluster("a", 1), cluster("b", 2)), (Link("a", "b", rate_bytes=1 << 20), Link("b", "a")))
    assert plan(two).warnings == ()
    ring = tuple(Link(*ends, forward=True) for ends in (("a", "b"), ("b", "c"), ("c", "a")))
    assert plan(Topology((cluster("a", 1), cluster("b", 2), cluster("c", 3)), ring)).warnings == ()


def test_the_settings_of_links_are_shown() -> None:
    link = Link("a", "b", name="bulk", topics=("acme/.*",), rate_bytes=1 << 20, compression="zstd")
    made = plan(Topology((cluster("a", 1), cluster("b", 2)), (link, link.reverse)))
    assert "name bulk, topics [acme/.*], rate 1MiB, compression zstd" in text_of(made)
    assert made.as_json()["links"][0] == {
        "from": "a",
        "to": "b",
        "name": "bulk",
        "topics": ["acme/.*"],
        "rate": "1MiB",
        "compression": "zstd",
    }


def test_a_one_way_link_is_warned_of_with_what_works_over_it() -> None:
    made = plan(Topology((cluster("a", 1), cluster("b", 2)), (Link("a", "b"),)))
    assert kinds(made) == {"a → b": "one-way-link"}
    assert "what is consumed at a is known at b" in made.warnings[0].text
    coarse = plan(replace(made.topology, sync=SyncSettings(mode="mark-delete")))
    assert "subscriptions are not kept in step" in coarse.warnings[0].text
    assert "one way" in text_of(made)


def test_a_cluster_without_links_is_warned_of() -> None:
    links = (Link("a", "b"), Link("b", "a"))
    assert kinds(plan(Topology((cluster("a", 1), cluster("b", 2), cluster("c", 3)), links))) == {
        "c": "cluster-without-links"
    }


def test_the_plan_as_json_is_plain_and_masks_passwords() -> None:
    secret = Cluster.model_validate(
        {"name": "a", "address": "h:1", "data": "/x", "database": "postgresql://me:hunter2@h/d"}
    )
    made = plan(Topology((secret,), (), path=Path("t.yaml")))
    text = json.dumps(made.as_json())
    assert "hunter2" not in text
    assert "hunter2" not in text_of(made)
    assert made.as_json()["clusters"][0]["reachable"] is None


def test_policies_are_shown_where_they_are_not_the_defaults() -> None:
    assert "Policies" not in text_of(plan(Topology((cluster("a", 1), cluster("b", 2)), ())))
    expiring = PolicySettings.model_validate(
        {"message_ttl": "36h", "deduplication": True, "retention": {"size": "1GiB"}}
    )
    first, second = (cluster(name, 1).model_copy(update={"policies": expiring}) for name in ("a", "b"))
    shown = "retention.size 1GiB, message_ttl 36h, deduplication on."
    assert f"Policies of all clusters: {shown}" in text_of(plan(Topology((first, second), ())))
    made = plan(Topology((first, second, cluster("c", 3)), ()))
    assert f"Policies of a, b: {shown}" in text_of(made)
    assert made.as_json()["policies"] == {
        "a": {"retention": {"size": "1GiB"}, "message_ttl": "36h", "deduplication": True},
        "b": {"retention": {"size": "1GiB"}, "message_ttl": "36h", "deduplication": True},
        "c": {},
    }


def test_names_are_printed_as_they_are_not_as_markup() -> None:
    odd = Cluster.model_validate({"name": "a", "address": "h:1", "data": "/srv/[bold]x"})
    assert "/srv/[bold]x" in text_of(plan(Topology((odd,), ())))


async def _serve(application: web.Application) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, runner.addresses[0][1]


def _worker(name: str, health: int = 200, answer: str = "") -> web.Application:
    async def healthz(request: web.Request) -> web.Response:
        return web.Response(status=health, text=answer)

    async def status(request: web.Request) -> web.Response:
        return web.json_response({"cluster": name})

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/replication/v1/status", status)])
    return application


def test_a_worker_whose_store_failed_can_be_asked_and_a_proxy_without_a_worker_is_none() -> None:
    async def main() -> None:
        failed, port = await _serve(_worker("failed", 503, '{"status": "failed", "reason": "a write failed"}'))
        proxy, proxy_port = await _serve(_worker("proxy", 503, "no server is available"))
        clusters = (cluster("failed", port), cluster("proxy", proxy_port))
        try:
            probes = await probe_workers(Topology(clusters, ()), timeout_s=5)
        finally:
            for runner in (failed, proxy):
                await runner.cleanup()
        assert {name: probe.reachable for name, probe in probes.items()} == {"failed": True, "proxy": False}

    asyncio.run(main())


def test_workers_are_asked_at_once_and_each_trouble_is_named() -> None:
    async def main() -> None:
        up, up_port = await _serve(_worker("up"))
        wrong, wrong_port = await _serve(_worker("another"))
        ill, ill_port = await _serve(_worker("ill", health=503))
        # These two accept connections and never answer; their backlog does the accepting.
        silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        closed = socket.create_server(("127.0.0.1", 0))
        closed_port = closed.getsockname()[1]
        closed.close()
        names = ("up", "wrong", "ill", "silent-1", "silent-2", "down")
        ports = (up_port, wrong_port, ill_port, *(s.getsockname()[1] for s in silent), closed_port)
        clusters = tuple(cluster(name, port) for name, port in zip(names, ports, strict=True))
        links = tuple(Link(a, b) for a in names for b in names if a != b)
        topology = Topology(clusters, links)
        try:
            started = time.monotonic()
            probes = await probe_workers(topology, timeout_s=0.5)
            elapsed_s = time.monotonic() - started
        finally:
            for runner in (up, wrong, ill):
                await runner.cleanup()
            for listening in silent:
                listening.close()
        assert elapsed_s < 0.95, "the two silent workers were asked one after the other"
        assert {name: probe.reachable for name, probe in probes.items()} == {
            "up": True, "wrong": True, "ill": False, "silent-1": False, "silent-2": False, "down": False,
        }  # fmt: skip
        made = plan(topology, probes)
        assert kinds(made) == {
            "wrong": "wrong-worker",
            "ill": "unreachable",
            "silent-1": "unreachable",
            "silent-2": "unreachable",
            "down": "unreachable",
        }
        assert "503" in probes["ill"].detail
        assert "refused" in probes["down"].detail
        assert "serves 'another'" in text_of(made)
        assert made.as_json()["clusters"][0] == {
            "name": "up", "address": f"127.0.0.1:{up_port}", "data": "/srv/up", "database": "embedded",
            "pulsar": f"pulsar://127.0.0.1:{up_port}",
            "reachable": True, "detail": "up",
        }  # fmt: skip

    asyncio.run(main())
