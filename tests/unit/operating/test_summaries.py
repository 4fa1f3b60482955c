"""``replicator status`` and summaries of topics that it does not know, or cannot read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from replicator.operating.status import fetch_summaries
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


@pytest.mark.parametrize("summary", [[], {}, {**SUMMARY, "topics": None}, {**SUMMARY, "backlogs": [1]}])
def test_a_summary_that_cannot_be_read_is_told_of_its_cluster(tmp_path: Path, summary: Any) -> None:
    async def main() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(summary if request.path == SUMMARY_ROUTE else {"cluster": "A"})

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            file = tmp_path / "topology.yaml"
            file.write_text(f"clusters: {{A: {{address: '127.0.0.1:{runner.addresses[0][1]}', data: data}}}}\n")
            answers, summaries = await fetch_summaries(load_topology(file))
        finally:
            await runner.cleanup()
        assert summaries == {}
        assert answers["A"]["status"] is None
        assert "127.0.0.1" in answers["A"]["error"]

    asyncio.run(main())
