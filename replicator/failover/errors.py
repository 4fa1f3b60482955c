"""Errors of a failover; exit statuses as DESIGN §12 has them."""

from __future__ import annotations

from typing import ClassVar

from replicator.engine.errors import EngineError


class FailoverError(Exception):
    """Base of every error of a failover; the text says what to do."""

    exit_status: ClassVar[int] = 2


class SwitchRefused(FailoverError):
    """A check refused the switch: the deadline has passed, a topic is halted, or somebody else switched meanwhile."""

    exit_status = 1


class SwitchImpossible(FailoverError):
    """The request makes no sense, such as a failover to the cluster that serves already."""


class ClusterUnreachable(FailoverError):
    """A cluster that is needed does not answer."""

    exit_status = 3


class SwitchInDoubt(FailoverError):
    """The target stopped answering while it wrote the epoch: whether it has taken over is not known."""

    exit_status = 3


class EpochConflict(EngineError):
    """The worker knows another failover epoch than the one that the request builds upon."""

    status = 409
