"""Groups ``many``, ``many-long`` and ``many-idle``: many topics at once, one small message at a time, beside a broker.

All topics of a run share one connection. In ``send`` each topic sends a message and waits for its receipt, with a
consumer connected. In ``receive`` it also receives the message before it sends the next. In ``acknowledge`` it also
acknowledges the message and waits for the answer. ``spread`` sends single messages to the topics in turn, without
waiting and without consumers. The other figures of ``many`` are of one topic: a backlog of batches that is received and
acknowledged, by one consumer, by five subscriptions, and by ten consumers of a Shared and of a Key_Shared subscription.

The CPU time of a round is that of all threads of the worker or the broker while it is measured, without the time in
which topics are opened. It says more than the rate: the client takes a good part of two cores.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.brokers import JOURNALS, PEER, Broker, Brokers, started
from bench.measurement import Measurement
from bench.official_clients import CASES, Clients, Say
from bench.programs import Program, ProgramFailed, ProgramMissing, Run, go_program_for, python_program

RUNS: Final = 5
TOPICS: Final = (1, 10, 50, 200, 1_000)
WORKS: Final = ("acknowledge", "receive", "send")
"""Kinds of work, in the order in which the Go program does them."""
ROUNDS: Final = {1: 150, 10: 1_500, 50: 3_000, 200: 4_000, 1_000: 5_000}
"""Number of rounds of all topics together, by number of topics: one to four seconds of each work."""
WARMING_TOPICS: Final = 200
WARMING_RUNS: Final = 2
SPREAD_TOPICS: Final = (100, 1_000)
SPREAD_MESSAGES: Final = 40_000
MESSAGE_BYTES: Final = 100
PYTHON_TOPICS: Final = 200
LONG_TOPICS: Final = 200
LONG_PARTS: Final = 10
LONG_PART_SECONDS: Final = 60.0
IDLE_TOPICS: Final = 10_000
IDLE_SECONDS: Final = 60.0
_Step = Callable[[], Awaitable[list[Measurement]]]
OPEN_SECONDS_MAX: Final = 900.0
"""A broker makes 10,000 topics in a minute or two."""


@dataclass(frozen=True, slots=True)
class FanOut:
    """Benchmark case: consumers receive and acknowledge a backlog of ``count`` messages that were sent in batches."""

    name: str
    kind: str
    count: int
    subscriptions: int = 1
    consumers: int = 1


FAN_OUTS: Final = (
    FanOut("five-subscriptions", "exclusive", 100_000, subscriptions=5),
    FanOut("shared-10", "shared", 300_000, consumers=10),
    FanOut("key-shared-10", "key-shared", 30_000, consumers=10),
)


async def measure_many(directory: Path, say: Say, scale: float = 1.0) -> list[Measurement]:
    """Return the figures of group ``many``: rates, latencies and CPU times. ``say`` prints them as they come.

    Run ``scale`` times the usual number of rounds. Return an empty list if Go is missing.
    """
    program = await go_program_for("many", say)
    if program is None:
        return []
    async with started(directory) as brokers:
        _say_promises(brokers, say)
        clients = Clients(program, brokers, "many", RUNS)
        works = _Works(program, clients, scale)
        await works.warm(brokers)
        steps: list[_Step] = [partial(clients.rates, CASES[0])]
        steps += [partial(works.fan_out, case) for case in FAN_OUTS]
        try:
            python = python_program()
            steps.append(partial(_Works(python, Clients(python, brokers, "many", RUNS), scale).python, PYTHON_TOPICS))
        except ProgramMissing as why:
            say(f"the figures of the Python client are left out: {why}")
        # The greatest numbers of topics come last, for the broker keeps all of them.
        steps += [partial(works.rounds, topics) for topics in TOPICS]
        steps += [partial(works.spread, topics) for topics in SPREAD_TOPICS]
        return [each for step in steps for each in await _step(step, say)]


async def _step(step: _Step, say: Say) -> list[Measurement]:
    """Run one step, print and return its figures. Return none if a program failed, so that the others are kept."""
    try:
        return _told(await step(), say)
    except ProgramFailed as why:
        say(f"figures are missing: {why}")
        return []


async def measure_many_long(directory: Path, say: Say, scale: float = 1.0) -> list[Measurement]:
    """Measure rounds for ten minutes (times ``scale``) on each broker; return figures of all, first and last minute.

    In a round a topic sends a message, receives it, and acknowledges it. Return an empty list if Go is missing.
    """
    program = await go_program_for("many-long", say)
    if program is None:
        return []
    part_seconds = LONG_PART_SECONDS * scale
    async with started(directory) as brokers:
        _say_promises(brokers, say)
        topic = Clients(program, brokers, "many-long").topic()
        taken = {
            broker: await program.runs(
                broker,
                seconds_max=OPEN_SECONDS_MAX + LONG_PARTS * part_seconds,
                work="long",
                topic=topic,
                topics=LONG_TOPICS,
                size=MESSAGE_BYTES,
                parts=LONG_PARTS,
                part_seconds=part_seconds,
            )
            for broker in brokers.both
        }
    return _told(long_figures(taken[brokers.ours], () if brokers.peer is None else taken[brokers.peer]), say)


async def measure_many_idle(directory: Path, say: Say, scale: float = 1.0) -> list[Measurement]:
    """Return CPU time, memory and latencies of 10,000 topics (times ``scale``) with a message each every ten seconds.

    Return an empty list if Go is missing.
    """
    program = await go_program_for("many-idle", say)
    if program is None:
        return []
    async with started(directory) as brokers:
        _say_promises(brokers, say)
        clients = Clients(program, brokers, "many-idle")
        topic = clients.topic()
        taken = {
            broker: await program.runs(
                broker,
                seconds_max=OPEN_SECONDS_MAX,
                work="idle",
                topic=topic,
                topics=max(1, int(IDLE_TOPICS * scale)),
                size=MESSAGE_BYTES,
                part_seconds=IDLE_SECONDS,
            )
            for broker in brokers.both
        }
    ours, peer = taken[brokers.ours], () if brokers.peer is None else taken[brokers.peer]
    return _told(
        [
            _beside("many-idle/10k", "msg/s", ours, peer, lambda run: run.rate),
            _beside("many-idle/10k/cpu", "cores", ours, peer, lambda run: run.broker_cores),
            _beside("many-idle/10k/client-cpu", "cores", ours, peer, lambda run: run.client_cores),
            _beside("many-idle/10k/memory", "MB", ours, peer, lambda run: run.broker_bytes / 1e6),
            _beside("many-idle/10k/p50", "ms", ours, peer, lambda run: run.p50_ms),
            _beside("many-idle/10k/p99", "ms", ours, peer, lambda run: run.p99_ms),
        ],
        say,
    )


def _say_promises(brokers: Brokers, say: Say) -> None:
    say(JOURNALS)
    if brokers.missing is not None:
        say(f"figures come without a peer: {brokers.missing}")


def _told(found: list[Measurement], say: Say) -> list[Measurement]:
    say("; ".join(each.beside_peer() for each in found))
    return found


@dataclass(frozen=True, slots=True)
class _Works:
    """Runner of the works of group ``many``. A work is one kind of round, such as send or acknowledge."""

    program: Program
    clients: Clients
    scale: float

    async def warm(self, brokers: Brokers) -> None:
        """Run every work a few times, so that the broker has compiled its code before the first figure."""
        for broker in brokers.both:
            for _ in range(WARMING_RUNS):
                await self._all_works(broker, WARMING_TOPICS)

    async def rounds(self, topics: int) -> list[Measurement]:
        """Return the figures of every work of :data:`WORKS` with ``topics`` topics."""

        taken = await self.clients.in_turn(lambda broker: self._all_works(broker, topics))
        return [
            measured
            for index, work in enumerate(WORKS)
            for measured in self.clients.each(
                f"{topics}/{work}", "rounds/s", {broker: [run[index] for run in runs] for broker, runs in taken.items()}
            )
        ]

    async def _all_works(self, broker: Broker, topics: int) -> list[Run]:
        return await self._runs(broker, "many", ROUNDS[topics], topics=topics)

    async def spread(self, topics: int) -> list[Measurement]:
        return await self._one(f"{topics}/spread", "msg/s", "spread", SPREAD_MESSAGES, topics=topics)

    async def fan_out(self, case: FanOut) -> list[Measurement]:
        return await self._one(
            f"batches/{case.name}",
            "msg/s",
            "fan-out",
            case.count,
            kind=case.kind,
            subscriptions=case.subscriptions,
            consumers=case.consumers,
        )

    async def python(self, topics: int) -> list[Measurement]:
        """Return the figures of the Python client's rounds on ``topics`` topics: send, receive and acknowledge."""
        return await self._one(f"python/{topics}/acknowledge", "rounds/s", "many", ROUNDS[topics], topics=topics)

    async def _one(self, name: str, unit: str, work: str, count: int, **given: Any) -> list[Measurement]:
        """Measure a work that prints one measurement, at each broker in turn, and return its figures.

        ``name`` begins their names; ``count`` and ``given`` are the program's arguments.
        """

        async def once(broker: Broker) -> Run:
            (run,) = await self._runs(broker, work, count, **given)
            return run

        return self.clients.each(name, unit, await self.clients.in_turn(once))

    async def _runs(self, broker: Broker, work: str, count: int, **given: Any) -> list[Run]:
        count = max(1, int(count * self.scale))
        topic = self.clients.topic()
        return await self.program.runs(broker, work=work, topic=topic, size=MESSAGE_BYTES, count=count, **given)


