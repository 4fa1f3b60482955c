"""Base of peers that run from their jars: the place of the jars, and the Java that runs them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
JARS: Final = ("pulsar", "pulsar_proxy", "kafka")
"""Peers with jars. Each has a folder here, with a ``pom.xml`` that names its jars."""
JAVA_VERSION_MIN: Final = 17
END_SECONDS_MAX: Final = 30.0


class PeerMissing(Exception):
    """The peer cannot run here; the message says what is needed."""


class PeerFailed(Exception):
    """The peer ended, or was not ready in time."""


def jars_of(peer: str) -> Path:
    """Return the directory into which :mod:`replicator.drills.peers.__main__` puts the jars named in a peer's
    ``pom.xml``.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = hashlib.sha256((HERE / peer / "pom.xml").read_bytes()).hexdigest()[:12]
    return cache / "replicator-peers" / f"{peer}-{named}"


def java_version(java: str) -> int:
    """Return Java's major version; 0 if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def find_java() -> str | None:
    """Return the Java to run a peer with, version 17 or newer; None if there is none."""
    homes = [Path(os.environ["JAVA_HOME"]) / "bin" / "java"] if os.environ.get("JAVA_HOME") else []
    for java in [*map(str, homes), shutil.which("java")]:
        if java is not None and java_version(java) >= JAVA_VERSION_MIN:
            return java
    return None


def jars_missing(peer: str, title: str) -> str | None:
    """Return why a peer cannot run here from its jars, and what to do; None if it can."""
    if find_java() is None:
        return (
            f"{title} needs Java {JAVA_VERSION_MIN} or newer, and none is here: install one (on Debian: "
            "default-jre-headless), or name it by JAVA_HOME"
        )
    if not jars_of(peer).is_dir():
        return (
            f"the jars of {title} are not here: fetch them by `python -m replicator.drills.peers` (`make peers` in a "
            f"checkout), which needs Maven (on Debian: maven) and puts them into {jars_of(peer).parent}"
        )
    return None


def version_of(peer: str) -> str:
    """Return the version of the peer that its ``pom.xml`` names."""
    found = re.search(rf"<{peer}.version>(.*)</{peer}.version>", (HERE / peer / "pom.xml").read_text())
    assert found is not None, f"{peer}/pom.xml names no version"
    return found[1]


class PeerProcess:
    """The process of a peer that was started."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id; None while no process of ours runs, for example if the peer is in a container."""
        return self._process.pid if self._process is not None else None

    def kill(self) -> None:
        """Kill the process, as ``kill -9`` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Stop the process as an operator does; kill it if that takes too long."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS_MAX)
        self.kill()
