"""An answer that ends early is an error for every reader, wherever it ends: never fewer blocks, and never a traceback.

Answers are those of a real data plane, cut by a server that then closes the connection as a killed worker does.
"""

from __future__ import annotations

import asyncio
import http.client
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cut_answers import CUTS, answering, cut
from engine_support import TOPIC, make_block, message, opened, serving
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.api.block_lists import routes as block_list_routes
from replicator.api.verifying import add_verifying
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.arrow import (
    END_OF_STREAM,
    Outgoing,
    StreamCutOff,
    decode_append,
    decode_block_list,
    encode_append,
    encode_block_list,
    read_stream,
)
from replicator.engine.staging.values import EpochKey
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import AnswerCutOff, PeerUnavailable
from replicator.pipeline.sink.staging_client import StagingClient
from replicator.pipeline.verify.plane import VerifyPlane
from snapshots.position import BEFORE_ALL, Position

END = Position(2**62, 0)
READERS: dict[str, Callable[[VerifyPlane], Any]] = {
    "blocks": lambda plane: list(plane.blocks(TOPIC)),
    "raw-blocks": lambda plane: list(plane.raw_blocks(TOPIC, BEFORE_ALL, END)),
    "a page of raw blocks": lambda plane: plane.page_of(TOPIC, BEFORE_ALL),
    "block-heads": lambda plane: list(plane.heads(TOPIC, BEFORE_ALL, END)),
    "subscriptions": lambda plane: plane.subscriptions(TOPIC),
    "cuts": lambda plane: plane.standings(),
    "a list of blocks": lambda plane: plane.block_list([(TOPIC, [[1, 0]])]),
}


@cache
def answers() -> dict[str, bytes]:
    """Return a worker's answer to each reader's first request: the head and the body, as they are sent."""

    async def main() -> dict[str, bytes]:
        with tempfile.TemporaryDirectory(prefix="cut-") as directory:
            async with opened(Path(directory)) as engine, serving(engine) as server:
                await server.stop()
                server.also = _add_readers
                await server.start()
                topic = await engine.topic(TOPIC)
                for _ in range(3):
                    await topic.publish([message(b"some content"), message(END_OF_STREAM)])
                url = f"http://{server.address}"
                return {name: await asyncio.to_thread(_recorded, url, read) for name, read in READERS.items()}

    return asyncio.run(main())


def _add_readers(app: web.Application) -> None:
    add_verifying(app)
    app.add_routes(block_list_routes())


class Recording(VerifyPlane):
    """Client of verify's routes that keeps each answer as the bytes of an HTTP response."""

    def _ask_once(
        self, method: str, path: str, body: Any, query: Mapping[str, str]
    ) -> tuple[bytes, http.client.HTTPMessage]:
        answer, headers = super()._ask_once(method, path, body, query)
        lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.answers.append("\r\n".join(lines).encode() + answer)
        return answer, headers

    answers: list[bytes]


def _recorded(url: str, read: Callable[[VerifyPlane], Any]) -> bytes:
    with Recording(url) as plane:
        plane.answers = []
        read(plane)
        return plane.answers[0]


@pytest.mark.parametrize("name", READERS)
def test_an_answer_that_is_whole_is_read(name: str) -> None:
    with answering(answers()[name]) as url, VerifyPlane(url) as plane:
        assert READERS[name](plane) or name == "subscriptions"


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=examples(40), deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_an_answer_that_ends_early_is_an_error_for_every_reader(name: str, share: float) -> None:
    answer = answers()[name]
    body_at = answer.index(b"\r\n\r\n") + 4
    end = body_at + int(share * (len(answer) - body_at))
    with answering(answer[:end]) as url, VerifyPlane(url) as plane:
        with pytest.raises(AnswerCutOff) as raised:
            READERS[name](plane)
        assert url in str(raised.value)
        assert name not in ("blocks", "raw-blocks", "block-heads") or TOPIC in str(raised.value)


@pytest.mark.parametrize("how", CUTS)
@pytest.mark.parametrize("name", READERS)
def test_an_answer_whose_announced_end_does_not_come_is_an_error_though_all_of_it_is_there(name: str, how: str) -> None:
    """A proxy between may send the body in chunks."""
    head, _, body = answers()[name].partition(b"\r\n\r\n")
    told = [line for line in head.split(b"\r\n")[1:] if line.lower().startswith(b"x-replicator")]
    status, rest = cut(body, how).split(b"\r\n", 1)
    sent = b"\r\n".join([status, *told, rest])
    with answering(sent) as url, VerifyPlane(url) as plane, pytest.raises(AnswerCutOff, match=url):
        READERS[name](plane)


@pytest.mark.parametrize("name", ["blocks", "raw-blocks", "block-heads", "a list of blocks"])
@settings(max_examples=examples(40), deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_stream_of_blocks_that_ends_early_is_an_error_though_no_length_was_announced(name: str, share: float) -> None:
    """A proxy between may leave the length out, and closes the connection where the answer ends."""
    head, _, body = answers()[name].partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    cut = b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body[: int(share * len(body))]
    with answering(cut) as url, VerifyPlane(url) as plane, pytest.raises(AnswerCutOff, match=url):
        READERS[name](plane)


def test_a_stream_is_read_at_no_place_where_it_may_be_cut() -> None:
    """Blocks hold what looks like the end of a stream."""
    block = make_block(Position(9, 0), [message(END_OF_STREAM * 3), message(b"2")])
    appended = b"".join(encode_append([Outgoing(TOPIC, BEFORE_ALL, block)] * 2))
    listed = encode_block_list([len(block)] * 2, bytes(block) * 2).to_pybytes()
    assert len(decode_append(appended)[TOPIC]) == 2
    assert len(decode_block_list(listed)) == 2
    for end in range(len(appended)):
        with pytest.raises(BlockCorrupt):
            decode_append(appended[:end])
    for end in range(len(listed)):
        with pytest.raises((StreamCutOff, ValueError)):
            decode_block_list(listed[:end])
        with pytest.raises(StreamCutOff):
            read_stream(listed[:end])


def test_a_reader_that_waits_gives_up_in_the_end_with_the_same_error() -> None:
    cut = answers()["subscriptions"][:-1]
    with answering(cut) as url, DataPlane(url, wait_seconds=0.3) as plane, pytest.raises(AnswerCutOff):
        plane.subscriptions(TOPIC)


@pytest.mark.parametrize("how", CUTS)
def test_a_worker_that_is_written_to_and_killed_in_its_answer_is_one_that_is_away(how: str) -> None:
    with (
        answering(cut(b'{"done": true}', how)) as url,
        StagingClient(url, wait_seconds=0.1) as client,
        pytest.raises(PeerUnavailable, match=url),
    ):
        client.abort(EpochKey("writer", "job", 1), attempts=[])


def test_a_read_with_a_limit_of_the_standard_library_does_not_say_that_a_body_is_cut() -> None:
    """The reason for reading the length: if this fails, it may go."""
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nshort") as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/")
        assert connection.getresponse().read(100) == b"short"
        connection.close()
