"""Waits of a write for its worker: their limits and reasons, against a scripted worker on a real port."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from replicator.api.staging import TOPICS_MAX
from replicator.engine.staging.values import CommitRequest, EpochKey
from replicator.pipeline.errors import PeerUnavailable
from replicator.pipeline.sink.staging_client import StagingClient

PUBLISHED = {"repeated": False, "entries": 1, "messages": 1, "bytes": 1, "topics": {}, "dropped_topics": []}
COMMIT = CommitRequest(EpochKey("w", "r", 0), [])


@contextmanager
def worker(*phases: tuple[float, int]) -> Iterator[str]:
    """Run a server in place of a worker while the context lasts, and yield its URL.

    From its first request on, it answers with the status of each phase for the seconds of that phase. Afterwards it
    answers that everything is published.
    """
    began: list[float] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            began.append(time.monotonic())
            left = time.monotonic() - began[0]
            status = 200
            for seconds, code in phases:
                if left < seconds:
                    status = code
                    break
                left -= seconds
            topics = asked.get("topics", [])
            assert len(topics) <= TOPICS_MAX
            answer = {"topics": dict.fromkeys(topics, 0)} if self.path.endswith("/topics") else PUBLISHED
            content = b"away" if status == 502 else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_a_worker_that_goes_while_it_publishes_is_waited_for_from_then_on() -> None:
    with worker((1.2, 202), (1.0, 502)) as url, StagingClient(url, wait_seconds=1) as client:
        assert client.commit(COMMIT, []).messages == 1


def test_a_worker_that_does_not_come_back_is_given_up() -> None:
    with (
        worker((30, 502)) as url,
        StagingClient(url, wait_seconds=0.3) as client,
        pytest.raises(PeerUnavailable, match=r"cannot take commit now: status 502; gave up after 0\.3 s"),
    ):
        client.commit(COMMIT, [])


def test_a_task_asks_for_more_topics_than_a_worker_takes_at_once() -> None:
    names = [f"persistent://public/default/t-{number}" for number in range(TOPICS_MAX + 1)]
    with worker() as url, StagingClient(url, wait_seconds=1) as client:
        assert client.topics(names) == dict.fromkeys(names, 0)
