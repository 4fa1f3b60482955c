"""Asking other clusters for a block: whom it waits for is said, and one that is silent is waited for once."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from engine_support import TOPIC, message, opened

from replicator.backup import repairing
from replicator.backup.repairing import _PeerBlocks
from replicator.pipeline.errors import UnexpectedAnswer
from snapshots.position import BEFORE_ALL


def test_invariant_11_a_cluster_that_takes_the_connection_and_is_silent_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairing, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(repairing, "ANSWER_SECONDS", 0.1)
    said: list[str] = []

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message(b"x")])
            (head,) = engine.store.block_heads(topic.topic_id, BEFORE_ALL, topic.log.last, blocks_max=1)
            with socket.create_server(("127.0.0.1", 0)) as silent:
                url = f"http://127.0.0.1:{silent.getsockname()[1]}"
                asking = _PeerBlocks({"eu-west": url}, said.append)
                first = await asyncio.to_thread(asking.copy_of, head, TOPIC)
                assert asking.copy_of(head, TOPIC) == first, "it is not asked again"
            assert first[0] is None
            assert first[1].startswith("eu-west: ")
            assert said[0].startswith(f"asks eu-west at {url} ")
            assert said[1].startswith("eu-west does not answer, and is not asked for other blocks: ")
            assert len(said) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "status", "answered"),
    [
        ("NotCopied", 404, True),
        ("PositionTrimmed", 410, True),
        ("BlockCorrupt", 500, True),
        ("PermissionDenied", 403, False),
        (None, 404, False),
        ("InternalError", 500, False),
        (None, None, False),
    ],
)
def test_a_cluster_that_refuses_to_answer_does_not_say_that_it_has_no_such_block(
    monkeypatch: pytest.MonkeyPatch, code: str | None, status: int | None, answered: bool
) -> None:
    def refuse(*_: object) -> None:
        error = UnexpectedAnswer("refused")
        error.code, error.status = code, status
        raise error

    monkeypatch.setattr(repairing, "_block_there", refuse)
    asking = _PeerBlocks({"eu-west": "http://127.0.0.1:1"}, lambda _: None)
    assert asking.ask(TOPIC, "us-east", 1, BEFORE_ALL, lambda _: True) == (None, "eu-west: refused")
    assert asking.all_answered() is answered
