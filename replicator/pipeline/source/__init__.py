"""Spark source: topics as tables in batch and stream, decoded by columns."""
