"""Staging: keeps the writes of batch jobs and streams aside until their commit. It is the destination of the Spark
sink."""
