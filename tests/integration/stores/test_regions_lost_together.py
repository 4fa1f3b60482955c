"""Clusters that are lost together, each with a backup of another moment.

Whatever the operator begins with, the messages lead to an order in which nothing is lost that a backup has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import forked_commands
import pytest
from backup_support import MESH, Mesh, numbered, publish
from failover_support import deployment
from postgres_support import databases_of

BEFORE, SINCE = 40, 60


@pytest.fixture
def pair(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("AB", postgres_server, "order") as databases,
        deployment(tmp_path, *databases, links="[{between: [A, B]}]", databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


@pytest.fixture
def three(tmp_path: Path, postgres_server: str) -> Iterator[Mesh]:
    with (
        databases_of("ABC", postgres_server, "order") as databases,
        deployment(tmp_path, *databases, links=MESH, databases=databases, kind=Mesh) as deployed,
    ):
        yield deployed


def publish_at(mesh: Mesh, name: str, first: int, last: int) -> None:
    asyncio.run(publish(mesh.client_url(name), numbered(name, first, last)))


def everywhere(mesh: Mesh, names: str, messages: int) -> None:
    mesh.until(lambda: all(mesh.messages(name) == messages for name in names), f"{messages} messages in {names}")


def lose_both(pair: Mesh) -> None:
    """B's backup is the later one: it has 60 messages of A that A's own lacks."""
    publish_at(pair, "A", 0, BEFORE)
    publish_at(pair, "B", 0, BEFORE)
    everywhere(pair, "AB", 2 * BEFORE)
    pair.create("A")
    publish_at(pair, "A", BEFORE, BEFORE + SINCE)
    everywhere(pair, "AB", 2 * BEFORE + SINCE)
    pair.create("B")
    for name in "AB":
        pair.lose(name)


def check_nothing_is_lost(pair: Mesh) -> None:
    everywhere(pair, "AB", 2 * BEFORE + SINCE)
    found = pair.verify()
    assert [found[name] for name in ("missing", "duplicated", "reordered", "mismapped")] == [0] * 4
    assert pair.halted("A") == pair.halted("B") == {}
    check_stores(pair, "AB")


def check_stores(mesh: Mesh, names: str) -> None:
    """Check that no row of a store that took messages back is gone."""
    for name in names:
        mesh.kill(name)
        done = forked_commands.run("store", "check", "-f", "topology.yaml", "-c", name, cwd=mesh.path)
        assert done.returncode == 0, done.stderr


def said(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_older_backup_is_restored_first_and_the_messages_lead_to_the_newer_one(pair: Mesh) -> None:
    lose_both(pair)
    text = said(pair.restore("A", status=3))
    assert re.search(r"backup \S+ of B, made at [^;]+: may have messages of A that A's own backup lacks", text)
    assert "restore them first (B), each with --without" in text
    assert "restore them first (B)" in said(pair.start_refused("A")), "the worker says it too"
    text = said(pair.restore("B", "--without", "A"))
    assert "Warning" not in text
    pair.start("B")
    text = said(pair.reclaim("A"))
    assert f"took back {SINCE} messages" in text
    pair.start("A")
    check_nothing_is_lost(pair)


def test_the_newer_backup_is_restored_first_and_the_messages_say_to_go_on_without_the_other(pair: Mesh) -> None:
    lose_both(pair)
    text = said(pair.restore("B", status=3))
    assert "No other backup has messages of B that its own lacks" in text
    go_on = "replicator backup reclaim -f FILE --cluster B --without A`, start B, and then restore A"
    assert go_on in text
    assert go_on in said(pair.start_refused("B"))
    pair.reclaim("B", "--without", "A")
    pair.start("B")
    assert f"took back {SINCE} messages" in said(pair.restore("A"))
    pair.start("A")
    check_nothing_is_lost(pair)


def test_who_goes_on_without_a_newer_backup_is_warned(pair: Mesh) -> None:
    lose_both(pair)
    text = said(pair.restore("A", "--without", "B"))
    assert re.search(r"Warning: backup \S+ of B, made at [^;]+ may have messages of A that are not taken back", text)


def test_three_regions_are_restored_in_the_order_that_the_messages_say(three: Mesh) -> None:
    names, published = "ABC", 0
    for name in names:  # each backup is later than the one before, and has all that was published until then
        for each in names:
            publish_at(three, each, published, published + 20)
        published += 20
        everywhere(three, names, 3 * published)
        three.create(name)
    publish_at(three, "C", published, published + 5)  # nobody has a backup of these
    everywhere(three, names, 3 * published + 5)
    for name in names:
        three.lose(name)
    text = said(three.restore("A", status=3))
    assert "restore them first (C, then B)" in text
    three.restore("C", "--without", "A", "--without", "B")
    three.start("C")
    text = said(three.restore("B", status=3))
    assert "restore them first (C)" in text
    three.reclaim("B", "--without", "A")
    three.start("B")
    three.reclaim("A")
    three.start("A")
    everywhere(three, names, 3 * published)
    found = three.verify()
    assert [found[name] for name in ("missing", "duplicated", "reordered", "mismapped")] == [0] * 4
    assert {name: three.halted(name) for name in names} == {name: {} for name in names}
    check_stores(three, names)
