"""Traces: which messages are traced, what is remembered of them, and the spans that a collector gets (ADR on notes)."""
