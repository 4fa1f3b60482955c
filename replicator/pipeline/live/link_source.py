"""Structured Streaming source and sink ``replicator-link``: live copy of one link as one query.

The rows of the query are plans, not messages: blocks go from worker to worker through the tasks' sockets, never through
the JVM (docs/adr/0030).

1. ``latestOffset`` asks the link for a plan, and waits a moment for one. An offset names it: ``{session, plan}``. The
   first offset is that of a batch which only starts the tasks' processes, as that takes seconds: afterwards plans can
   be carried at once.
2. ``partitions`` makes one of each lane of the plan; ``read`` passes it on as one row.
3. The sink's ``write`` carries the lane (:mod:`replicator.pipeline.live.lane`), which reports finished segments. Its
   commit message has the errors: Spark takes that of one attempt of each task, even if it ran several.
4. ``commit`` and ``abort`` tell the link the errors, if there are any. The next ``latestOffset`` asks for the plan
   after that one: until its tasks run, the processes of those before continue to carry.

So this module imports nothing at its top that takes time: Spark loads it in several processes, in one for each batch.

Nothing is lost with the query's checkpoint, and an old one repeats nothing: a plan that the worker does not know any
more is an empty batch, and the next plan starts at the destination's position.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StringType, StructField, StructType

from replicator.pipeline.errors import BadOption, PeerUnavailable, PlanGone
from replicator.pipeline.live.link_plans import LinkPlans, Plan, PlanId, Segment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from replicator.pipeline.data_plane import DataPlane
    from replicator.pipeline.live.carrying import LinkWork

FORMAT_NAME: Final = "replicator-link"
SCHEMA: Final = StructType([StructField("lane", StringType(), nullable=False)])
WAIT_MS: Final = 1_000
"""Time that the planner waits for something to carry. Spark cannot stop a query meanwhile."""
UNREACHABLE_SECONDS: Final = 0.5
"""Pause after a worker did not answer."""
LANES_MAX: Final = 64
"""Limit of lanes that a link hands out."""

WARMING_UP: Final = "warming up"
"""Session value of the first batch, whose tasks carry nothing."""

SPARKS_OPTIONS: Final = ("path", "checkpointlocation", "queryname", "asyncprogress", "_asyncprogress")
"""Prefixes of options that Spark itself takes, and passes on."""

Offset = dict[str, Any]

_N = TypeVar("_N", int, float)


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Options of the source and the sink; both get the same."""

    url: str
    link: str
    source: str
    destination: str
    address: str
    carrier: str
    name: str = ""
    compression: str = "none"
    lanes: int = 1
    batch_seconds: float = 2.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LinkOptions:
        """Parse the options. Raises :class:`BadOption`."""
        options = {key.lower(): value for key, value in given.items() if not key.lower().startswith(SPARKS_OPTIONS)}
        known = {field: field.replace("_", "") for field in cls.__slots__}
        for name in options:
            if name.replace("_", "") not in known.values():
                raise BadOption(name, f"not an option of {FORMAT_NAME}; it has {', '.join(known)}")
        values = {field: options.get(field, options.get(short)) for field, short in known.items()}
        for field in ("url", "link", "source", "destination", "address", "carrier"):
            if not values[field]:
                raise BadOption(field, f"{FORMAT_NAME} needs it")
        lanes = _number("lanes", values["lanes"] or "1", int)
        seconds = _number("batch_seconds", values["batch_seconds"] or "2", float)
        if not 0 < lanes <= LANES_MAX:
            raise BadOption("lanes", f"{lanes} is not a number from 1 to {LANES_MAX}")
        texts = {field: values[field] or "" for field in ("url", "link", "source", "destination", "address", "carrier")}
        name, compression = values["name"] or "", values["compression"] or "none"
        return cls(**texts, name=name, compression=compression, lanes=lanes, batch_seconds=seconds)

    def as_options(self) -> dict[str, str]:
        return {field: str(getattr(self, field)) for field in self.__slots__}


