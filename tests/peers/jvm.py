"""What the peers that run from their jars share: where the jars are, the Java that runs them, free ports.

``make peers`` fetches the jars. Standard library only, so that benchmarks can use it too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
JAVA_VERSION_MIN: Final = 17


class PeerMissing(Exception):
    """The peer cannot run here; the message says what is needed."""


class PeerFailed(Exception):
    """The peer ended, or was not ready in time."""


def jars_of(peer: str) -> Path:
    """Where ``tests/peers/fetch`` puts the jars that a peer's ``pom.xml`` names."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = hashlib.sha256((HERE / peer / "pom.xml").read_bytes()).hexdigest()[:12]
    return cache / "replicator-peers" / f"{peer}-{named}"


def java_version(java: str) -> int:
    """Its major version; 0 if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def find_java() -> str | None:
    """The Java to run a peer with: version 17 or newer."""
    homes = [Path(os.environ["JAVA_HOME"]) / "bin" / "java"] if os.environ.get("JAVA_HOME") else []
    for java in [*map(str, homes), shutil.which("java")]:
        if java is not None and java_version(java) >= JAVA_VERSION_MIN:
            return java
    return None


def free_ports(count: int) -> list[int]:
    """So many ports of 127.0.0.1 that nobody listens at now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
