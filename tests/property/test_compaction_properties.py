"""The view and the log have the newest message of each key after any publishes, compactions, trims and restarts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compaction_support import Keyed, keyed, keyed_batch, messages_in
from engine_support import TOPIC, opened
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.topic import Topic
from replicator.metadata.metadata_pb2 import LZ4, NONE, ZSTD
from snapshots.position import BEFORE_ALL

keyed_messages = st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from([b"", b"x", b"yy"]))
steps = st.lists(
    st.one_of(
        keyed_messages,
        st.tuples(st.lists(keyed_messages, min_size=1, max_size=5), st.sampled_from([NONE, LZ4, ZSTD])),
        st.sampled_from(["compact", "trim", "restart"]),
    ),
    max_size=30,
)


def newest(topic: Topic) -> dict[str, tuple[bytes, tuple[int, int, int]]]:
    """Return, for each key, its newest payload that is not a tombstone, and where that stands in the topic."""
    found: dict[str, tuple[bytes, tuple[int, int, int]]] = {}
    for key, payload, position, index in messages_in(topic.compaction.read(BEFORE_ALL, None, 10**6, 10**9)):
        if key is not None and payload:
            found[key] = (payload, (*position, index))
        elif key is not None:
            found.pop(key, None)
    return found


async def run(path: Path, script: Sequence[object]) -> None:
    expected: dict[str, tuple[bytes, tuple[int, int, int]]] = {}
    compacted_all = False

    def publish_one(message: Keyed, place: tuple[int, int, int]) -> None:
        key, payload = message
        if key is not None and payload:
            expected[key] = (payload, place)
        elif key is not None:
            expected.pop(key, None)

    left = list(script)
    while True:
        async with opened(path) as engine:
            topic = await engine.topic(TOPIC)
            assert newest(topic) == expected
            while left and (step := left.pop(0)) != "restart":
                if step == "compact":
                    await topic.compaction.run()
                    compacted_all = True
                elif step == "trim":
                    if topic.compaction.state.generation:  # of one that is never compacted, trimming takes all
                        await topic.trimming.trim(topic.log.last)
                elif isinstance(step[0], list):  # type: ignore[index]
                    messages, codec = step  # type: ignore[misc]
                    (position,) = await topic.publish([keyed_batch(messages, compression=codec)])
                    for index, one in enumerate(messages):
                        publish_one(one, (*position, index))
                    compacted_all = False
                else:
                    (position,) = await topic.publish([keyed(*step)])  # type: ignore[misc]
                    publish_one(step, (*position, 0))  # type: ignore[arg-type]
                    compacted_all = False
                assert newest(topic) == expected
                if compacted_all:
                    entries = topic.compaction.read(BEFORE_ALL, None, 10**6, 10**9)
                    assert [key for key, *_ in messages_in(entries)] == [
                        key for key, _ in sorted(expected.items(), key=lambda item: item[1][1])
                    ]
            if not left:
                return


@settings(max_examples=examples(20), deadline=None)
@given(steps)
def test_the_view_and_the_log_have_the_newest_message_of_each_key(script: list[object]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), script))
