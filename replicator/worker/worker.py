"""A running worker: the parts of one cluster's service, changed by a reload and taken down in order.

It is made by :func:`replicator.worker.starting.start_worker`, with all its parts: there is none that has not started.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import structlog
from aiohttp import web

from replicator.api.link_streams import end_streams
from replicator.gateway.server_tls import ServerTls
from replicator.topology import Topology, TopologyError
from replicator.topology.diff import digest
from replicator.worker.parts import Parts, addresses, client_origins, other_addresses, other_workers, service_urls
from replicator.worker.reload import NotRunning, TopologyReloader
from replicator.worker.running_links import incoming
from replicator.worker.security import WorkerSecurity
from replicator.worker.watching import FileWatcher

log = structlog.get_logger(__name__)


class Worker:
    """One cluster's worker, as it runs. ``ending`` takes its parts down, the last one first."""

    def __init__(
        self,
        parts: Parts,
        reloader: TopologyReloader,
        app: web.Application,
        tls: ServerTls | None,
        security: WorkerSecurity,
        ending: AsyncExitStack,
    ) -> None:
        self.parts = parts
        self._reloader = reloader
        self._app = app
        self._tls = tls
        self._security = security
        self._ending = ending

    async def stop(self) -> None:
        """Stop what runs, in the order that loses nothing: traffic, sync, links, index, store, database."""
        await self._ending.aclose()

    async def reload(self, topology: Topology) -> list[str]:
        """Run ``topology`` from now on; returns what changed for this worker, in words.

        Raises :class:`TopologyError` for what needs a restart, and :class:`NotRunning`; nothing was changed then.
        """
        return await self._reloader.reload(topology)

    async def reload_file(self, *, expected: str | None = None, dry_run: bool = False) -> list[str]:
        """See :meth:`TopologyReloader.reload_file`."""
        return await self._reloader.reload_file(expected=expected, dry_run=dry_run)

    def reload_on(self, hung_up: asyncio.Event) -> None:
        """Read the file again whenever ``hung_up`` is set, until the worker stops."""
        name = "reloads on SIGHUP"
        task = self.parts.supervisor.task("reload", name, lambda: self._reload_on(hung_up), until_done=True)
        task.start()
        self._ending.push_async_callback(task.stop)

    def watch_files(self, watcher: FileWatcher) -> None:
        """Look for changes of the topology's files, until the worker stops."""
        task = self.parts.supervisor.task(
            "reload", "looks for changed files", lambda: watcher.run(lambda: self._reloader.topology)
        )
        task.start()
        self._ending.push_async_callback(task.stop)

    async def _reload_on(self, hung_up: asyncio.Event) -> None:
        while True:
            await hung_up.wait()
            hung_up.clear()
            try:
                await self.reload_file()
            except TopologyError as error:
                problems = list(error.problems)
                log.error("topology not reloaded", cluster=self.parts.cluster, problems=problems)  # noqa: TRY400
            except NotRunning:  # it is being stopped
                return
            except Exception:
                log.exception("topology not reloaded", cluster=self.parts.cluster)
            except BaseException:
                hung_up.set()  # the task starts again, and then does what it was asked for
                raise

    async def carry_out(self, topology: Topology) -> None:
        """Carry out the steps of a reload. They compare with the running parts, so they can be repeated."""
        parts = self.parts
        cluster = topology.cluster(parts.cluster)
        if self._tls is not None:
            self._tls.use_files()
        await self._security.use(topology.auth)
        parts.index.changes.audit("operator", "reload", "topology", {"digest": digest(topology)})
        parts.claim_checker.change(other_addresses(topology, parts.cluster))
        gone = parts.sources.replace(incoming(topology, cluster.name))
        end_streams(self._app, gone)
        await parts.links.change(topology)
        if parts.bridge is not None:
            parts.bridge.change(topology)
        await parts.driver.change(topology.pipeline, links=parts.links.carried_by_spark)
        await parts.engine.loaded.set_default_policies(cluster.policies.topic_policies())
        parts.sync.on_topology(topology)
        parts.use_elsewhere.change(addresses(topology), topology.sync.in_use_timeout_ms)
        if parts.traces is not None:
            parts.traces.change(topology.traces)
        parts.watchdog.use(topology.watchdog)
        parts.stores.change(topology)
        parts.mending.change(other_workers(topology, parts.cluster))
        parts.states.change(other_addresses(topology, parts.cluster), topology.store.wait_for_states_seconds)
        await parts.settings.change(other_addresses(topology, parts.cluster))
        parts.failover.on_topology(addresses(topology), service_urls(topology), client_origins(topology))
