"""``python -m replicator.drills.peers``: fetches the jars of Apache Pulsar and Apache Kafka, each once.

They come from Maven Central by Maven, and go to the folder of the user's cache where :func:`jars_of` looks for them.
``make peers`` calls this. It runs with any Python, without the packages that the replicator needs.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from replicator.drills.peers.jvm import HERE, JARS, find_java, jars_of

FETCH_SECONDS_MAX: Final = 900
"""Time limit for fetching the jars; it takes a minute if the repository is near."""


def fetch(peer: str, maven: str) -> Path:
    """Fetch the jars; return their folder. Raise :class:`subprocess.SubprocessError`, and then leave nothing behind."""
    place = jars_of(peer)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.is_dir():
            return place
        print(f"{peer}: fetching its jars to {place}: a minute or two", flush=True)
        making = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
        command = [maven, "-B", "-q", "-s", str(HERE / "settings.xml"), "-f", str(HERE / peer / "pom.xml")]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={making}"]
        try:
            subprocess.run(command, check=True, timeout=FETCH_SECONDS_MAX, stdin=subprocess.DEVNULL)
            making.replace(place)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    return place


def main() -> int:
    maven = shutil.which("mvn")
    if maven is None or find_java() is None:
        print("peers: Java 17 and Maven are needed (on Debian: default-jre-headless, maven)", file=sys.stderr)
        return 1
    for peer in JARS:
        try:
            print(f"{peer}: in {fetch(peer, maven)}")
        except subprocess.SubprocessError as error:
            print(f"{peer}: its jars could not be fetched: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
