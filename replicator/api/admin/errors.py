"""Errors of the admin paths alone. Their statuses are those that Pulsar's REST API gives in the same cases."""

from __future__ import annotations

from replicator.engine.errors import EngineError


class Unprocessable(EngineError):
    """The resource cannot make the change, such as fewer partitions or an invalid schema."""

    status = 422


class PreconditionFailed(EngineError):
    """A value that the resource cannot have, or not in its present state."""

    status = 412


class PartitionsOutOfRange(EngineError):
    """A number of partitions that no topic can have."""

    status = 406


class NotOnPartitioned(EngineError):
    """The request is for a partitioned topic, but only a single partition has what it asks for."""

    status = 405


class NotPartitioned(EngineError):
    """The request needs a partitioned topic, and the topic is not partitioned."""

    status = 409


class IsPartitioned(EngineError):
    """The topic is partitioned, and partitioned topics have another path."""

    status = 409


class NotSupported(EngineError):
    """An operation that Pulsar has and this version does not. It is refused, never ignored."""

    status = 501


class NotThere(EngineError):
    """The topic, namespace, tenant or other thing that the request names does not exist."""

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
    """There is nothing to expire up to the given place."""

    status = 409


class CompactionRunning(EngineError):
    status = 409


class MessageNotFound(EngineError):
    status = 404


class InternalCorruption(EngineError):
    """A stored entry cannot be read: the fault is here, not in the request."""

    status = 500
