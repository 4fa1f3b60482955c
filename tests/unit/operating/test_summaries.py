"""``replicator status`` and summaries of topics that it does not know, or cannot read."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from rich.console import Console

from replicator.operating.status import exit_status, look
from replicator.peering.topic_summary import SUMMARY_ROUTE, TopicSummary
from replicator.topology import load_topology

BACKLOG = {
    "topic": "persistent://a/b/t", "subscription": "s", "type": None, "replicated": False,
    "mark_delete": "1:1", "backlog_messages": 3, "messages": 3, "lac": "1:1",
}  # fmt: skip
BEHIND = {"topic": "persistent://a/b/t", "link": "A-B", "backlog_entries": 3, "lag_ms": 7}
SUMMARY: dict[str, Any] = {
    "cluster": "A", "topics": 1, "messages": 3, "subscriptions": 1, "backlogs": [BACKLOG], "behind": [BEHIND],
}  # fmt: skip


def test_fields_of_a_newer_worker_are_passed_over() -> None:
    newer = {
        **SUMMARY,
        "more": 1,
        "backlogs": [{**BACKLOG, "more": 1}],
        "behind": [{**BEHIND, "more": 1}],
    }
    assert TopicSummary.of_json(newer) == TopicSummary.of_json(SUMMARY)


STATUS: dict[str, Any] = {
    "cluster": "A", "store": {"failed": None, "bytes": 5_000_000}, "database": {"state": "up"}, "links": [],
}  # fmt: skip


async def looked(tmp_path: Path, summary: Any, status: int = 200) -> tuple[dict[str, Any], str]:
    """The answers of a worker that gives its status and this summary, and what is shown of them."""

    async def answer(request: web.Request) -> web.Response:
        of_summary = request.path == SUMMARY_ROUTE
        return web.json_response(summary if of_summary else STATUS, status=status if of_summary else 200)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        file = tmp_path / "topology.yaml"
        file.write_text(f"clusters: {{A: {{address: '127.0.0.1:{runner.addresses[0][1]}', data: data}}}}\n")
        answers, shown = await look(load_topology(file))
    finally:
        await runner.cleanup()
    console = Console(file=io.StringIO(), width=200)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return answers, console.file.getvalue()


@pytest.mark.parametrize(
    ("summary", "status"),
    [
        ([], 200), ({}, 200), ({**SUMMARY, "topics": None}, 200), ({**SUMMARY, "backlogs": [1]}, 200),
        ({"error": "ServiceNotReady", "message": "later"}, 503),
    ],
)  # fmt: skip
def test_a_worker_that_gives_no_summary_is_shown_with_all_else_that_it_says(
    tmp_path: Path, summary: Any, status: int
) -> None:
    answers, shown = asyncio.run(looked(tmp_path, summary, status))
    assert exit_status(answers) == 3
    assert "error" not in answers["A"]
    (row,) = (line for line in shown.splitlines() if line.startswith("│ A"))
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["ready, but see below", "", "", "up", "?", "?", "5.0"]
    assert "A: gives no summary of its topics" in shown
    assert "127.0.0.1" in shown
