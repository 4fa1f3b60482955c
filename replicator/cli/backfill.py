"""``replicator backfill``: bring a region that joins to where another one is, with its consumers' state.

Thin: it reads its arguments, runs a :class:`replicator.pipeline.backfill.backfill.BackfillRun`, and prints the report.
Exit status: 0 only when the new region has everything that the other had when it began, and every replicated
subscription's state; 1 if not, or where another backfill has the link; 2 wrong usage; 3 a worker that does not answer;
130 stopped.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from replicator.cli.admin import TopologyFile, opened_topology, spark_master
from replicator.cli.output import Shown, side_console
from replicator.cli.program import STOPPED
from replicator.pipeline.json_types import BackfillAnswer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

LOG_SECONDS: Final = 10.0
"""Pause between two lines of progress, where the output is no terminal."""


def backfill(
    file: TopologyFile,
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="CLUSTER", help="Cluster from which the history is copied: the messages that it has."
        ),
    ],
    destination: Annotated[
        str, typer.Option("--to", metavar="CLUSTER", help="Cluster that joins and gets the history.")
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topics",
            metavar="PATTERN",
            help="Copy only topics of this name or pattern, written as in a link's `topics`; may be given again.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Limit of bytes per second, for all tasks together, such as 50MiB."),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Number of tasks that copy in a Spark job. Default: four for each core that Spark has.",
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master. Default: pipeline.master of the topology.")
    ] = None,
    link_name: Annotated[
        str | None,
        typer.Option("--link", metavar="NAME", help="Name of the link, if several links connect the two clusters."),
    ] = None,
) -> Shown[BackfillAnswer]:
    """Bring a cluster that joins up from another one's history, with Spark, and hand over to their link.

    Run it again to go on with one that was stopped or killed. One topic is carried by one task at a time.
    """
    from replicator.pipeline.backfill.backfill import BackfillRequest, BackfillRun, link_for
    from replicator.pipeline.errors import BadOption
    from replicator.topology.links import RATE_BYTES_MIN
    from replicator.topology.patterns import parse_patterns
    from replicator.topology.scalars import parse_size

    master = spark_master(master)
    topology = opened_topology(file)
    rate_bytes = None
    if rate is not None:
        try:
            rate_bytes = int(str(parse_size(rate)))
        except ValueError as error:
            raise BadOption("rate", str(error)) from None
        if rate_bytes < RATE_BYTES_MIN:
            raise BadOption("rate", f"{rate} a second is too little; the least is {RATE_BYTES_MIN} bytes")
    try:
        patterns = parse_patterns(topics or [])
    except ValueError as error:
        raise BadOption("topics", str(error)) from None
    request = BackfillRequest(topology, link_for(topology, source, destination, link_name), patterns, rate_bytes, tasks)

    started: list[SparkSession] = []

    def spark() -> SparkSession:
        from replicator.pipeline.spark.session import spark_session

        session = spark_session(
            master or topology.pipeline.master, "replicator backfill", short_lived=False, conf=topology.pipeline.conf
        )
        started.append(session)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark's own calls Spark, whatever is going on
        return session

    progress = side_console()
    try:
        with _showing(progress) as show, _terminated_as_interrupted():
            report = BackfillRun(request, spark, show).run()
    except KeyboardInterrupt:
        _ignore_interrupts()
        for session in started:
            with contextlib.suppress(Exception):
                session.sparkContext.setLogLevel("OFF")  # that its tasks are cut off is what was asked for
        progress.print("stopped, and the link is given back; the same command goes on from here")
        raise typer.Exit(STOPPED) from None
    finally:
        for session in started:
            with contextlib.suppress(Exception):  # its JVM may have been killed
                session.stop()
    status = 0 if report.done else 3 if report.unavailable else 1
    return Shown(report.as_json(), report.render(), status=status)


@contextlib.contextmanager
def _showing(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress: one changing line on a terminal; elsewhere a line for every phase, and
    sometimes one in between.
    """
    if console.is_terminal:
        with console.status("looking at both clusters") as status:
            yield lambda line: status.update(line)
        return
    said, said_at = "", 0.0

    def say(line: str) -> None:
        nonlocal said, said_at
        phase = line.partition(":")[0]
        if phase != said or time.monotonic() - said_at >= LOG_SECONDS:
            said, said_at = phase, time.monotonic()
            console.print(f"backfill: {line}", soft_wrap=True)

    yield say


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that the link is given back."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C from here on: only cleaning up is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
