"""The stage of a drill: which clusters it runs on, what the workers' topology files say, and what is in between.

Owns the drill's directory but for reports: ``topology.yaml`` with the real addresses, for people and for ``verify``; a
``topology-CLUSTER.yaml`` for each worker where links lead through proxies; ``data`` with the clusters' data, which goes
when the drill is over.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from replicator.drills.brokers import OwnBrokers, WorkersBesideBrokers
from replicator.drills.errors import DrillError
from replicator.drills.faults import LinkFaults
from replicator.drills.own_databases import OwnDatabases
from replicator.drills.own_secrets import OwnSecrets
from replicator.drills.ports import free_ports
from replicator.drills.scenarios.catalog import Requirement, Scenario
from replicator.drills.subscriptions import ALL_KINDS, chosen
from replicator.drills.traffic.showing import NOTHING, ClientAccess
from replicator.drills.workers import OwnWorkers, RunningWorkers
from replicator.running.private_files import replace_private
from replicator.security.access import access, use_in_process
from replicator.topology import SPARK, Cluster, Link, SyncSettings, Topology, dump, load_topology
from replicator.topology.access import with_topology
from replicator.topology.apache import EMBEDDED_KIND

DRILL_NAMESPACE: Final = "public/drill"
"""Namespace of topics in clusters that the drill starts."""
SECRETS: Final = "secrets"
DATA: Final = "data"
CLUSTERS: Final = ("us-east", "eu-west", "ap-south")
"""Clusters of a topology that the drill makes: the first two, or all three if a scenario needs them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The place of a drill. If ``topology`` is None, the drill makes its own clusters."""

    out_dir: Path
    scenario: Scenario
    topology: Topology | None
    is_running: bool = False
    """Whether somebody else runs the topology's workers."""
    one_way: bool = False
    """Whether links go one way only, in a topology that the drill makes."""
    sync_mode: str | None = None
    """Mode of sync; None: as the topology says."""
    engine: str | None = None
    """Engine of all links; None: as the topology says."""
    kind: str = EMBEDDED_KIND
    """Kind of the clusters that the drill makes: :data:`replicator.drills.brokers.KINDS`."""
    secure: bool = False
    """Whether the clusters that the drill makes require authentication and TLS."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage that is set: workers run, and links and databases are in place."""

    topology: Topology
    """Topology with the real addresses."""
    topology_file: Path
    workers: RunningWorkers
    faults: LinkFaults | None
    databases: OwnDatabases | None
    secrets: OwnSecrets | None = None
    client_access: ClientAccess = NOTHING


@asynccontextmanager
async def set_stage(setting: Setting) -> AsyncIterator[Stage]:
    """Set the stage, and clear it away at the end; raise :class:`DrillError` or :class:`WorkerFailed`."""
    topology = make_topology(setting)
    file = setting.out_dir.absolute() / "topology.yaml"
    if setting.is_running:
        assert setting.topology is not None
        workers = RunningWorkers(topology)
        client_access = _show(topology)
        await workers.start()
        place = setting.topology.path or file
        yield Stage(topology, place, workers, None, None, client_access=client_access)
        return
    async with AsyncExitStack() as stack:
        databases = faults = None
        if Requirement.DATABASES in setting.scenario.needs:
            databases = OwnDatabases(topology)
            stack.push_async_callback(databases.stop)
            await databases.start()
            topology = databases.topology()
        brokers = None
        if setting.kind != EMBEDDED_KIND:
            brokers = OwnBrokers(
                topology,
                setting.kind,
                DRILL_NAMESPACE,
                [each.name for each in chosen(ALL_KINDS)],
                setting.out_dir.absolute() / DATA,
            )
            stack.push_async_callback(brokers.stop)
            await brokers.start()
            topology = brokers.topology()
        secrets = None
        if setting.secure:
            secrets = OwnSecrets(setting.out_dir.absolute() / SECRETS, DRILL_NAMESPACE)
            stack.callback(shutil.rmtree, setting.out_dir / SECRETS, ignore_errors=True)
            topology = secrets.protected(topology)
        client_access = _show(topology)
        if secrets is not None:
            client_access = ClientAccess(secrets.token, secrets.authority.file)
        replace_private(file, dump(topology).encode())
        topology = load_topology(file)
        files = dict.fromkeys(topology.names, file)
        if Requirement.LINK_FAULTS in setting.scenario.needs:
            faults = LinkFaults(topology)
            stack.push_async_callback(faults.stop)
            await faults.start()
            for name in topology.names:
                files[name] = file.with_name(f"topology-{name}.yaml")
                replace_private(files[name], dump(faults.topology_of(name)).encode())
        if brokers is None:
            own = OwnWorkers(topology, files, setting.out_dir)
        else:
            own = WorkersBesideBrokers(topology, files, setting.out_dir, brokers)
        stack.push_async_callback(own.stop)
        await own.start()
        yield Stage(topology, file, own, faults, databases, secrets, client_access)


