"""Errors of drills."""

from __future__ import annotations


class DrillError(Exception):
    """A drill that cannot be run as it was asked for, or that could not be brought to its end."""


class InputError(DrillError):
    """Input that cannot be replayed; names the file, and the line and field where there is one."""


class NoPair(DrillError):
    """The topology has no two clusters that the drill could move between."""
