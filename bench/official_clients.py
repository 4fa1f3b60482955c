"""Groups ``clients`` and ``go``: the official Python and Go clients, against a worker of ours and a real broker.

Each case is run with both in turn, :data:`RUNS` times after one run that does not count, each run with a topic of its
own; medians are compared. Beside each rate stands the CPU time of the client by the time that the run took: where it is
about a core, the Python client is the limit, and not the broker.

For lag, what each of them sustains is found first, published and consumed at once as fast as it goes; the rate is half
of the lower one, for both.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from bench.brokers import PEER, Broker, Brokers, started
from bench.measurement import Measurement
from bench.programs import Program, ProgramMissing, Run, go_program_for, python_program

RUNS: Final = 3
ONE_BY_ONE_MESSAGES: Final = 500
LAG_SECONDS: Final = 2.0
LAG_BATCH_DELAY_MS: Final = 1
"""The clients' own 10 ms would be most of the lag, and the same with both."""
LAG_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class ClientCase:
    """Messages of ``size`` bytes; a run has ``published`` and ``consumed`` many of them, by language of the client."""

    name: str
    size: int
    batched: bool
    published: Mapping[str, int]
    consumed: Mapping[str, int]

    @property
    def unit(self) -> str:
        return "msg/s" if self.size < 10_000 else "MB/s"

    def rate(self, run: Run) -> float:
        """Return a run's rate in :attr:`unit`; 10**6 bytes of payload are an MB."""
        rate = run.count / run.seconds
        return rate if self.unit == "msg/s" else rate * self.size / 1e6


CASES: Final = (
    ClientCase("100B/batched", 100, True, {"python": 100_000, "go": 400_000}, {"python": 100_000, "go": 400_000}),
    ClientCase("100B/single", 100, False, {"python": 60_000, "go": 40_000}, {"python": 15_000, "go": 15_000}),
    ClientCase("1kB/batched", 1_000, True, {"python": 60_000, "go": 120_000}, {"python": 60_000, "go": 100_000}),
    ClientCase("100kB/single", 100_000, False, {"python": 1_200, "go": 1_500}, {"python": 600, "go": 600}),
)
"""Cases of half a second to five seconds, at the rates that were seen: subscribing is part of the time, and in runs of
0.15 s it was most of the difference. More than may be on their way at once: the Python client sends faster while no
confirmation comes, so whoever confirms late would seem to be faster."""
SUSTAINED_MESSAGES: Final = {"python": 20_000, "go": 200_000}

Say = Callable[[str], None]
_T = TypeVar("_T")


async def measure_clients(directory: Path, say: Say) -> list[Measurement]:
    """Return the figures of group ``clients``. Without the Python client, say so and return an empty list."""
    try:
        program = python_program()
    except ProgramMissing as why:
        say(f"group clients is left out: {why}")
        return []
    return await _measure(program, "clients", directory, say)


async def measure_go(directory: Path, say: Say) -> list[Measurement]:
    """Return the figures of group ``go``. Without the Go program, say so and return an empty list."""
    program = await go_program_for("go", say)
    return [] if program is None else await _measure(program, "go", directory, say)


async def _measure(program: Program, group: str, directory: Path, say: Say) -> list[Measurement]:
    async with started(directory) as brokers:
        if brokers.missing is not None:
            say(f"figures come without a peer: {brokers.missing}")
        clients = Clients(program, brokers, group)
        measured: list[Measurement] = []
        steps = [*(partial(clients.rates, case) for case in CASES), clients.one_by_one, clients.lag]
        for step in steps:
            found = await step()
            for each in found:
                say(each.beside_peer())
            measured += found
    return measured


Taken = dict[Broker, list[Run]]


