"""Errors of drills."""

from __future__ import annotations


class DrillError(Exception):
    """A drill that cannot be run as it was asked for, or that could not be brought to its end."""


class InputError(DrillError):
    """Input that cannot be replayed; names the file, and the line and field where there is one."""


class ScenarioImpossible(DrillError):
    """The topology has not what the scenario needs; with ``--scenario all`` it is left out."""


class ClientMissing(ScenarioImpossible):
    """The client library that the drill is to use is not installed."""


class NoPair(ScenarioImpossible):
    """The topology has not the clusters and links that the scenario needs."""
