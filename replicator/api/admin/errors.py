"""Errors of the admin paths alone. Their statuses are those that Pulsar's REST API gives in the same cases."""

from __future__ import annotations

from replicator.engine.errors import EngineError


class Unprocessable(EngineError):
    """A body that is JSON, but not what the path takes; the message names the field."""

    status = 422


class PreconditionFailed(EngineError):
    """A value that the resource cannot have, or not in its present state."""

    status = 412


class PartitionsOutOfRange(EngineError):
    """A number of partitions that no topic can have."""

    status = 406


class NotOnPartitioned(EngineError):
    """What is asked for exists for a partition, not for a partitioned topic as a whole."""

    status = 405


class NotSupported(EngineError):
    """An operation that Pulsar has and this version does not. It is refused, never ignored."""

    status = 501


class SubscriptionExists(EngineError):
    status = 409


class SubscriptionBusy(EngineError):
    """The subscription has consumers, and force was not given."""

    status = 412


class CompactionRunning(EngineError):
    status = 409


class MessageNotFound(EngineError):
    status = 404


class InternalCorruption(EngineError):
    """A stored entry cannot be read: the fault is here, not in the request."""

    status = 500
