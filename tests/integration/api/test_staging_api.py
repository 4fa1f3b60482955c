"""The staging area's paths as a hostile or confused client uses them: each request is refused by name."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, batch
from staging_support import StagingWorker

from replicator.engine.staging.area import encode_frame

ATTEMPT = "writer=w&run=r&epoch=0&partition=0&attempt=a"
COMMIT = {"writer": "w", "run": "r", "epoch": 0, "receipts": [], "topics": []}


def ask(worker: StagingWorker, path: str, body: bytes | dict[str, Any] = b"") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=20)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", f"/pipeline/v1/staged/{path}", content)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told


def test_what_is_not_of_its_form_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    frame = encode_frame(TOPIC, [batch([b"a"])], [1], 1)
    with StagingWorker(tmp_path) as worker:
        cases: list[tuple[str, bytes | dict[str, Any], int, str]] = [
            ("open?writer=w", b"", 400, "InvalidWriter"),
            (f"open?{ATTEMPT}".replace("writer=w", "writer=../../etc"), b"", 400, "InvalidWriter"),
            (f"open?{ATTEMPT}".replace("epoch=0", "epoch=-1"), b"", 400, "BadRequest"),
            (f"append?{ATTEMPT}&at=x", frame, 400, "BadRequest"),
            (f"append?{ATTEMPT}&at=7", frame, 409, "StagedMissing"),
            (f"append?{ATTEMPT}&at=0", b"no frame", 400, "BlockCorrupt"),
            (f"append?{ATTEMPT}&at=0", bytes(16 * 1024 * 1024 + 1), 413, "FrameTooLarge"),
            (f"seal?{ATTEMPT}&bytes=9", b"", 409, "StagedMissing"),
            ("commit", b"[1]", 400, "BadRequest"),
            ("commit", b"{", 400, "BadRequest"),
            ("commit", {}, 400, "BadRequest"),
            ("commit", COMMIT | {"epoch": "0"}, 400, "BadRequest"),
            ("commit", COMMIT | {"receipts": [["0", "a", 1, 1, 1]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"receipts": [[0, "a"]]}, 400, "BadRequest"),
            ("commit", COMMIT | {"receipts": [[0, "a/b", 1, 1, 1, 1]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"marks": [["a", 1, 2]]}, 400, "BadRequest"),
            ("commit", COMMIT | {"marks": [["a\0b", 1, 2, 3, 4]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"marks": [["a" * 600, 1, 2, 3, 4]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"marks": [[7, 1, 2, 3, 4]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"marks": [["a", "1", 2, 3, 4]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"marks": [["a", 1, -2, 3, 4]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"marks": [["a", 1, 2, 2**64, 4]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"marks": [["a", 1, 2, 3, 2**32]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"base": "0"}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"receipts": [[0, "a", 1, "1", 1, 1]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"receipts": [[0, "a", 1, 1, 1, "1"]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"receipts": [[0, "a", 1, 1, 1, 2**70]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"receipts": [[-1, "a", 1, 1, 1, 1]]}, 400, "InvalidWriter"),
            ("commit", COMMIT | {"receipts": [[0, "a", 1, 1, 1, 1]]}, 409, "StagedMissing"),
            ("abort", {"writer": "w"}, 400, "BadRequest"),
            ("topics", {"topics": 7}, 400, "BadRequest"),
            ("topics", {"topics": ["a//b"]}, 400, "InvalidTopicName"),
        ]
        for path, body, status, code in cases:
            assert (ask(worker, path, body)[0], ask(worker, path, body)[1]["error"]) == (status, code), path
        assert worker.staging.core.staged_bytes == 0
        assert worker.staging.core.pending() == []
        assert worker.staging.core.writers == {}


@pytest.mark.parametrize("repeats", [1, 2])
def test_every_request_may_be_sent_again(tmp_path: Path, repeats: int) -> None:
    frame = encode_frame(TOPIC, [batch([b"a", b"b"])], [2], 1)
    size = len(frame)
    asked: list[tuple[str, bytes | dict[str, Any]]] = [
        (f"open?{ATTEMPT}&marks=true", b""),
        (f"append?{ATTEMPT}&at=0", frame),
        (f"append?{ATTEMPT}&at={size}", frame),
        (f"seal?{ATTEMPT}&bytes={2 * size}", b""),
        (
            "commit",
            COMMIT | {"receipts": [[0, "a", 2 * size, 2, 4, 9]], "topics": [TOPIC], "marks": [["x", 7, 1, 2, 0]]},
        ),
        ("abort", {"writer": "w", "run": "r", "epoch": 0}),
    ]
    with StagingWorker(tmp_path) as worker:
        for path, body in asked:
            for _ in range(repeats):
                assert ask(worker, path, body)[0] == 200
        assert worker.payloads(TOPIC) == [b"a", b"b", b"a", b"b"]
        _, opened = ask(worker, f"open?{ATTEMPT}&marks=true")
        assert (opened["done"], opened["commits"], opened["marks"]) == (True, 1, [["x", 7, 1, 2, 0]])
