"""Spark sink: it turns rows into messages, exactly once, through staging."""
