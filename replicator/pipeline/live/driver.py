"""Driver of live copy, one Structured Streaming query for each link: ``python -m replicator.pipeline.live.driver``.

The worker of the links' source starts and watches it, or an operator runs it elsewhere (``replicator pipeline run``).
It keeps no state that matters: the worker decides what is copied, and the destination knows what has arrived. So its
checkpoints lie in a scratch directory, and a driver that was killed is simply started again.

It ends on SIGTERM and SIGINT. If its standard input is a pipe or a socket, it also ends when that closes: together with
the worker that started it.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from replicator.links.planner import carrier_name
from replicator.pipeline.data_plane import DataPlane, check_url
from replicator.pipeline.errors import (
    PeerUnavailable,
    PipelineError,
    SparkFailed,
    UnexpectedAnswer,
    is_of_spark,
    reason_of,
)
from replicator.pipeline.live import link_source
from replicator.pipeline.live.link_plans import LinkPlans
from replicator.pipeline.live.supervision import Start, Stop, Supervisor
from replicator.pipeline.spark.scratch import make_scratch
from replicator.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

CONF_VARIABLE: Final = "REPLICATOR_PIPELINE_CONF"
"""Environment variable with the settings of ``pipeline.conf`` as a JSON object. It has secrets, which the worker's
listing leaves out."""
LANES_SETTING: Final = "spark.replicator.lanes"
"""Setting in ``pipeline.conf`` for the number of lanes of each link."""
LANES_MAX: Final = 8
"""Limit of lanes of a link without :data:`LANES_SETTING`. One lane carries some hundreds of MB/s."""
SLOTS_LOCAL: Final = 64
"""Tasks that a local master runs at once. They mostly wait, so there are more of them than cores."""
MEMORY: Final = "1g"
"""Limit of the driver's heap. Spark starts with half of it; links with SQL, which may be added later, need more."""
ALIVE: Final = "alive"
"""Said now and then to a worker that started the driver: it ends one that hangs."""
ALIVE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 1.0
"""Interval of asking the worker for its links, and of checking the queries."""
WORKER_WAIT_SECONDS_MAX: Final = 5.0
"""Longest pause between two attempts to reach a missing worker."""
BATCH_SECONDS: Final = 2.0
"""Length of a micro-batch if the worker does not say. Each one costs some tenths of a second."""
ATTEMPTS_LOCAL: Final = 4
"""Attempts of each task, as on a cluster. By default a local master fails the batch when one task fails once."""
SCRATCH_PREFIX: Final = "replicator-live-"
"""Prefix of the scratch directory's name; the process's id follows."""