class Clients:
    """Measurements of one client program: runs it against our worker and the peer in turn, and returns the figures."""

    def __init__(self, program: Program, brokers: Brokers, group: str, runs: int = RUNS) -> None:
        self._program = program
        self._brokers = brokers
        self._group = group
        self._runs = runs
        prefix = f"persistent://public/default/bench-{program.name}"
        self._topics = (f"{prefix}-{number}" for number in itertools.count())

    def topic(self) -> str:
        """Return a name for a topic that no earlier measurement used."""
        return next(self._topics)

    def each(self, name: str, unit: str, taken: Taken) -> list[Measurement]:
        """Return figures of ``taken``, the runs by broker, with ``name`` before each figure's name.

        They are the rate, latencies if measured, the broker's CPU time for each counted item, and the client's cores.
        """
        timed = any(run.p50_ms for runs in taken.values() for run in runs)
        return [
            self._measurement(name, unit, taken, lambda run: run.rate),
            *(self._latencies(name, taken) if timed else ()),
            self._measurement(f"{name}/broker-cpu", "ms", taken, lambda run: run.broker_ms),
            self._measurement(f"{name}/client-cpu", "cores", taken, lambda run: run.client_cores),
        ]

    async def rates(self, case: ClientCase) -> list[Measurement]:
        """Publish a case's messages, then consume them; return the rates of both, with the CPU time of both sides."""
        language = self._program.name
        given = {"size": case.size, "batched": case.batched}
        consumed: Taken = {broker: [] for broker in self._brokers.both}

        async def once(broker: Broker) -> Run:
            topic = self.topic()
            published = await self._program.run(
                broker, work="publish", topic=topic, count=case.published[language], **given
            )
            consumed[broker].append(
                await self._program.run(broker, work="consume", topic=topic, count=case.consumed[language], **given)
            )
            return published

        published = await self.in_turn(once)
        return [
            *self._figures(f"publish/{case.name}", published, case.rate, case.unit),
            *self._figures(
                f"consume/{case.name}", {broker: runs[1:] for broker, runs in consumed.items()}, case.rate, case.unit
            ),
        ]

    async def one_by_one(self) -> list[Measurement]:
        """Return p50 and p99 of sends that each wait for the receipt of the one before."""

        async def once(broker: Broker) -> Run:
            return await self._program.run(
                broker, work="one-by-one", topic=self.topic(), size=LAG_BYTES, count=ONE_BY_ONE_MESSAGES
            )

        return self._latencies("one-send/100B", await self.in_turn(once))

    async def lag(self) -> list[Measurement]:
        """Return the sustained rate, and p50 and p99 from a send to its arrival at a consumer of the same client.

        The lag is measured at half of the lower broker's sustained rate.
        """
        given = {"size": LAG_BYTES, "batched": True}
        count = SUSTAINED_MESSAGES[self._program.name]

        async def flat_out(broker: Broker) -> Run:
            return await self._program.run(broker, work="sustained", topic=self.topic(), count=count, **given)

        sustained = await self.in_turn(flat_out)
        rate = min(run.count / run.seconds for runs in sustained.values() for run in runs) / 2

        async def once(broker: Broker) -> Run:
            return await self._program.run(
                broker,
                work="lag",
                topic=self.topic(),
                count=int(rate * LAG_SECONDS),
                rate=rate,
                batch_delay_ms=LAG_BATCH_DELAY_MS,
                **given,
            )

        return [
            self._measurement("sustained/100B/batched", "msg/s", sustained, lambda run: run.count / run.seconds),
            *self._latencies("lag/100B/batched", await self.in_turn(once)),
        ]

    async def in_turn(self, once: Callable[[Broker], Awaitable[_T]]) -> dict[Broker, list[_T]]:
        """Run ``once`` for each broker in turn, and return the results by broker.

        The first run of each broker does not count. Taking turns lets both brokers see the machine in the same state.
        """
        taken: dict[Broker, list[_T]] = {broker: [] for broker in self._brokers.both}
        for number in range(self._runs + 1):
            for broker in self._brokers.both:
                run = await once(broker)
                if number:
                    taken[broker].append(run)
        return taken

    def _figures(self, name: str, taken: Taken, rate: Callable[[Run], float], unit: str) -> list[Measurement]:
        return [
            self._measurement(name, unit, taken, rate),
            self._measurement(f"{name}/client-cpu", "cores", taken, lambda run: run.client_cores),
            self._measurement(f"{name}/broker-cpu", "cores", taken, lambda run: run.broker_cores),
        ]

    def _latencies(self, name: str, taken: Taken) -> list[Measurement]:
        return [
            self._measurement(f"{name}/p50", "ms", taken, lambda run: run.p50_ms),
            self._measurement(f"{name}/p99", "ms", taken, lambda run: run.p99_ms),
        ]

    def _measurement(self, name: str, unit: str, taken: Taken, value: Callable[[Run], float]) -> Measurement:
        full_name, peer = f"{self._group}/{name}", self._brokers.peer
        ours = tuple(value(run) for run in taken[self._brokers.ours])
        if peer is None:
            return Measurement(full_name, unit, ours)
        return Measurement(full_name, unit, ours, PEER, tuple(value(run) for run in taken[peer]))
