"""Programs of the official Python client. Each runs against an Apache Pulsar broker and against our worker.

A program is a function of :class:`At`, which gives it a client, topics of its own and a few helpers to record what it
sees. It returns what it saw as plain values, without what must differ: numbers of ledgers, times, addresses. Where ours
differs on purpose, the program names the row of docs/compatibility.md that says why, and what is seen here.
"""

from __future__ import annotations

import json
import os
import time
import traceback
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pulsar

COMES_MS: Final = 15_000
"""Limit of a wait for something that should come, on a busy machine."""
QUIET_MS: Final = 400
"""Time after which a program takes it that nothing comes."""
RUNS_MAX: Final = 3
"""Limit of runs of a program that differs: on a busy machine, even a broker's results vary."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two brokers."""

    name: str
    service_url: str
    admin_url: str


@dataclass(frozen=True, slots=True)
class Differs:
    """Result of ours that differs from the broker's on purpose."""

    why: str
    """The name of a row of docs/compatibility.md, "Where ours differs from Pulsar 4.0.0"."""
    here: Any
    """Result of the program at ours, or a function that makes it of the broker's result."""


@dataclass(frozen=True, slots=True)
class Program:
    """A name, and what is run."""

    name: str
    call: Callable[[At], Any]
    differs: Differs | None = None


PROGRAMS: Final[dict[str, Program]] = {}


