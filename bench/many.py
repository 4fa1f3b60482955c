"""Group ``many``: many topics at once over one connection, each with one small message at a time, beside a real broker.

Each topic sends a message and waits for its receipt, with a consumer connected (``send``). In ``receive`` it also
receives the message before it sends the next. In ``acknowledge`` it also acknowledges the message and waits for the
answer. The CPU time of a round is that of all threads of the worker or the broker. Compare that time: the client takes
a good part of two cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.brokers import Broker, started
from bench.measurement import Measurement
from bench.official_clients import Clients, Say
from bench.programs import ProgramMissing, Run, go_program

TOPICS: Final = (1, 10, 50, 200, 1_000)
WORKS: Final = ("send", "receive", "acknowledge")
ROUNDS: Final = {1: 500, 10: 3_000}
"""Number of rounds of all topics together, by number of topics; :data:`ROUNDS_OF_MANY` for other numbers."""
ROUNDS_OF_MANY: Final = 20_000
MESSAGE_BYTES: Final = 100


async def measure_many(directory: Path, say: Say) -> list[Measurement]:
    """Return rates, latencies and CPU times. Without the Go client, return only a line that says why."""
    try:
        program = await go_program()
    except ProgramMissing as why:
        say(f"group many is left out: {why}")
        return []
    async with started(directory) as brokers:
        if brokers.missing is not None:
            say(f"figures come without a peer: {brokers.missing}")
        clients = Clients(program, brokers, "many")
        measured: list[Measurement] = []
        for topics in TOPICS:
            for work in WORKS:

                async def once(broker: Broker, work: str = work, topics: int = topics) -> Run:
                    return await program.run(
                        broker,
                        work=f"many-{work}",
                        topic=clients.topic(),
                        topics=topics,
                        size=MESSAGE_BYTES,
                        count=ROUNDS.get(topics, ROUNDS_OF_MANY),
                    )

                found = clients.rounds(f"{topics}/{work}", await clients.in_turn(once))
                say("; ".join(each.beside_peer() for each in found))
                measured += found
    return measured
