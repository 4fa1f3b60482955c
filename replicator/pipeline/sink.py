"""``write.format("replicator")`` and ``writeStream``: rows of a query become messages of topics."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of ``df.write``."""
    raise NotImplementedError


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamArrowWriter:
    """The writer of ``df.writeStream``."""
    raise NotImplementedError
