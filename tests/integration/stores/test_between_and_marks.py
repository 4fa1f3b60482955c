"""Messages that a reclaim put back between ledgers of the store.

A peer that lacks them, and consumed what lies around them, must not make them count as consumed.

Invariant (DESIGN §3): 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from backup_support import ORDERS, numbered, publish, take
from failover_support import deployment
from postgres_support import databases_of
from twins_support import Twins


@pytest.fixture
def both(tmp_path: Path, postgres_server: str) -> Iterator[Twins]:
    with (
        databases_of("ABC", postgres_server, "between") as databases,
        deployment(tmp_path, "A", "B", links="[{between: [A, B]}]", databases=databases, kind=Twins) as deployed,
    ):
        yield deployed


def test_invariant_5_a_peer_that_lacks_what_came_back_between_ledgers_says_nothing_of_it(both: Twins) -> None:
    a, b = both.client_url("A"), both.client_url("B")
    asyncio.run(publish(a, numbered("both", 0, 20)))
    asyncio.run(take(a, 1, subscription="work", acknowledge=slice(0, 0)))
    both.part()
    both.reclaim("A", "--from-directory", str(both.path / "data-copy"))
    both._processes.pop("copy", None)
    both.start("A")
    both.until(lambda: "earlier-life" in str(both.status("A")["links"]), "the link names what B lacks")
    both.run_links("resolve", "A", "B", "--topic", ORDERS, "--policy", "keep-both")
    assert both.left("A", "work", ORDERS) == 60
    for number in range(4):
        heard = both.answers_heard("A")
        asyncio.run(publish(a, numbered(f"fourth{number}", 0, 10)))
        both.until(lambda: both.messages("B") == 40 + 10 * number, "messages at B")  # noqa: B023
        both.until(lambda: both.answers_heard("A") > heard, "an answer to a snapshot request at A")  # noqa: B023
    assert len(asyncio.run(take(b, 70, subscription="work"))) == 70
    both.until(lambda: both.left("A", "work", ORDERS) <= 30, "what B consumed at A")
    asyncio.run(publish(a, numbered("last", 0, 10)))
    asyncio.run(take(b, 10, subscription="work"))
    asyncio.run(asyncio.sleep(4))  # nothing may happen in this time
    assert both.left("A", "work", ORDERS) == 30, "nobody consumed what only A has"
    assert set(asyncio.run(take(a, 30, subscription="work"))) == set(numbered("second", 0, 30))