def _show(topology: Topology) -> ClientAccess:
    """Let this process show the topology's workers its credentials. Return what clients show: the same, unless they
    have their own.
    """
    shown = with_topology(access(), topology)
    use_in_process(shown)
    return ClientAccess.of(shown)


def make_topology(setting: Setting) -> Topology:
    """Return the topology for the drill, not yet written; raise :class:`DrillError`."""
    topology = setting.topology
    if topology is None:
        topology = _own_topology(setting)
    elif setting.secure:
        raise DrillError(
            "--secure goes with the drill's own clusters; leave it out, because --topology FILE says how its "
            "clusters are"
        )
    elif setting.one_way:
        raise DrillError(
            "--links goes with the drill's own clusters; leave it out, because --topology FILE says how its links go"
        )
    if setting.engine is not None and not setting.is_running:
        topology = _carried_by(setting.engine, topology)
    if setting.sync_mode is None or setting.is_running:
        return topology
    if "mode" not in SyncSettings.model_fields:
        raise DrillError("--sync: this version knows one way of syncing only; leave it out")
    sync = SyncSettings.model_validate(topology.sync.model_dump() | {"mode": setting.sync_mode})
    return replace(topology, sync=sync)


def _carried_by(engine: str, topology: Topology) -> Topology:
    """Return the topology with all links carried by that engine, except links with SQL, which Spark carries."""
    links = (replace(link, engine=SPARK if link.where or link.select else "") for link in topology.links)
    pipeline = topology.pipeline.model_copy(update={"engine": engine})
    return replace(topology, links=tuple(links), pipeline=pipeline)


def prepare_directory(setting: Setting) -> None:
    """Make the drill's directory, and remove data that an earlier drill left; raise :class:`DrillError`."""
    try:
        setting.out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DrillError(f"--out {setting.out_dir} cannot be used: {error.strerror}") from None
    remove_data(setting)


def remove_data(setting: Setting) -> None:
    """Remove the data of clusters that the drill made."""
    if setting.topology is None:
        shutil.rmtree(setting.out_dir / DATA, ignore_errors=True)


def _own_topology(setting: Setting) -> Topology:
    names = CLUSTERS if Requirement.THREE_CLUSTERS in setting.scenario.needs else CLUSTERS[:2]
    data = setting.out_dir.absolute() / DATA
    clusters = tuple(
        Cluster.model_validate({"name": name, "address": f"127.0.0.1:{port}", "data": str(data / name)})
        for name, port in zip(names, free_ports(len(names)), strict=True)
    )
    return Topology(clusters, tuple(_links(names, one_way=setting.one_way)))


def _links(names: tuple[str, ...], *, one_way: bool) -> Iterator[Link]:
    for number, name in enumerate(names):
        for other in names[number + 1 :]:
            yield Link(name, other)
            if not one_way:
                yield Link(other, name)
