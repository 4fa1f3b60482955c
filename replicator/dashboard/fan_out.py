"""Asks the workers of all clusters: for what is shown in this worker's name, for changes in that of who signed in.

A cluster that does not answer in time delays nothing but itself (invariant 8): its error stands in its place.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from replicator.running.connecting import why_no_answer
from replicator.running.short_tasks import awaited
from replicator.running.timeouts import timeout
from replicator.security.access import CERTIFICATE, KEY, TOKEN, TOKEN_FILE, access, use_in_context
from replicator.security.asking import worker_session
from replicator.topology import Topology

SHOWN_SECONDS_MAX: Final = 0.8
"""Limit for data that a page shows. A first paint does not wait longer for a cluster that is away."""
FOUND_SECONDS_MAX: Final = 5.0
"""Limit for data that any of the clusters may have, and without which there is no page."""
CHANGED_SECONDS_MAX: Final = 60.0
ERROR_CHARS_MAX: Final = 8_000
"""Characters of a reason that are shown. The text of a gap has whole commands, and names the topic in each."""

BEARER: Final = "Bearer "
SECRETS: Final = frozenset({TOKEN, TOKEN_FILE, CERTIFICATE, KEY})
"""Variables by which a process shows who it is."""

Parameters = Mapping[str, str] | list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a worker; ``error`` tells why there is none, or why the worker refused."""

    value: Any = None
    error: str = ""
    status: int = 200

    @property
    def good(self) -> bool:
        return not self.error

    @property
    def absent(self) -> bool:
        """Return whether the worker does not have the requested thing."""
        return self.status == 404


def unreachable_reasons(answers: Mapping[str, Answer]) -> list[str]:
    """Return why the answers of some clusters are missing."""
    return [answer.error for answer in answers.values() if not answer.good]


class FanOut:
    """Asks the workers of the topology that runs, which ``topology`` returns. It is made and closed on the event loop,
    where :func:`replicator.security.access.access` has this worker's credentials.
    """

    def __init__(self, topology: Callable[[], Topology]) -> None:
        self._topology = topology
        self._access = access()
        self._session = worker_session()

    @property
    def topology(self) -> Topology:
        return self._topology()

    @property
    def clusters(self) -> list[str]:
        return list(self._topology().names)

    def use_own_credentials(self) -> None:
        """Let other code send requests with this worker's credentials from here on in this task."""
        use_in_context(self._access)

    def use_credentials(self, shown: str | None) -> None:
        """Let other code send requests with the credentials ``shown`` from here on in this task, and without this
        worker's.
        """
        use_in_context(self._access.with_credentials(shown))

    def environment_of(self, shown: str | None) -> dict[str, str]:
        """Return environment variables for a process that asks workers with the credentials ``shown``: a token, or
        nothing. This worker's own secrets are not in it.
        """
        ours = {name: value for name, value in os.environ.items() if name not in SECRETS}
        token = {TOKEN: shown.removeprefix(BEARER)} if shown is not None and shown.startswith(BEARER) else {}
        return {**ours, **self._access.with_credentials(None).as_environment(), **token}

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self,
        cluster: str,
        path: str,
        parameters: Parameters | None = None,
        *,
        seconds_max: float = SHOWN_SECONDS_MAX,
    ) -> Answer:
        """Ask the worker of one cluster for something to show."""
        return await self._ask(self._session, cluster, "GET", path, parameters, None, seconds_max)

    async def ask_all(
        self,
        path: str,
        parameters: Parameters | None = None,
        clusters: Iterable[str] | None = None,
        *,
        seconds_max: float = SHOWN_SECONDS_MAX,
    ) -> dict[str, Answer]:
        """Ask all clusters, or ``clusters``, at once. Return each one's answer."""
        names = self.clusters if clusters is None else list(clusters)
        asked = (self.ask(name, path, parameters, seconds_max=seconds_max) for name in names)
        answers = await asyncio.gather(*asked)
        return dict(zip(names, answers, strict=True))

    async def change(self, shown: str | None, cluster: str, method: str, path: str, body: Any = None) -> Answer:
        """Request a change, or something that only some may see, with the credentials ``shown``."""

        async def changed() -> Answer:
            self.use_credentials(shown)
            async with worker_session() as session:
                return await self._ask(session, cluster, method, path, None, body, CHANGED_SECONDS_MAX)

        return await awaited(changed())  # a task has a context of its own

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        cluster: str,
        method: str,
        path: str,
        parameters: Parameters | None,
        body: Any,
        seconds_max: float,
    ) -> Answer:
        address = self._topology().cluster(cluster).address
        try:
            async with (
                timeout(seconds_max),
                session.request(method, f"{self._access.url(address)}{path}", params=parameters, json=body) as response,
            ):
                content = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            silent = isinstance(error, TimeoutError)
            reason = f"no answer within {seconds_max:g} s" if silent else why_no_answer(error, "")
            return Answer(error=f"{cluster} at {address} does not answer: {reason}"[:ERROR_CHARS_MAX], status=0)
        return _read(cluster, response.status, content)


def _read(cluster: str, status: int, content: bytes) -> Answer:
    try:
        value = json.loads(content) if content else None
    except (ValueError, RecursionError):
        return Answer(error=f"{cluster} answers what is not JSON (HTTP status {status})", status=status)
    if status < 400:
        return Answer(value, status=status)
    said = value.get("reason") or value.get("message") if isinstance(value, dict) else None
    return Answer(value, f"{cluster} refuses: {said or f'HTTP status {status}'}"[:ERROR_CHARS_MAX], status)
