"""The embedded server's account where there is none yet: the real ``useradd``, on the test's own copy of ``/etc``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from replicator.index.system_user import SBIN, SYSTEM_USER

PATH_OF_CRON = "/usr/bin:/bin"

START_AND_STOP = """
import pwd, sys
from pathlib import Path
import psycopg
from replicator.index.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError
server = EmbeddedPostgres(Path(sys.argv[1]))
try:
    with psycopg.connect(server.start()) as connection:
        print("answers", connection.execute("select 1").fetchone())
    server.stop()
    print("runs as", pwd.getpwuid((Path(sys.argv[1]) / "postgres").stat().st_uid).pw_name)
except EmbeddedPostgresError as error:
    print("refused:", error)
"""

WITHOUT_THE_USER = f"""
set -e
mount --make-rprivate /
cp -a /etc "$1"
sed -i '/^{SYSTEM_USER}:/d' "$1"/passwd "$1"/group "$1"/shadow "$1"/gshadow
mount --bind "$1" /etc
"""


def _may_unshare() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _may_unshare(), reason="needs root, and mount namespaces")


def in_a_system_without_the_user(command: str, data: Path, *preparations: str) -> str:
    """Run ``command``, a line of shell, in a mount namespace of its own, with the PATH of cron; return what it
    prints."""
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            "\n".join([WITHOUT_THE_USER, *preparations, command]),
            "sh",
            data.parent / "etc",
        ],
        env={**os.environ, "PATH": PATH_OF_CRON, "PYTHON": sys.executable, "START": START_AND_STOP, "DATA": str(data)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_root_with_the_path_of_cron_gets_the_user_and_a_server(data_dir: Path) -> None:
    assert shutil.which("useradd", path=PATH_OF_CRON) is None, "else this shows nothing"
    said = in_a_system_without_the_user('"$PYTHON" -c "$START" "$DATA"; getent passwd pgserver', data_dir)
    assert said.splitlines()[:2] == ["answers (1,)", f"runs as {SYSTEM_USER}"]
    assert said.splitlines()[2].endswith(":/bin/false"), "nobody logs in as it"


def test_workers_that_start_at_once_on_a_new_machine_all_get_their_servers(data_dir: Path) -> None:
    four = 'for n in 1 2 3 4; do "$PYTHON" -c "$START" "$DATA$n" & done; wait'
    said = in_a_system_without_the_user(four, data_dir)
    assert sorted(said.splitlines()) == ["answers (1,)"] * 4 + [f"runs as {SYSTEM_USER}"] * 4


def test_without_useradd_root_is_told_what_to_install(data_dir: Path) -> None:
    useradd = shutil.which("useradd", path=os.pathsep.join(SBIN))
    said = in_a_system_without_the_user('"$PYTHON" -c "$START" "$DATA"', data_dir, f"mount --bind /dev/null {useradd}")
    assert said.startswith("refused: ")
    assert "no useradd on the PATH or in /usr/local/sbin, /usr/sbin, /sbin" in said
    assert "Install it (Debian: package passwd; Fedora: shadow-utils)" in said


def test_what_useradd_says_is_passed_on(data_dir: Path) -> None:
    # A group of that name and no user: useradd will not guess.
    said = in_a_system_without_the_user(
        '"$PYTHON" -c "$START" "$DATA"', data_dir, f"echo {SYSTEM_USER}:x:999: >> /etc/group"
    )
    assert said.startswith("refused: ")
    assert f"group {SYSTEM_USER} exists" in said
