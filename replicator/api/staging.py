"""Staging over HTTP: where the tasks of a Spark sink put what they write, and its driver commits it.

``POST /pipeline/v1/staged/open | append | seal | commit | abort | topics``; the forms are in docs/http.md. A task
names its attempt by the parameters ``writer``, ``run``, ``epoch``, ``partition`` and ``attempt``; what a commit names
is in its JSON body. Each request may be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.api.json_in_slices import json_in_slices
from replicator.engine.errors import BlockCorrupt, FrameTooLarge
from replicator.engine.staging.service import Outcome, StagingService
from replicator.engine.staging.values import (
    EPOCH_MAX,
    PARTITION_MAX,
    AttemptKey,
    CommitRequest,
    EpochKey,
    Origin,
    Receipt,
    SourceMark,
    check_name,
)
from replicator.running.pacing import Pace
from replicator.running.timeouts import timeout

STAGING: Final = web.AppKey("staging", StagingService)
APPEND_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit of bytes of one append; tasks send a quarter of it at once."""
COMMIT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of bytes of a commit's JSON: it has room for ten thousand partitions and a hundred thousand origins."""
COMMIT_SECONDS_MAX: Final = 10.0
"""Time that a commit is waited for before the answer says that it goes on."""
TOPICS_MAX: Final = 10_000
"""Asked for at once."""
SILENCE_SECONDS_MAX: Final = 60.0


def add_staging(app: web.Application, staging: StagingService) -> None:
    app[STAGING] = staging
    prefix = "/pipeline/v1/staged"
    app.add_routes(
        [
            web.post(f"{prefix}/open", open_attempt),
            web.post(f"{prefix}/append", append),
            web.post(f"{prefix}/seal", seal),
            web.post(f"{prefix}/commit", commit),
            web.post(f"{prefix}/abort", abort),
            web.post(f"{prefix}/topics", topics),
        ]
    )


async def open_attempt(request: web.Request) -> web.Response:
    """Open an attempt of a task. Answer whether there is anything to do, and how far its writer has published each
    origin.
    """
    staging, key = request.app[STAGING], _attempt(request)
    opened = staging.open(key)
    answer: dict[str, Any] = {
        "done": opened.done,
        "commits": opened.commits,
        "sequence_from": opened.sequence_from,
        "epoch": opened.epoch,
    }
    if request.query.get("marks") == "true":
        answer["marks"] = [[*origin, *mark] for *origin, mark in staging.marks(key.epoch.writer)]
    return web.json_response(answer)


async def append(request: web.Request) -> web.Response:
    key, at = _attempt(request), _number(request, "at", 2**62)
    length = request.content_length
    if length is None or length > APPEND_BYTES_MAX:
        length_sent = "no Content-Length" if length is None else f"{length} bytes"
        raise FrameTooLarge(
            f"a request that stages rows of a Spark job has {length_sent}: send its length, and at most "
            f"{APPEND_BYTES_MAX} bytes in each request"
        )
    body = await _body(request, length)
    return web.json_response({"bytes": await request.app[STAGING].append(key, at, body)})


async def seal(request: web.Request) -> web.Response:
    size_bytes = _number(request, "bytes", 2**62)
    await request.app[STAGING].seal(_attempt(request), size_bytes)
    return web.json_response({"bytes": size_bytes})


async def commit(request: web.Request) -> web.Response:
    """Publish the staged rows of a job. Answer 202 if it is decided but takes longer: then ask again."""
    staging, told = request.app[STAGING], await _json(request)
    with _form("the commit"):
        asked = CommitRequest(
            key=_epoch(told),
            receipts=[Receipt(*each) for each in told["receipts"]],
            marks={Origin(*each[:2]): SourceMark(*each[2:]) for each in told.get("marks", ())},
            base=told.get("base"),
            kept=bool(told.get("kept", True)),
        )
        names = [str(name) for name in told.get("topics", ())]
    outcome = await staging.commit(asked, names, COMMIT_SECONDS_MAX)
    if outcome is None:
        return web.json_response({"state": "publishing", "detail": staging.obstacles.get(asked.key)}, status=202)
    return web.json_response({"state": "published", **_outcome(outcome)})


