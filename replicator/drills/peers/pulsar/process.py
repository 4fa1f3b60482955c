"""Base of Apache Pulsar's processes: they are started from their jars, called, and waited for."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from replicator.drills.peers.jvm import PeerFailed, PeerProcess, find_java, jars_of
from replicator.running.connecting import ENDED_EARLY

READY_SECONDS_MAX: Final = 240.0
"""Longest time until a broker is ready. On an idle machine it takes 7 s."""
REDIRECTS_MAX: Final = 5
"""Most redirects to follow. A broker redirects to the broker that has the topic."""
ANSWER_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.1

_LOG: Final = """<Configuration>
  <Appenders>
    <RollingFile name="file" fileName="{directory}/broker.log" filePattern="{directory}/broker.%i.log">
      <PatternLayout pattern="%d{{HH:mm:ss.SSS}} %-5level [%t] %c{{1}} - %m%n"/>
      <Policies><SizeBasedTriggeringPolicy size="20 MB"/></Policies>
      <DefaultRolloverStrategy max="2"/>
    </RollingFile>
  </Appenders>
  <Loggers><Root level="${{sys:level:-warn}}"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""
_OPENED: Final = (
    "java.base/sun.net",
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


class PulsarProcess(PeerProcess):
    """One process, with its files in ``directory``. Its data outlives it."""

    def __init__(self, directory: Path, java: Sequence[str] = ()) -> None:
        super().__init__()
        self.directory = directory
        self._java = tuple(java)

    def log_tail(self, lines: int = 40) -> str:
        """Return the last ``lines`` lines of each of the process's log files."""
        said = ""
        for name in ("out", "broker.log"):
            file = self.directory / name
            if file.exists():
                said += "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) + "\n"
        return said

    def run_java(
        self,
        main: str,
        *arguments: str,
        heap: Sequence[str],
        jars: str = "pulsar",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the class ``main`` of the peer ``jars``, with ``heap`` as the JVM's options of memory."""
        java = find_java()
        assert java is not None
        log = self.directory / "log4j2.xml"
        log.write_text(_LOG.format(directory=self.directory))
        with (self.directory / "out").open("wb") as out:
            self._process = subprocess.Popen(
                [
                    java,
                    *heap,
                    f"-Dlog4j2.configurationFile={log}",
                    "-Dio.netty.tryReflectionSetAccessible=true",
                    "--add-exports=java.management/sun.management=ALL-UNNAMED",
                    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
                    *self._java,
                    "-cp",
                    f"{jars_of(jars)}/*",
                    main,
                    *arguments,
                ],
                cwd=self.directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def wait_until_over(self, program: str) -> None:
        """Wait until the process has ended by itself without an error. Raise :class:`PeerFailed`."""
        assert self._process is not None
        try:
            status: int | None = self._process.wait(READY_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            status = None
        self.kill()
        if status is None:
            raise PeerFailed(
                f"{program} did not end within {READY_SECONDS_MAX:.0f} s; its log ends:\n{self.log_tail()}"
            )
        if status:
            raise PeerFailed(f"{program} failed with exit status {status}; its log ends:\n{self.log_tail()}")

    def wait_until(self, ready: Callable[[], bool], program: str) -> None:
        """Wait until ``ready`` is true; until then it may raise :class:`OSError` and :class:`ValueError`. Raise
        :class:`PeerFailed`.
        """
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                if ready():
                    return
            except (OSError, ValueError):  # not listening yet, or not far enough
                pass
            if self._process is not None and self._process.poll() is not None:
                raise PeerFailed(f"{program} ended by itself; its log ends:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise PeerFailed(
                    f"{program} was not ready after {READY_SECONDS_MAX:.0f} s; its log ends:\n{self.log_tail()}"
                )
            time.sleep(POLL_SECONDS)


def ask_admin(
    admin_url: str, token: str | None, method: str, path: str, body: Any = None, authority: Path | None = None
) -> Any:
    """Call ``/admin/v2/PATH`` of a broker, with JSON both ways; raise :class:`urllib.error.HTTPError`."""
    said = ask(f"{admin_url}/admin/v2/{path}", token, method, body, authority)
    return json.loads(said) if said else None


def ask(url: str, token: str | None, method: str, body: Any = None, authority: Path | None = None) -> bytes:
    """Call a broker, follow its redirects, and return the answer; raise :class:`urllib.error.HTTPError`, or another
    :class:`OSError` if no whole answer comes. ``authority`` is the certificate authority to trust.
    """
    context = None if authority is None else ssl.create_default_context(cafile=authority)
    shown = {} if token is None else {"Authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    for _ in range(REDIRECTS_MAX):
        headers = {"Content-Type": "application/json", **shown}
        request = urllib.request.Request(url, method=method, data=data, headers=headers)  # noqa: S310  # nosec B310 - of a peer
        try:
            opened = urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX, context=context)  # noqa: S310  # nosec B310
            with opened as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.TEMPORARY_REDIRECT:  # urllib itself follows only what reads
                raise
            url = error.headers["Location"]
        except http.client.HTTPException as error:  # a broker that is killed in its answer, as one that is away
            raise ConnectionError(f"{method} {url}: {ENDED_EARLY} ({type(error).__name__})") from error
    raise PeerFailed(
        f"{method} {url}: the drill's Pulsar brokers redirected this request {REDIRECTS_MAX} times, the limit; see "
        "their logs in the drill's directory"
    )