def program(
    *, each: Mapping[str, tuple[Any, ...]] | None = None, differs: Differs | Mapping[str, Differs] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a program; with ``each`` one for each name, which is called with those arguments."""

    def registered(call: Callable[..., Any]) -> Callable[..., Any]:
        variants = {"": ()} if each is None else each
        for variant, arguments in variants.items():
            name = call.__name__ + (f"[{variant}]" if variant else "")
            assert name not in PROGRAMS, name
            why = differs.get(variant) if isinstance(differs, Mapping) else differs
            PROGRAMS[name] = Program(name, lambda at, arguments=arguments: call(at, *arguments), why)
        return call

    return registered


class At:
    """A program's tools on one side: a client, names of its own, and helpers that record what it sees."""

    def __init__(self, side: Side, name: str, stack: ExitStack) -> None:
        self.side = side
        self.name = name
        """Name that no other program or run has. It is the same on both sides, because hashes of names decide some
        things."""
        self.topic = f"persistent://public/default/{name}"
        self._stack = stack
        self._client: Any = None

    @property
    def client(self) -> Any:
        """Return the client of the whole program."""
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def new_client(self, **options: Any) -> Any:
        """Return a client with a connection of its own."""
        options = {"operation_timeout_seconds": 10, **options}
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        client = pulsar.Client(self.side.service_url, logger=quiet, **options)
        self._stack.callback(lambda: attempt(client.close))
        return client

    def producer(self, topic: str | None = None, **options: Any) -> Any:
        return self.client.create_producer(topic or self.topic, **options)

    def consumer(self, subscription: str = "s", topic: Any = None, **options: Any) -> Any:
        """Return a consumer, from the earliest message on by default."""
        options = {"initial_position": pulsar.InitialPosition.Earliest, **options}
        return self.client.subscribe(topic or self.topic, subscription, **options)

    def reader(self, start: Any = None, topic: str | None = None, **options: Any) -> Any:
        return self.client.create_reader(topic or self.topic, start or pulsar.MessageId.earliest, **options)

    def admin(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer of ``/admin/v2/PATH``; of a refusal, the status and ``reason`` only."""
        status, said = self.http(method, f"/admin/v2/{path}", None if body is None else json.dumps(body).encode())
        try:
            answer = json.loads(said) if said else None
        except ValueError:
            answer = said.decode(errors="replace")
        return status, answer

    def http(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(self.side.admin_url + path, method=method, data=body)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


def attempt(call: Callable[[], T], *also: type[Exception]) -> T | str:
    """Return the value of a call, or the class of an error of Pulsar's or of ``also``."""
    try:
        return call()
    except (pulsar.PulsarException, ValueError, TypeError, *also) as error:
        return f"!{type(error).__name__}"


def said(call: Callable[[], Any]) -> str:
    """Return ``fine`` if a call succeeds; else ``!`` and the name of its error's class."""
    outcome = attempt(call)
    return outcome if isinstance(outcome, str) and outcome.startswith("!") else "fine"


def data(message: Any) -> Any:
    """Return the payload as text; None of a null value."""
    return None if message.has_null_value() else message.data().decode(errors="replace")


def take(consumer: Any, count: int, *, acknowledge: bool = False) -> list[Any]:
    """Return the next messages."""
    messages = []
    for _ in range(count):
        message = consumer.receive(COMES_MS)
        if acknowledge:
            consumer.acknowledge(message)
        messages.append(message)
    return messages


def texts(consumer: Any, count: int, *, acknowledge: bool = False) -> list[Any]:
    """Return the payloads of the next messages."""
    return [data(each) for each in take(consumer, count, acknowledge=acknowledge)]


def all_of(consumer: Any, quiet_ms: int = QUIET_MS) -> list[Any]:
    """Return all messages that come, until none has come for a while."""
    messages, wait_ms = [], 1_500
    while True:
        try:
            messages.append(consumer.receive(wait_ms))
        except pulsar.Timeout:
            return messages
        wait_ms = quiet_ms


def quiet(consumer: Any, quiet_ms: int = QUIET_MS) -> Any:
    """``quiet`` if nothing comes; else what came."""
    try:
        return data(consumer.receive(quiet_ms))
    except pulsar.Timeout:
        return "quiet"


def read_all(reader: Any) -> list[Any]:
    """Return the payloads that a reader says there are."""
    read = []
    while reader.has_message_available():
        read.append(data(reader.read_next(COMES_MS)))
    return read


def send_all(producer: Any, contents: Iterable[Any], **options: Any) -> list[Any]:
    """Send without waiting for each; returns the ids in the order of the sends."""
    results: list[Any] = []
    sent = 0
    for content in contents:
        body = content if isinstance(content, bytes) or content is None else str(content).encode()
        producer.send_async(body, lambda result, message_id: results.append((result, message_id)), **options)
        sent += 1
    producer.flush()
    until(lambda: len(results) == sent)
    assert all(result == pulsar.Result.Ok for result, _ in results), results
    return [message_id for _, message_id in results]


def batch(producer_of: At, contents: Iterable[Any], topic: str | None = None, **options: Any) -> list[Any]:
    """Send all of it as one batch."""
    producer = producer_of.producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=10_000, batching_max_messages=1_000, **options
    )
    ids = send_all(producer, contents)
    producer.close()
    return ids


def places(ids: Iterable[Any]) -> list[tuple[int, int, int, int]]:
    """Return the shape of message ids: ledgers by their order, the rest as it is."""
    ids = list(ids)
    ledgers = sorted({each.ledger_id() for each in ids})
    return [(ledgers.index(each.ledger_id()), each.entry_id(), each.batch_index(), each.partition()) for each in ids]


def carried(message: Any) -> dict[str, Any]:
    """Everything that a message says of itself, but for its time."""
    return {
        "data": data(message),
        "properties": message.properties(),
        "partition_key": message.partition_key(),
        "ordering_key": message.ordering_key(),
        "event_timestamp": message.event_timestamp(),
        "redelivery_count": message.redelivery_count(),
        "has_null_value": message.has_null_value(),
        "has_schema_version": bool(message.schema_version()),
        "has_publish_time": message.publish_timestamp() > 0,
        "place": places([message.message_id()]),
    }


def until(holds: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Call ``holds`` again and again until its result is true or the time is over; return the last result."""
    deadline = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def run(program: Program, side: Side, of_this_run: str) -> Any:
    """Run a program on one side; an error that it does not expect is what it saw."""
    short = "".join(letter if letter.isalnum() else "-" for letter in program.name)[:80].strip("-")
    with ExitStack() as stack:
        try:
            return program.call(At(side, f"{short}-{of_this_run}", stack))
        except Exception as error:  # noqa: BLE001
            frames = traceback.extract_tb(error.__traceback__)
            where = " ".join(f"{each.filename.rpartition('/')[2]}:{each.lineno}" for each in frames)
            return {"failed": f"{type(error).__name__}: {error}", "where": where}


def pairs_of_runs(
    program: Program, sides: tuple[Side, Side], of_this_run: str, pool: Executor
) -> Iterator[tuple[Any, Any]]:
    """Return a program's results at the broker and at ours: first from the pool, beside other programs; then, if asked
    for, alone."""
    begun = [pool.submit(run, program, side, of_this_run) for side in sides]

    def seen() -> Iterator[tuple[Any, Any]]:
        theirs, ours = (each.result() for each in begun)
        yield theirs, ours
        for again in range(2, RUNS_MAX + 1):
            theirs, ours = (run(program, side, f"{of_this_run}-{again}") for side in sides)
            yield theirs, ours

    return seen()


def agrees_in_one(program: Program, pairs: Iterable[tuple[Any, Any]], what: Any = None) -> None:
    """Fail unless the two sides show in one of the runs what they should; warn of runs in which they did not."""
    wrong: list[str] = []
    for theirs, ours in pairs:
        said = _wrong(program, theirs, ours)
        if said is None:
            break
        wrong.append(said)
    else:
        raise AssertionError("\n".join([f"{program.name} in {len(wrong)} runs", *wrong, str(what or "")]))
    for said in wrong:
        warnings.warn(f"{program.name}, in one run of more: {said}", stacklevel=2)


def _wrong(program: Program, theirs: Any, ours: Any) -> str | None:
    if isinstance(theirs, dict) and "failed" in theirs:
        return f"fails at the broker: {theirs}"
    expected = theirs
    if program.differs is not None:
        expected = program.differs.here(theirs) if callable(program.differs.here) else program.differs.here
        if ours == theirs:
            return f"{program.differs.why} is no difference any more: both show {ours}"
    return None if ours == expected else f"ours shows {ours}, where it should show {expected}; the broker {theirs}"