async def abort(request: web.Request) -> web.Response:
    told = await _json(request)
    with _form("the abort"):
        key = _epoch(told)
        job = None if told.get("job") is None else check_name("job", str(told["job"]))
        attempts = [check_name("attempt", str(name)) for name in told.get("attempts") or ()]
    return web.json_response({"dropped": await request.app[STAGING].abort(key, job=job, attempts=attempts)})


async def topics(request: web.Request) -> web.Response:
    """Answer how many partitions the topics have that are about to be written to; 0 for those without."""
    told = await _json(request)
    with _form("the list of topics"):
        names = [str(name) for name in told["topics"]]
    if len(names) > TOPICS_MAX:
        raise BadRequest(f"{len(names)} topics were asked for at once, the limit is {TOPICS_MAX}: ask for fewer")
    return web.json_response({"topics": await request.app[STAGING].partitions(names)})


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "repeated": outcome.repeated,
        "entries": outcome.entries,
        "messages": outcome.messages,
        "bytes": outcome.bytes,
        "topics": {name: [str(first), str(last)] for name, (first, last) in outcome.topics.items()},
        "dropped_topics": sorted(outcome.dropped_topics),
    }


def _attempt(request: web.Request) -> AttemptKey:
    query = request.query
    writer, run = check_name("writer", query.get("writer", "")), check_name("run", query.get("run", ""))
    epoch = EpochKey(writer, run, _number(request, "epoch", EPOCH_MAX))
    attempt = check_name("attempt", query.get("attempt", ""))
    return AttemptKey(epoch, _number(request, "partition", PARTITION_MAX), attempt)


def _epoch(told: Mapping[str, Any]) -> EpochKey:
    epoch = told["epoch"]
    if type(epoch) is not int or not 0 <= epoch <= EPOCH_MAX:
        raise BadRequest(f"field epoch: {epoch!r} is not a number from 0 to {EPOCH_MAX}")
    return EpochKey(check_name("writer", str(told["writer"])), check_name("run", str(told["run"])), epoch)


def _number(request: web.Request, name: str, largest: int) -> int:
    value = request.query.get(name, "")
    if not value.isdecimal() or len(value) > 20 or int(value) > largest:
        raise BadRequest(f"parameter {name}: {value[:30]!r} is not a number from 0 to {largest}")
    return int(value)


@contextmanager
def _form(name_of_request: str) -> Iterator[None]:
    """Turn errors in the form of a body into one API error."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(
            f"the body is malformed for {name_of_request}: {type(error).__name__}: {str(error)[:200]}; run the "
            "worker's version in Spark too"
        ) from None


async def _json(request: web.Request) -> dict[str, Any]:
    length = request.content_length
    if length is None or length > COMMIT_BYTES_MAX:
        length_sent = "no Content-Length" if length is None else f"{length} bytes"
        raise FrameTooLarge(
            f"the request's body has {length_sent}: send its length, and at most {COMMIT_BYTES_MAX} bytes"
        )
    try:
        body = await _body(request, length)
        told = await json_in_slices(body, Pace(request.app[STAGING].turns), marks_max=COMMIT_BYTES_MAX)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON: run the worker's version in Spark too") from None
    if not isinstance(told, dict):
        raise BadRequest("the body is not an object in JSON")
    return told


async def _body(request: web.Request, length: int) -> bytes:
    try:
        async with timeout(SILENCE_SECONDS_MAX):
            return await request.content.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise BlockCorrupt(
            f"the body of a request from Spark ends after {len(error.partial)} of {length} bytes: Spark's task sends "
            "it again"
        ) from None