def long_figures(ours: Sequence[Run], peer: Sequence[Run]) -> list[Measurement]:
    """Return the figures of a long run: rates, CPU times, memory, and the last minute's rate divided by the first's.

    Each item of ``ours`` and of ``peer`` measures one minute. This function is pure: it does no I/O.
    """
    name = f"many-long/{LONG_TOPICS}/acknowledge"
    return [
        _beside(f"{name}/all-minutes", "rounds/s", ours, peer, lambda run: run.rate),
        _beside(f"{name}/first-minute", "rounds/s", ours[:1], peer[:1], lambda run: run.rate),
        _beside(f"{name}/last-minute", "rounds/s", ours[-1:], peer[-1:], lambda run: run.rate),
        Measurement(
            f"{name}/last-of-first",
            "times",
            (ours[-1].rate / ours[0].rate,),
            PEER if peer else None,
            (peer[-1].rate / peer[0].rate,) if peer else (),
        ),
        _beside(f"{name}/broker-cpu-first", "ms", ours[:1], peer[:1], lambda run: run.broker_ms),
        _beside(f"{name}/broker-cpu-last", "ms", ours[-1:], peer[-1:], lambda run: run.broker_ms),
        _beside(f"{name}/memory-first", "MB", ours[:1], peer[:1], lambda run: run.broker_bytes / 1e6),
        _beside(f"{name}/memory-last", "MB", ours[-1:], peer[-1:], lambda run: run.broker_bytes / 1e6),
    ]


