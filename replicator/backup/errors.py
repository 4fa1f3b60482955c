"""Errors of backups. Each says what to do where that is not plain."""

from __future__ import annotations


class BackupError(Exception):
    """Base: a mistake in the request. Exit status 2."""


class BackupDamaged(BackupError):
    """Something in a backup is missing or wrong. Exit status 1."""


class DestinationUnavailable(BackupError):
    """The place where backups are kept cannot be read or written now. Exit status 3."""


class LockLost(BackupError):
    """A command lost its lock at the destination: the lock was not renewed in time, or somebody deleted it. Exit status
    3."""


class DirectoryUnusable(BackupError):
    """The directory where a backup is put together cannot be written: it is full, or not ours. Exit status 3."""


class WorkerNotAsked(BackupError):
    """A worker that does not answer, or refuses. Exit status 3."""


class ReclaimPaused(BackupError):
    """A reclaim was stopped on request before it was finished. Exit status 3."""