class LinkDataSource(DataSource):  # type: ignore[misc]  # pyspark has no types
    """Data source for ``spark.dataSource.register``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return PlanReader(LinkOptions.parse(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return LaneWriter(LinkOptions.parse(self.options))


def register(spark: SparkSession) -> None:
    """Register ``format("replicator-link")`` with a session."""
    spark.dataSource.register(LinkDataSource)


def start_query(spark: SparkSession, options: LinkOptions, checkpoint: str) -> StreamingQuery:
    """Start copying a link; ``checkpoint`` is a directory that may be lost."""
    given = options.as_options()
    return (
        spark.readStream.format(FORMAT_NAME)
        .options(**given)
        .load()
        .writeStream.format(FORMAT_NAME)
        .options(**given, checkpointLocation=checkpoint)
        .queryName(options.link)
        .start()
    )


class PlanReader(DataSourceStreamReader):  # type: ignore[misc]
    """Reader on the driver, which asks for plans."""

    hands_over = True
    """Whether the tasks of a batch continue until those of the next relieve them."""

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self._worker: DataPlane | None = None
        self._plan: Plan | None = None
        self._warm = False

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as those below
        return {"session": "", "plan": 0}

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:  # noqa: N802
        if not self._warm:
            self._warm = True
            return {"session": WARMING_UP, "plan": time.time_ns()}
        try:
            plan = self._next_plan(start)
        except (PeerUnavailable, PlanGone):
            time.sleep(UNREACHABLE_SECONDS)
            return start or self.initialOffset()
        if plan.empty:
            return start or self.initialOffset()
        self._plan = plan
        return {"session": plan.id.session, "plan": plan.id.plan}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if start == end or not end["session"]:
            return []
        if end["session"] == WARMING_UP:
            return [_partition(PlanId(WARMING_UP, 0), lane, None) for lane in range(self._options.lanes)]
        wanted = PlanId(end["session"], end["plan"])
        plan = self._plan if self._plan is not None and self._plan.id == wanted else self._plan_again(wanted)
        if plan is None:
            return []
        return [_partition(wanted, lane, segment) for lane, segment in enumerate(plan.lanes)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (partition.value,)

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def _next_plan(self, start: Offset | None) -> Plan:
        before = self._plan
        committed = before is not None and start == {"session": before.id.session, "plan": before.id.plan}
        after = before.id if before is not None and committed else None
        if after is not None and not self.hands_over:
            with contextlib.suppress(PlanGone):
                self._plans().done(after, [])
            after = self._plan = None
        return self._plans().plan(
            self._options.carrier, lanes=self._options.lanes, bytes_max=segment_bytes(), wait_ms=WAIT_MS, after=after
        )

    def _plan_again(self, wanted: PlanId) -> Plan | None:
        """Return the plan of a batch that is run again, if it is still open."""
        try:
            return self._plans().again(wanted)
        except (PeerUnavailable, PlanGone):
            return None

    def _plans(self) -> LinkPlans:
        if self._worker is None:
            from replicator.pipeline.data_plane import DataPlane

            self._worker = DataPlane(self._options.url)
        return LinkPlans(self._worker, self._options.link)


@dataclass(frozen=True, slots=True)
class LaneMessage(WriterCommitMessage):  # type: ignore[misc]
    """Result of a task; ``done`` are its finished segments that were not reported."""

    plan: PlanId
    lane: int
    done: list[dict[str, Any]]
    error: str | None


class LaneWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writer of the sink: ``write`` runs in the tasks, the rest on the driver."""

    def __init__(self, options: LinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # Here, so that a process that only commits does not load what it does not need.
        from replicator.pipeline.live.lane import LINGER_SECONDS, LaneTask, carry_lane

        rows = [json.loads(text) for batch in iterator for text in batch.column(0).to_pylist()]
        if not rows:
            return LaneMessage(PlanId("", 0), 0, [], None)
        (row,) = rows
        if row["session"] == WARMING_UP:
            return LaneMessage(PlanId("", 0), row["lane"], [], None)
        plan, lane = PlanId(row["session"], row["plan"]), row["lane"]
        task = LaneTask(self.work(lane), plan, lane, row["segment"], self._options.batch_seconds, LINGER_SECONDS)
        result = carry_lane(task)
        return LaneMessage(plan, lane, result.unreported, result.error)

    def work(self, lane: int) -> LinkWork:
        """Return the facts about the link for a task that carries ``lane``."""
        from replicator.pipeline.live.carrying import LinkWork

        options = self._options
        return LinkWork(
            worker_url=options.url,
            key=options.link,
            source=options.source,
            destination=options.destination,
            address=options.address,
            name=options.name,
            compression=options.compression,
            stream=f"{options.carrier[:40]} {lane} {_attempt()}",
        )

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        lanes = [message for message in messages if isinstance(message, LaneMessage)]
        errors = sorted({message.error for message in lanes if message.error is not None})
        if errors or any(message.done for message in lanes):
            self._tell(lanes, "; ".join(errors))

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        self._tell([message for message in messages if isinstance(message, LaneMessage)], "Spark gave the batch up")

    def _tell(self, lanes: list[LaneMessage], error: str) -> None:
        """Report the finished segments that the lanes did not report, and the error, if there is one."""
        from replicator.pipeline.data_plane import DataPlane

        lanes = [lane for lane in lanes if lane.plan.session]
        with DataPlane(self._options.url) as worker, contextlib.suppress(PlanGone, PeerUnavailable):
            plans = LinkPlans(worker, self._options.link)
            for lane in lanes:
                if lane.done:
                    plans.following(lane.plan, lane.lane, lane.done, bytes_max=0)
            if lanes and error:
                plans.failed(lanes[0].plan, error)


def _partition(plan: PlanId, lane: int, segment: Segment | None) -> InputPartition:
    return InputPartition(json.dumps({"session": plan.session, "plan": plan.plan, "lane": lane, "segment": segment}))


def _number(option: str, text: str, kind: type[_N]) -> _N:
    try:
        value = kind(text)
    except ValueError:
        value = kind(-1)
    if not 0 < value < float("inf"):
        raise BadOption(option, f"{text!r} is not a number above 0")
    return value


def segment_bytes() -> int:
    from replicator.pipeline.live.lane import SEGMENT_BYTES

    return SEGMENT_BYTES


def _attempt() -> int:
    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())
