"""Live copy of a link with SQL (``where``, ``select``): one Structured Streaming query whose rows are messages.

Plans are asked for and reported like those of any link (:mod:`replicator.pipeline.live.link_source`). The difference is
the data in a task:

1. ``read`` fetches the blocks of a lane's segment, one segment for each micro-batch, and makes rows of their messages;
   each block precedes them unchanged (:mod:`replicator.pipeline.live.sql_rows`).
2. Spark keeps the rows that meet ``where``, and makes the columns of ``select``. Nothing is shuffled, so the sink has
   the rows in their order, in the same task.
3. ``write`` makes the remainder of each block (:mod:`replicator.pipeline.live.filtering`), and appends it at the
   destination like any carrier: exactly once by its high-water mark (invariant 2). Left-out ranges are noted there in
   the same transactions (invariant 5).

Like in :mod:`replicator.pipeline.live.link_source`, slow imports are made where they are used.

A condition that is null is not met. An expression that Spark refuses, or that fails on a message, ends the query with
:class:`BadSql` or Spark's own error; other links continue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from replicator.pipeline.errors import BadSql, PipelineError, is_of_spark, reason_of
from replicator.pipeline.live.link_plans import PlanId, Segment
from replicator.pipeline.live.link_source import LaneMessage, LaneWriter, LinkOptions, PlanReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from replicator.pipeline.data_plane import DataPlane

FORMAT_NAME: Final = "replicator-link-sql"
FETCH_BLOCKS_MAX: Final = 64
"""Limit of blocks per request. The worker answers with about a page of them."""
_CASTS: Final = {"payload": "binary", "key": "string", "properties": "map<string,string>"}
_EVERY: Final = "_every_column"
"""Column that nobody names. An expression that refers to it contains ``*``, which is refused."""


def sql_query(spark: SparkSession, link: Mapping[str, Any], options: LinkOptions, checkpoint: str) -> StreamingQuery:
    """Start the query of a link. ``checkpoint`` is a directory.

    The link's ``where`` is a condition, its ``select`` has expressions by ``payload``, ``key`` and ``properties``;
    either may be missing. Raises :class:`BadSql` for an expression that Spark does not take.
    """
    from replicator.pipeline.live.sql_rows import row_schema

    where, masks = link.get("where") or None, dict(link.get("select") or {})
    check_sql(spark, options.link, where, masks)
    spark.dataSource.register(SqlLinkDataSource)
    given = {**options.as_options(), "columns": ",".join(row_schema([where or "", *masks.values()]).names)}
    rows = spark.readStream.format(FORMAT_NAME).options(**given).load()
    return (
        _outgoing_rows(rows, where, masks)
        .writeStream.format(FORMAT_NAME)
        .queryName(f"link {options.link}")
        .option("checkpointLocation", checkpoint)
        .options(**{**given, "masks": ",".join(masks)})
        .start()
    )


def check_sql(spark: SparkSession, link: str, where: str | None, masks: Mapping[str, str]) -> None:
    """Have Spark analyse the expressions of a link. Raises :class:`BadSql`."""
    from pyspark.sql import functions
    from pyspark.sql.pandas.types import from_arrow_schema

    from replicator.pipeline.source.schema import COLUMNS

    messages = spark.createDataFrame([], from_arrow_schema(COLUMNS)).withColumn(_EVERY, functions.lit(0))
    for name, text in [("where", where), *((f"select.{name}", text) for name, text in masks.items())]:
        if not text:
            continue
        try:
            if name == "where":
                checked = messages.filter(functions.expr(text))
            else:
                # Beside a column: alone, an aggregate would be taken.
                checked = messages.select("topic", functions.expr(text).cast(_CASTS[name.removeprefix("select.")]))
            analyzed = checked._jdf.queryExecution().analyzed()
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise BadSql(link, name, text, reason_of(error)) from None
        if _EVERY in analyzed.references().toString():
            raise BadSql(link, name, text, "`*` stands for columns of the link's own too: name those that are meant")


def _outgoing_rows(rows: DataFrame, where: str | None, masks: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions

    from replicator.pipeline.live.sql_rows import Row

    is_message = functions.col("_row") == int(Row.MESSAGE)
    if where:
        rows = rows.filter(~is_message | functions.expr(where))
    columns = [functions.col(name) for name in ("_row", "_block", "_first", "_content", "batch_index")]
    for name, text in masks.items():
        columns.append(functions.when(is_message, functions.expr(text).cast(_CASTS[name])).alias(name))
    return rows.select(*columns)


class SqlLinkDataSource(DataSource):  # type: ignore[misc]  # pyspark has no types
    """Data source for ``spark.dataSource.register``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        from replicator.pipeline.live.sql_rows import row_schema

        return from_arrow_schema(row_schema([self.options["columns"]]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pyspark.sql.pandas.types import to_arrow_schema

        return SegmentReader(self._link_options(), to_arrow_schema(schema, timezone="UTC"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return SegmentWriter(self._link_options(), frozenset(filter(None, self.options.get("masks", "").split(","))))

    def _link_options(self) -> LinkOptions:
        own = ("columns", "masks", "queryname")
        return LinkOptions.parse({key: value for key, value in self.options.items() if key.lower() not in own})


class SegmentReader(PlanReader):
    """Reader that plans on the driver, and makes the rows of a lane's segment in its task."""

    hands_over = False

    def __init__(self, options: LinkOptions, columns: pa.Schema) -> None:
        super().__init__(options)
        self._columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from replicator.pipeline.data_plane import DataPlane
        from replicator.pipeline.live.sql_rows import Row, block_rows, control_row

        columns = self._columns
        yield control_row(columns, Row.SEGMENT, content=partition.value.encode())
        segment: Segment | None = json.loads(partition.value)["segment"]
        if segment is None:
            return
        try:
            with DataPlane(self._options.url) as worker:
                for number, topic, place, block in _blocks(worker, segment):
                    if block is None:
                        yield control_row(columns, Row.MISSING, number)
                    else:
                        yield from block_rows(columns, self._options.source, topic, number, place, block)
        except PipelineError as error:
            yield control_row(columns, Row.FAILED, content=str(error).encode())


def _blocks(worker: DataPlane, segment: Segment) -> Iterator[tuple[int, str, tuple[int, int], bytes | None]]:
    """Yield the blocks of a segment, numbered through all its topics; None for a block that is gone."""
    from replicator.pipeline.live.carrying import asked

    number = 0
    for topic in segment["topics"]:
        places = [asked(block) for block in topic["blocks"]]
        at = 0
        while at < len(places):
            found = worker.block_list([(topic["topic"], places[at : at + FETCH_BLOCKS_MAX])])
            if not 0 < len(found) <= len(places) - at:
                raise PipelineError(
                    f"the source's worker answered with {len(found)} blocks, which is none or more than were asked "
                    "for; run the worker's version in Spark too"
                )
            for place, block in zip(places[at : at + len(found)], found, strict=True):
                yield number, topic["topic"], (place[0], place[1]), block.as_py()
                number += 1
            at += len(found)


class SegmentWriter(LaneWriter):
    """Writer that sends in the tasks, and reports on the driver like that of any link."""

    def __init__(self, options: LinkOptions, masks: frozenset[str]) -> None:
        super().__init__(options)
        self._masks = masks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # Here, so that a process that only commits does not load what it does not need.
        from replicator.links.errors import LinkError
        from replicator.pipeline.live.sql_rebuilding import Rebuilding
        from replicator.pipeline.live.sql_sending import send

        rebuilt = Rebuilding(self._masks)
        for batch in iterator:
            rebuilt.take(batch)
        lane = rebuilt.lane
        if lane is None:
            return LaneMessage(PlanId("", 0), 0, [], None)
        plan = PlanId(lane["session"], lane["plan"])
        if lane["segment"] is None:
            return LaneMessage(plan, lane["lane"], [], None)
        if rebuilt.failed is not None:
            return LaneMessage(plan, lane["lane"], [], rebuilt.failed)
        rebuilt.end()
        work = self.work(lane["lane"])
        try:
            refused, wire_bytes = send(work, rebuilt.outgoing)
        except (PipelineError, LinkError) as error:
            return LaneMessage(plan, lane["lane"], [], str(error))
        return LaneMessage(plan, lane["lane"], [rebuilt.done(refused, wire_bytes)], None)
