"""The failover paths of other workers, asked over HTTP: by a worker, and by whoever coordinates a switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from replicator.client.closing import ClosedAtExit
from replicator.failover.epochs import as_json, from_json
from replicator.failover.errors import ClusterUnreachable, SwitchRefused
from replicator.failover.rules import Rules, rules_of
from replicator.running.connecting import why_no_answer
from replicator.running.timeouts import timeout
from replicator.security.asking import worker_session, worker_url
from snapshots.markers import FailoverEpoch

ASK_SECONDS_MAX: Final = 2.0
"""Time limit of a small answer. A worker that starts waits no longer for those that do not answer."""
WORK_SECONDS_MAX: Final = 30.0
"""Time limit of slow requests: to finish what is in flight, or to count messages."""
PATH: Final = "/failover/v1"


class Peers(ClosedAtExit):
    """The other workers, by cluster. Use it as an async context manager, or close it."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self.addresses = dict(addresses)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        cluster: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        seconds_max: float = ASK_SECONDS_MAX,
    ) -> Any:
        """Send a request to a worker, and return its answer. Raise :class:`ClusterUnreachable`, or
        :class:`SwitchRefused` with the worker's reason.
        """
        address = self.addresses[cluster]
        if self._session is None:
            self._session = worker_session()
        try:
            async with (
                timeout(seconds_max),
                self._session.request(method, f"{worker_url(address)}{path}", json=body, params=query) as response,
            ):
                answer = await response.json()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ClusterUnreachable(
                f"the worker of {cluster} at {address} cannot be asked: {why_no_answer(error)}"
            ) from None
        if response.status == 404 and isinstance(answer, dict) and answer.get("error") == "NotFound":
            raise ClusterUnreachable(
                f"the worker of {cluster} at {address} is of a version without failover: upgrade it"
            )
        if response.status >= 500:
            raise ClusterUnreachable(f"the worker of {cluster} at {address} answers with an error: {_message(answer)}")
        if response.status >= 400:
            raise SwitchRefused(f"the worker of {cluster} refuses the request: {_message(answer)}")
        return answer

    async def state(self, cluster: str, *, seconds_max: float = ASK_SECONDS_MAX) -> dict[str, Any]:
        """Return what a worker knows of failovers, with a valid record. Raise as :meth:`call` does."""
        answer = await self.call(cluster, "GET", f"{PATH}/state", seconds_max=seconds_max)
        record_of(cluster, answer)
        return dict(answer)

    async def rules(self, cluster: str) -> Rules:
        """Return the rules for clients in a cluster. Raise as :meth:`call` does."""
        answer = await self.call(cluster, "GET", "/replication/v1/rules", seconds_max=WORK_SECONDS_MAX)
        try:
            return rules_of(answer)
        except ValueError as error:
            raise ClusterUnreachable(f"{cluster}: {error}") from None

    async def announce(self, cluster: str, record: FailoverEpoch) -> None:
        """Tell a worker of a record. Raises as :meth:`call` does."""
        await self.call(cluster, "POST", f"{PATH}/epochs", {"record": as_json(record)})


def record_of(cluster: str, state: Any) -> FailoverEpoch:
    """Return the record in a worker's state; raise :class:`ClusterUnreachable` if there is no valid one."""
    try:
        return from_json(state["record"])
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterUnreachable(f"the worker of {cluster} answers without a valid failover state: {error}") from None


def _message(answer: Any) -> str:
    return str(answer.get("message", answer) if isinstance(answer, dict) else answer)[:500]
