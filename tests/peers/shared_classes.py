"""An archive of the classes that an Apache Pulsar broker loads: it saves a third of the CPU time of a broker's start.

``python tests/peers/shared_classes.py`` prints the options that make Java take the archive. It makes the archive first
if there is none for these jars and this Java, by a broker that starts and ends. If Java cannot make one, the program
prints nothing.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from replicator.drills.peers.jvm import PeerFailed, find_java, jars_of
from replicator.drills.peers.pulsar.broker import PulsarBroker

OTHERS: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Java warns, on its output, of an archive that is of other jars; clients and Kafka's brokers get the same options."""


def archive_of(java: str) -> Path:
    """Return where the archive of these jars lies, for the version of ``java``."""
    version = subprocess.run([java, "-version"], capture_output=True, check=True, env=_plain()).stderr
    return jars_of("pulsar").with_suffix(f".{hashlib.sha256(version).hexdigest()[:12]}.jsa")


def make(archive: Path) -> None:
    """Write the archive. Nothing is there if Java cannot."""
    with tempfile.TemporaryDirectory(prefix="replicator-classes-") as folder:
        made = Path(folder) / archive.name
        broker = PulsarBroker(Path(folder) / "broker", "classes", java=(f"-XX:ArchiveClassesAtExit={made}",))
        broker.start()
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGTERM)
        with suppress(PeerFailed):  # its status says that it was ended
            broker.wait_until_over("the broker")
        if made.exists():
            beside = archive.with_name(f"{archive.name}.{os.getpid()}")
            beside.write_bytes(made.read_bytes())
            beside.replace(archive)


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}


def main() -> None:
    """Print the options; make the archive if it is not there."""
    java = find_java()
    if java is None or not jars_of("pulsar").is_dir():
        return
    archive = archive_of(java)
    if not archive.exists():
        print("making an archive of the broker's classes: a minute", file=sys.stderr)
        try:
            make(archive)
        except (PeerFailed, OSError) as failed:
            print(f"no archive of the broker's classes: {failed}", file=sys.stderr)
    if archive.exists():
        print(f"-XX:SharedArchiveFile={archive} {OTHERS}")


if __name__ == "__main__":
    main()