class LiveCopy:
    """Queries of one worker's links. ``scratch`` is a directory for their checkpoints. ``alive`` is called often while
    nothing hangs."""

    def __init__(
        self,
        spark: SparkSession,
        worker_url: str,
        lanes: int,
        scratch: Path,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._spark = spark
        self._worker_url = worker_url
        self._lanes = lanes
        self._scratch = scratch
        self._carrier = carrier_name(os.getpid()) + secrets.token_hex(4)
        self._alive = alive
        self._supervisor = Supervisor()
        self._queries: dict[str, tuple[StreamingQuery, Path]] = {}
        """Query of each link, with the directory of its checkpoint."""
        self._unreachable = ""
        link_source.register(spark)

    def run(self, ended: threading.Event) -> None:
        """Copy until ``ended`` is set. Raise :class:`SparkFailed` if Spark has ended, so that no query can start any
        more."""
        while not ended.is_set():
            try:
                self.step()
            except Exception as error:
                if isinstance(error, OSError) or is_of_spark(error):  # a query was asked of a JVM that is gone
                    self._check_spark(error)
                raise
            ended.wait(POLL_SECONDS)

    def close(self) -> None:
        """Stop all queries, and release their links."""
        for key in list(self._queries):
            self._stop(key)

    def step(self) -> None:
        """Look once at the worker's links and at the queries, and start and stop queries accordingly."""
        self._alive()
        try:
            with DataPlane(self._worker_url) as worker:
                listing = worker.call("GET", "/pipeline/v1/links")
            self._unreachable = ""
        except (PeerUnavailable, UnexpectedAnswer) as error:
            self._say_once(str(error))  # what runs goes on: it finds the worker again by itself
        else:
            seconds = listing.get("batch_seconds", BATCH_SECONDS)
            self._supervisor.on_links({**link, "batch_seconds": seconds} for link in listing["links"])
        self._note_ended()
        for action in self._supervisor.actions(time.monotonic()):
            match action:
                case Stop(key):
                    self._stop(key)
                case Start(key, link):
                    self._start(key, link)
            self._alive()

    def _start(self, key: str, link: Mapping[str, Any]) -> None:
        checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=self._scratch))
        try:
            # As a URI: a bare path would lie in HDFS if that is the cluster's default.
            self._queries[key] = self._query(link, checkpoint.as_uri()), checkpoint
        except Exception as error:
            _remove(checkpoint)
            if not (isinstance(error, PipelineError) or is_of_spark(error)):
                raise
            self._failed(key, error)

    def _query(self, link: Mapping[str, Any], checkpoint: str) -> StreamingQuery:
        options = link_source.LinkOptions(
            url=self._worker_url,
            link=link["key"],
            source=link["source"],
            destination=link["destination"],
            address=link["address"],
            carrier=self._carrier,
            name=link["name"],
            compression=link["compression"],
            lanes=self._lanes,
            batch_seconds=float(link["batch_seconds"]),
        )
        if link.get("where") or link.get("select"):
            from replicator.pipeline.live.sql_link import sql_query

            return sql_query(self._spark, link, options, checkpoint)
        return link_source.start_query(self._spark, options, checkpoint)

    def _stop(self, key: str) -> None:
        if key in self._queries:
            query, checkpoint = self._queries.pop(key)
            query.stop()
            _remove(checkpoint)
        try:
            with DataPlane(self._worker_url) as worker:
                LinkPlans(worker, key).release(self._carrier)
        except (PeerUnavailable, UnexpectedAnswer):
            return  # the worker, or its link, has gone too

    def _note_ended(self) -> None:
        for key, (query, checkpoint) in list(self._queries.items()):
            if not query.isActive:
                del self._queries[key]
                _remove(checkpoint)
                self._failed(key, query.exception())
            self._alive()

    def _failed(self, key: str, error: BaseException | None) -> None:
        """Report the error, here and at the worker, whose link shows it. Raise :class:`SparkFailed` if Spark ended."""
        self._check_spark(error)
        reason = reason_of(error)
        _say(f"link {key}: {reason}; it is tried again")
        self._supervisor.on_ended(key, time.monotonic())
        try:
            with DataPlane(self._worker_url) as worker:
                plans = LinkPlans(worker, key)
                plan = plans.plan(self._carrier, lanes=1, bytes_max=1, wait_ms=0)
                if plan.id.session:
                    plans.failed(plan.id, reason)
        except (PeerUnavailable, UnexpectedAnswer):
            return

    def _check_spark(self, error: BaseException | None) -> None:
        """Raise :class:`SparkFailed` if Spark has ended, which was noticed by ``error``."""
        if _has_ended(self._spark):
            reason = reason_of(error)
            text = f"Spark has ended by itself, and this driver with it: start it again; the last error: {reason}"
            raise SparkFailed(text) from None

    def _say_once(self, text: str) -> None:
        if text != self._unreachable:
            self._unreachable = text
            _say(text)


def _has_ended(spark: SparkSession) -> bool:
    """Return whether Spark has stopped, or its JVM is gone: then no query can be started any more."""
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception as error:
        if not (isinstance(error, OSError) or is_of_spark(error)):
            raise
        return True


