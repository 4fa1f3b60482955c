"""Traces: the choice of traced messages, the notes about them, and the spans for a collector (ADR on notes)."""
