"""Verify asks workers again for what they left. It refuses answers that would have it ask for ever, or do not fit."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from replicator.peering.comparing import digest_of_json
from replicator.pipeline.errors import UnexpectedAnswer
from replicator.pipeline.verify.cluster_state import ClusterState, _read_digests, _read_states, no_progress
from replicator.pipeline.verify.plane import VerifyPlane

TOPICS = ("persistent://a/b/one", "persistent://a/b/two")
EMPTY: dict[str, Any] = {"origins": [], "subscriptions": {}, "reached": {}, "markers": {}}
STATE: dict[str, Any] = {"subscriptions": [], "mappings": []}


@contextmanager
def worker(topics: dict[str, Any], left: list[str]) -> Iterator[str]:
    """Answers each request alike, ten at most."""
    answers = iter(range(10))
    body = json.dumps({"cluster": "A", "form": 1, "no_mappings": None, "topics": topics, "left": left}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200 if next(answers, None) is not None else 500)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("told", "left"),
    [((), TOPICS), (TOPICS[:1], TOPICS), (TOPICS[:1], TOPICS[:1]), (TOPICS[:1], ("persistent://a/b/three",))],
)
def test_a_worker_that_leaves_what_it_should_not_is_not_asked_again(
    told: tuple[str, ...], left: tuple[str, ...]
) -> None:
    for row, read in ((STATE, _states), (EMPTY, _digests)):
        with worker(dict.fromkeys(told, row), list(left)) as url, pytest.raises(UnexpectedAnswer, match="leaves"):
            read(url)


def _states(url: str) -> None:
    with VerifyPlane(url) as plane:
        _read_states(ClusterState("A", url), plane, TOPICS, no_progress)


def _digests(url: str) -> None:
    with VerifyPlane(url) as plane:
        _read_digests(ClusterState("A", url), plane, dict.fromkeys(TOPICS, ()), no_progress)


@pytest.mark.parametrize("wrong", [{"subscriptions": {"s": ["00"]}}, {"reached": {"1:1": [None]}}])
def test_a_digest_that_speaks_of_more_origins_than_it_has_cannot_be_read(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="origins"):
        digest_of_json({**EMPTY, **wrong})
