"""The account under which the embedded PostgreSQL runs when its worker is root, as whom PostgreSQL refuses to run.

The wheel makes the account with ``useradd``, found on the ``PATH`` alone. The ``PATH`` of cron and of many services has
no ``sbin``, and two workers that start at once on a new machine disturb each other. So we make it first.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SYSTEM_USER: Final = "pgserver"
"""The name that the wheel has in its code; it takes the account that is there."""
SBIN: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Directories in which systems keep ``useradd``; searched after the ``PATH``."""
_LOCKED_STATUSES: Final = (1, 10)
"""Exit statuses of ``useradd`` if the list of users or of groups cannot be written. Another program may have it
locked.
"""
_LOCKED_SECONDS_MAX: Final = 10.0
"""Time to wait while another program has the user list locked: ``useradd`` gives up at once, and others add only a line
or two.
"""
_RETRY_SECONDS: Final = 0.2


class SystemUserMissing(Exception):
    """The account is not there and could not be made; the message says what to do."""


def ensure_system_user() -> None:
    """Make :data:`SYSTEM_USER` if this process is root and there is none. Do nothing as another user. Raise
    :class:`SystemUserMissing`. Blocks.
    """
    useradd = needed_useradd()
    if useradd is None:
        return
    with _alone():
        if not _is_there():
            _make(useradd)


def needed_useradd() -> str | None:
    """Return the path of ``useradd`` if PostgreSQL's account must be created first; None if the account exists or is
    not needed.

    Raises :class:`SystemUserMissing` if the account must be created and there is no ``useradd``.
    """
    if os.geteuid() != 0 or _is_there():
        return None
    useradd = shutil.which("useradd", path=os.pathsep.join([os.environ.get("PATH", os.defpath), *SBIN]))
    if useradd is None:
        raise SystemUserMissing(
            f"PostgreSQL does not run as root, and the system user {SYSTEM_USER} cannot be made for it: there is no "
            f"useradd on the PATH or in {', '.join(SBIN)}. Install it (Debian: package passwd; Fedora: shadow-utils), "
            "make the user yourself, or run as a user that is not root"
        )
    return useradd


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other workers out: of two ``useradd`` at once the second replaces the user of the first, with another id."""
    users = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(users, fcntl.LOCK_EX)
        yield
    finally:
        os.close(users)


def _make(useradd: str) -> None:
    deadline = time.monotonic() + _LOCKED_SECONDS_MAX
    while True:
        made = subprocess.run(
            [useradd, "--system", "--shell", "/bin/false", SYSTEM_USER], capture_output=True, text=True, check=False
        )
        if made.returncode == 0:
            return
        if made.returncode not in _LOCKED_STATUSES or time.monotonic() > deadline:
            said = made.stderr.strip() or f"exit status {made.returncode}"
            raise SystemUserMissing(
                f"PostgreSQL does not run as root, and {useradd} could not make the system user {SYSTEM_USER} for it: "
                f"{said}. Make the user yourself, or run as a user that is not root"
            )
        time.sleep(_RETRY_SECONDS)


def _is_there() -> bool:
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        return False
    return True
