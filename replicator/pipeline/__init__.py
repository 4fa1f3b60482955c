"""Topics in Spark: the Data Source, and verify."""