def _remove(checkpoint: Path) -> None:
    """Delete a query's checkpoint, which the next start does not need. Many of them would fill the memory."""
    shutil.rmtree(checkpoint, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the driver; return the exit status: 0 when told to end, 2 for errors of the user, 3 if Spark does not run."""
    parser = argparse.ArgumentParser(
        prog="replicator.pipeline.live.driver", description="Copies the links of a worker by Spark."
    )
    parser.add_argument(
        "--worker", required=True, metavar="URL", help="the worker of the links' source, http://HOST:PORT"
    )
    parser.add_argument("--master", metavar="M", help="Spark's master; else what the worker's topology says")
    given = parser.parse_args(arguments)
    try:
        return run_until_signal(given.worker, given.master)
    except PipelineError as error:
        _say(str(error))
        return 3 if isinstance(error, SparkFailed) else 2


def run_until_signal(worker_url: str, master: str | None) -> int:
    """Copy until a signal or the end of the input; return the exit status.

    Raises :class:`PipelineError` for errors that the user can correct, and :class:`SparkFailed`.
    """
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):  # uvloop's pipes to children are sockets
        threading.Thread(target=_end_with_input, args=(ended,), daemon=True).start()
    try:
        return run(worker_url, master, ended)
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise SparkFailed(f"Spark does not run: {reason_of(error)}") from None


def run(worker_url: str, master: str | None, ended: threading.Event) -> int:
    """Copy until ``ended`` is set; return the exit status. Raises :class:`PipelineError`."""
    worker_url = check_url(worker_url)
    listing = _first_listing(worker_url, ended)
    if listing is None:
        return 0
    conf = {**listing.get("conf", {}), **json.loads(os.environ.get(CONF_VARIABLE) or "{}")}
    master = master or str(listing["master"])
    # Messages pass through the JVM only for links with SQL. For others it plans a few tasks a second, and does not need
    # the second compiler.
    has_sql = any(link.get("where") or link.get("select") for link in listing["links"])
    scratch = make_scratch(SCRATCH_PREFIX, _scratch_parent())
    try:
        spark = spark_session(
            with_slots(master),
            f"replicator live copy of {listing['cluster']}",
            short_lived=not has_sql,
            conf=_conf(conf),
        )
        try:
            lanes = lanes_of(master, conf, spark.sparkContext.defaultParallelism)
            by_worker = CONF_VARIABLE in os.environ
            copying = LiveCopy(spark, worker_url, lanes, scratch, _sayer_of_life() if by_worker else lambda: None)
            _say("ready")
            copying.run(ended)
            spark.sparkContext.setLogLevel("OFF")  # each task that is stopped says so, at length
            copying.close()
        finally:
            with suppress(OSError):  # its JVM is gone: what is said is the error that came of it
                spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def with_slots(master: str) -> str:
    """Return a local master with room for the waiting tasks of many links; return other masters unchanged."""
    return f"local[{SLOTS_LOCAL},{ATTEMPTS_LOCAL}]" if master.startswith("local[") or master == "local" else master


def lanes_of(master: str, conf: Mapping[str, str], parallelism: int) -> int:
    """Return the number of lanes of a link: half the number of cores, because the workers of both sides need the
    others."""
    if LANES_SETTING in conf:
        return max(1, min(int(conf[LANES_SETTING]), link_source.LANES_MAX))
    if master.startswith("local["):
        cores = master.removeprefix("local[").partition("]")[0].partition(",")[0]
        parallelism = int(cores) if cores.isdecimal() else os.cpu_count() or 1
    elif master == "local":
        parallelism = 1
    return max(1, min(parallelism // 2, LANES_MAX))


def _conf(given: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings; given ones override the defaults."""
    return {
        "spark.driver.memory": MEMORY,
        "spark.scheduler.mode": "FAIR",  # a link with much to copy does not hold up another
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        "spark.sql.ui.retainedExecutions": "5",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        **given,
    }


def _first_listing(worker_url: str, ended: threading.Event) -> dict[str, Any] | None:
    """Return the worker's listing of links, after waiting until it answers; None when told to end meanwhile."""
    pause_seconds, said = 0.2, ""
    while not ended.is_set():
        try:
            with DataPlane(worker_url) as worker:
                return worker.call("GET", "/pipeline/v1/links")
        except PeerUnavailable as error:
            if str(error) != said:
                said = str(error)
                _say(said)
        ended.wait(pause_seconds)
        pause_seconds = min(WORKER_WAIT_SECONDS_MAX, 2 * pause_seconds)
    return None


def _scratch_parent() -> Path:
    """Return the directory for checkpoints: in memory if possible, because a micro-batch writes two small files and
    waits.

    The files are in a subdirectory of a name that nobody can guess."""
    memory = Path("/dev/shm")  # nosec B108
    return memory if memory.is_dir() and os.access(memory, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _end_with_input(ended: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    ended.set()


def _sayer_of_life() -> Callable[[], None]:
    """Return a function that says :data:`ALIVE` when it is called, at most once in :data:`ALIVE_SECONDS`."""
    due_seconds = 0.0

    def alive() -> None:
        nonlocal due_seconds
        if (now_seconds := time.monotonic()) >= due_seconds:
            due_seconds = now_seconds + ALIVE_SECONDS
            _say(ALIVE)

    return alive


def _say(text: str) -> None:
    print(f"live copy: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
