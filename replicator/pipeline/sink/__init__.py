"""Rows become messages, exactly once: the Spark sink and what it stages."""
