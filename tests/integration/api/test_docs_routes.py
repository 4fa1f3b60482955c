"""docs/reference/http.md has every route of a worker that runs, with who may use it."""

from __future__ import annotations

import asyncio

import pytest
import reference_support
from reference_support import DOCS

routes = reference_support.module("reference_routes")


@pytest.fixture(scope="module")
def running() -> list[object]:
    found: list[object] = asyncio.run(routes.running_routes())
    return found


def test_the_routes_are_current(running: list[object]) -> None:
    assert len(running) > 150
    assert reference_support.is_current(routes.PAGE, routes.page(running, DOCS)) is None


def test_a_route_that_nobody_placed_is_for_superusers_and_stands_at_the_end(running: list[object]) -> None:
    page = routes.page([*running, routes.Route("POST", "/new/v1/thing/{name}", "does a thing")], DOCS)
    assert page.endswith("* `POST /new/v1/thing/{name}`: does a thing\n")
    assert "## Other paths\n\nFor superusers." in page


def test_a_route_that_a_table_of_its_page_names_is_not_described_again() -> None:
    page = "| `GET blocks?topic=` · `…/{topic}/trim`, `stats` | text |\nas `POST /spoken`\n"
    explained = [("GET", "/blocks"), ("POST", "/{name}/trim")]
    others = [("POST", "/blocks"), ("GET", "/stats"), ("POST", "/spoken"), ("GET", "/{name}"), ("GET", "/block")]
    assert [each for each in explained if not routes.is_explained(*each, page)] == []
    assert [each for each in others if routes.is_explained(*each, page)] == []


def test_who_may_is_what_the_rules_say() -> None:
    rules = {
        ("GET", "/healthz"): "anybody",
        ("GET", "/replication/v1/blocks"): "`consume` or `replicate` on the topic",
        ("PUT", "/admin/v2/namespaces/{tenant}/{namespace}"): "`admin` on the tenant",
        ("POST", "/replication/v1/topology/reload"): "superusers",
    }
    for (method, path), rule in rules.items():
        assert routes.who_may(routes.Route(method, path, "")) == rule
