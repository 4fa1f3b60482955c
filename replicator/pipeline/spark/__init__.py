"""Spark's environment: sessions, a Java runtime, packages for executors."""
