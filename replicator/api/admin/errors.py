"""Errors of the admin paths alone. Their statuses are those that Pulsar's REST API gives in the same cases."""

from __future__ import annotations

from replicator.engine.errors import EngineError


class Unprocessable(EngineError):
    """A change that the resource cannot make, such as fewer partitions or a schema that is none."""

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


class NotPartitioned(EngineError):
    """What only a partitioned topic has, asked of another."""

    status = 409


class IsPartitioned(EngineError):
    """A partitioned topic, where another path is for these."""

    status = 409


class NotSupported(EngineError):
    """An operation that Pulsar has and this version does not. It is refused, never ignored."""

    status = 501


class NotThere(EngineError):
    """Something that is no topic, namespace or tenant, and that there is not."""

    status = 404


class AlreadyThere(EngineError):
    status = 409


class ClusterNotAllowed(EngineError):
    """A cluster that the topology does not have."""

    status = 403


class NotReady(EngineError):
    """The worker does not serve clients now; the text says why."""

    status = 503


class SubscriptionExists(EngineError):
    status = 409


class NotExpired(EngineError):
    """A place up to which there is nothing to be treated as consumed."""

    status = 409


class CompactionRunning(EngineError):
    status = 409


class MessageNotFound(EngineError):
    status = 404


class InternalCorruption(EngineError):
    """A stored entry cannot be read: the fault is here, not in the request."""

    status = 500
