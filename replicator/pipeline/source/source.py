"""Data source ``format("replicator")``: topics of clusters as Spark tables. docs/spark-tables.md describes it for
users.

This module is Spark's view of the source: its method names, and the columns that a user's schema selects. The options
are in :mod:`source_options <replicator.pipeline.source.options>`. :mod:`planning <replicator.pipeline.source.planning>`
decides what a task reads, and :mod:`reading <replicator.pipeline.source.reading>` reads it. Streams are in
:mod:`stream_source <replicator.pipeline.source.stream_source>`.

The range of each topic is fixed when a read is planned, so the tasks of a read, and their retries, see the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from replicator.pipeline.errors import BadOption
from replicator.pipeline.sink.sink import batch_writer, stream_writer
from replicator.pipeline.source.filters import PushedFilters, condition_of
from replicator.pipeline.source.options import SourceOptions, for_batch, for_stream
from replicator.pipeline.source.planning import bounded_spans, narrowed_spans, plan_ranges
from replicator.pipeline.source.reading import read_ranges, refresh, sample, search_times
from replicator.pipeline.source.schema import COLUMNS, ENTRY_COLUMNS
from replicator.pipeline.source.stream_source import StreamReader
from replicator.pipeline.source.topic_positions import ClusterTopics

if TYPE_CHECKING:
    pass

__all__ = ["FORMAT_NAME", "BatchReader", "ReplicatorDataSource", "read_ranges"]

FORMAT_NAME: Final = "replicator"


class ReplicatorDataSource(DataSource):  # type: ignore[misc]  # pyspark has no types
    """Data source for ``spark.dataSource.register``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        # A wrong option is reported before anything is planned.
        return from_arrow_schema(_columns(SourceOptions.parse(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = for_batch(self.options)
        return BatchReader(options, _selection(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = for_stream(self.options)
        return StreamReader(options, _selection(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return stream_writer(self.options, schema, overwrite=overwrite)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reader of a batch: it plans on the driver, and reads in the tasks."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._filters = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Apply the filters that can be applied exactly; yield the rest."""
        for pushed in filters:
            condition = condition_of(pushed)
            if condition is None or condition.column not in _columns(self._options).names:
                yield pushed
            else:
                self._filters = PushedFilters((*self._filters.conditions, condition))

    def partitions(self) -> list[InputPartition]:
        options = self._options
        standings = {url: ClusterTopics() for url in options.urls}
        refresh(standings, options)
        spans = bounded_spans(
            standings,
            options,
            search_times(standings, options, options.start),
            search_times(standings, options, options.end),
        )
        spans = narrowed_spans(spans, self._filters)
        return [InputPartition(ranges) for ranges in plan_ranges(spans, sample(spans), options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition without a value when there is nothing to read.
        entry_filter = self._filters if self._filters else None
        return read_ranges(partition.value or (), self._columns, mode=self._options.mode, entry_filter=entry_filter)


def _columns(options: SourceOptions) -> pa.Schema:
    return ENTRY_COLUMNS if options.mode == "entries" else COLUMNS


def _selection(schema: StructType, options: SourceOptions) -> pa.Schema:
    """Return the columns that a user's schema asks for. Raises :class:`BadOption` for other columns than the
    source's."""
    available = {field.name: field for field in from_arrow_schema(_columns(options))}
    for field in schema:
        if field.name not in available:
            raise BadOption("schema", f"no column {field.name}; the columns are {', '.join(available)}")
        if field.dataType != available[field.name].dataType:
            expected = available[field.name].dataType.simpleString()
            raise BadOption("schema", f"column {field.name} is {expected}, not {field.dataType.simpleString()}")
    # Spark compares the schema of the given rows with the one that it makes itself, nullability included.
    return to_arrow_schema(schema, timezone="UTC")
