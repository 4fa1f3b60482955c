"""Exit status of an error: 2 if the user can correct it, 3 if something cannot be reached. See DESIGN §12.

Systemd's unit starts a worker again that ends with 3, and not one that ends with 2 (docs/systemd). So 3 is also what
may pass: a database that was never reached, which may start later, and a port that another process still has.
"""

from __future__ import annotations

import errno
from typing import Final

from replicator.operating.errors import AdminError, NotThere, WorkerUnavailable

NOT_PERMITTED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Error numbers of a wrong user, or of a disk that is mounted read-only. Exit status 1 would wrongly report damage."""


def exit_status_of(error: Exception) -> int | None:
    """Return the exit status of an error; None for an unexpected one, which is shown with its traceback."""
    if isinstance(error, AdminError):
        if isinstance(error, NotThere):
            return 1
        return 3 if isinstance(error, WorkerUnavailable) else 2
    # Importing everything that can fail takes seconds: a command that asks a worker has failed in a blink.
    from replicator.backup.errors import (
        BackupDamaged,
        BackupError,
        DestinationUnavailable,
        DirectoryUnusable,
        LockLost,
        ReclaimPaused,
        WorkerNotAsked,
    )
    from replicator.drills.errors import DrillError
    from replicator.engine.errors import EngineError, NoRoomToOpen, StoreCopyFailed, StoreFailed, StoreFull
    from replicator.engine.log.disk_room import is_full
    from replicator.failover.errors import FailoverError
    from replicator.index.database import DatabaseError, DatabaseNeverReached, DatabaseUnavailable
    from replicator.operating.binding import PlaceTaken, WorkerError
    from replicator.operating.processes import WorkerFailed
    from replicator.pipeline.errors import LinkTaken, PeerUnavailable, PipelineError, SparkFailed
    from replicator.running.extras import ExtraMissing
    from replicator.security.errors import SecurityError
    from replicator.topology import TopologyError

    if isinstance(error, WorkerFailed):
        return error.status
    if isinstance(error, FailoverError):
        return error.exit_status
    if isinstance(error, LinkTaken | BackupDamaged):
        return 1
    away = (DatabaseUnavailable, DestinationUnavailable, PeerUnavailable, SparkFailed, StoreCopyFailed, StoreFailed)
    passing = (
        DatabaseNeverReached,
        DirectoryUnusable,
        LockLost,
        NoRoomToOpen,
        PlaceTaken,
        ReclaimPaused,
        StoreFull,
        WorkerNotAsked,
    )
    if isinstance(error, (*away, *passing)):
        return 3
    if isinstance(error, OSError):
        if is_full(error):
            return 3
        return 2 if error.errno in NOT_PERMITTED else None
    wrong_use = (
        BackupError,
        TopologyError,
        WorkerError,
        DatabaseError,
        DrillError,
        EngineError,
        ExtraMissing,
        PipelineError,
        SecurityError,
    )
    return 2 if isinstance(error, wrong_use) else None
