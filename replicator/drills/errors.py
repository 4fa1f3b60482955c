"""Errors of drills."""

from __future__ import annotations


class DrillError(Exception):
    """A drill that cannot be run as it was asked for, or that could not be brought to its end."""


class InputError(DrillError):
    """Input that cannot be replayed. The message names the file, and the line and field if there is one."""


class ScenarioImpossible(DrillError):
    """The topology lacks something that the scenario needs. With ``--scenario all``, the scenario is left out."""


class ClientMissing(ScenarioImpossible):
    """The client library that the drill is to use is not installed."""


class NoPair(ScenarioImpossible):
    """The topology lacks clusters or links that the scenario needs."""
