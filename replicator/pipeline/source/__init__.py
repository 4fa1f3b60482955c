"""Topics as Spark tables: batch and stream, decoding by columns."""