def _beside(
    name: str, unit: str, ours: Sequence[Run], peer: Sequence[Run], value: Callable[[Run], float]
) -> Measurement:
    return Measurement(name, unit, tuple(map(value, ours)), PEER if peer else None, tuple(map(value, peer)))


def markdown(measured: Sequence[Measurement]) -> str:
    """Return the figures of group ``many`` as the table of docs/compared.md, below a line on how both sync. Pure."""
    found = {each.name: each for each in measured}
    lines = [
        f"{JOURNALS}.",
        "",
        f"| work | worker | {PEER} | ratio | p50 | CPU each, µs | client's cores |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in found.items():
        if not each.unit.endswith("/s") or each.group != "many":
            continue
        cpu = found.get(f"{name}/broker-cpu")
        cells = [
            name.partition("/")[2],
            f"{each.value:,.0f} {each.unit}",
            "" if each.peer_value is None else f"{each.peer_value:,.0f}",
            "" if each.ratio is None else f"{each.ratio:.2f}",
            _pair(found.get(f"{name}/p50"), 1, " ms"),
            _pair(cpu, 1000, "") if cpu is not None and cpu.unit == "ms" else "",  # else it is in cores
            _pair(found.get(f"{name}/client-cpu"), 1, ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _pair(each: Measurement | None, times: float, unit: str) -> str:
    """Format our figure ``each`` and its peer's, if any, both multiplied by ``times``; return "" without ``each``."""
    if each is None:
        return ""
    beside = "" if each.peer_value is None else f", {each.peer_value * times:.3g}"
    return f"{each.value * times:.3g}{beside}{unit}"
