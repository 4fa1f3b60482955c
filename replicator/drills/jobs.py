"""Options of a drill, and the runs of the replicator that they mean.

Every run is planned and checked before the first one starts, so that a wrong option costs no time. A scenario that the
topology cannot have is an error, except with ``--scenario all``, which leaves it out and says why.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replicator.drills import canary
from replicator.drills.brokers import KINDS, check_brokers, kind_of
from replicator.drills.errors import DrillError, InputError, ScenarioImpossible
from replicator.drills.input import Flights, InputSource, JsonLines, SyntheticInput
from replicator.drills.own_databases import check_databases
from replicator.drills.run_store import digest_of
from replicator.drills.scenarios import catalog
from replicator.drills.scenarios.cast import Cast, choose_cast
from replicator.drills.scenarios.catalog import Requirement, Scenario, against_running, find_scenario
from replicator.drills.stage import DRILL_NAMESPACE, Setting, make_topology, prepare_directory, remove_data, set_stage
from replicator.drills.subscriptions import ALL_KINDS, BATCH_INDEX, TestedSubscription, chosen, parse_subscriptions
from replicator.drills.systems.beside import BesideSystem
from replicator.drills.systems.own import NAME, OwnSystem
from replicator.drills.systems.system import System
from replicator.drills.traffic.making import OWN, PULSAR, check_client
from replicator.operating.topic_removal import remove_topic
from replicator.running.extras import is_installed, require_extra
from replicator.topology import EMBEDDED, SPARK, Topology, load_topology
from replicator.topology.apache import EMBEDDED_KIND
from replicator.topology.fields import ENGINES

SYNC_MODES: Final = ("exact", "mark-delete")
BOTH: Final = "both"
CONSUMERS_MAX: Final = 4_000
"""Most consumers of a drill, in all topics. Each is a task of this process, which has one core."""
OFFICIAL_CONSUMERS_MAX: Final = 200
"""Most consumers of official clients. Each has threads and connections of its own."""
TOPIC_MESSAGES_MIN: Final = 10
"""Fewest messages for each topic, so that there are some before, during and after a failover."""
REMOVED_AT_ONCE: Final = 16
"""Topics of a running cluster that are removed at the same time."""


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """Options of the command line; see ``replicator drill --help``."""

    messages: int
    system: str = NAME
    input_file: Path | None = None
    key: str | None = None
    topology_file: Path | None = None
    against_file: Path | None = None
    namespace: str = "public/canary"
    all_clients: bool = False
    scenario: str | None = None
    """Name of the scenario; None: the default one."""
    subscriptions: str = "all"
    links: str = "both-ways"
    sync: str | None = None
    engine: str | None = None
    """Engine that carries the links. None means the topology's; for clusters of the drill's own it means Spark."""
    client: str | None = None
    """Name of the client library. None means the scenario's, or else this project's own."""
    secure: bool = False
    kind: str = EMBEDDED_KIND
    topics: int = 1
    rate: int = 6000
    seed: int = 1
    out_dir: Path = Path("drill-report")
    json_path: Path | None = None
    store: str | None = None
    kept_by: str | None = None
    """Cluster in whose database the drill is kept if no store is given. None means the topology's first cluster."""
    keep_data: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class OwnJob:
    """One run of one scenario on the replicator. See :class:`~replicator.drills.systems.system.Job`."""

    setting: Setting
    subscriptions: tuple[TestedSubscription, ...]
    cast: Cast
    topics: tuple[str, ...]
    client: str
    namespace: str
    keep_data: bool

    @property
    def scenario(self) -> Scenario:
        return self.setting.scenario

    @property
    def out_dir(self) -> Path:
        return self.setting.out_dir

    @property
    def topology(self) -> Topology | None:
        return self.setting.topology

    @property
    def digest(self) -> str:
        kind = self.setting.kind
        return digest_of(make_topology(self.setting)) + ("" if kind == EMBEDDED_KIND else f"-{kind}")

    def prepare(self) -> None:
        prepare_directory(self.setting)

    def clear(self) -> None:
        if not self.keep_data:
            remove_data(self.setting)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[System]:
        async with set_stage(self.setting) as stage:
            if self.setting.is_running:
                await canary.check_namespace(stage.topology, self.namespace)
                await canary.make_topic(stage.topology, self.topics[0])  # beside brokers there is one
            system = OwnSystem if self.setting.kind == EMBEDDED_KIND else BesideSystem
            try:
                yield system(stage, self.cast, self.topics, self.client, self.out_dir)
            finally:
                if self.setting.is_running:
                    await self._remove_topics(stage.topology)

    async def _remove_topics(self, topology: Topology) -> None:
        room = asyncio.Semaphore(REMOVED_AT_ONCE)

        async def remove(topic: str) -> None:
            async with room:
                for left in await remove_topic(topology.clusters, topic):
                    print(f"{topic} could not be removed: {left}", file=sys.stderr)

        await asyncio.gather(*map(remove, self.topics))


def plan_jobs(options: DrillOptions) -> tuple[list[OwnJob], list[str]]:
    """Return every run, checked before the first one starts, and texts that say which scenarios are left out, and
    why."""
    topology = _topology(options)
    kind = _kind(options, topology)
    subscriptions = _subscriptions(options, kind)
    if options.links not in ("both-ways", "one-way"):
        raise DrillError(f"--links must be both-ways or one-way, not {options.links!r}")
    if options.sync not in (None, *SYNC_MODES, BOTH):
        raise DrillError(f"--sync must be {', '.join(SYNC_MODES)} or {BOTH}, not {options.sync!r}")
    if options.engine not in (None, *ENGINES):
        raise DrillError(f"--engine must be {' or '.join(ENGINES)}, not {options.engine!r}")
    if options.client is not None:
        check_client(options.client)
    scenarios = _scenarios(options)
    modes: Sequence[str | None] = SYNC_MODES if options.sync == BOTH else (options.sync,)
    several = len(scenarios) * len(modes) > 1
    jobs: list[OwnJob] = []
    left_out: list[str] = []
    for scenario in scenarios:
        for mode in modes:
            name = scenario.name if mode is None or len(modes) == 1 else f"{scenario.name}-{mode}"
            setting = Setting(
                options.out_dir / name if several else options.out_dir,
                scenario,
                topology,
                is_running=options.against_file is not None,
                one_way=options.links == "one-way",
                sync_mode=mode,
                engine=_engine(options, kind),
                kind=kind,
                secure=options.secure,
            )
            try:
                jobs.append(_job(options, setting, subscriptions))
            except ScenarioImpossible as error:
                if options.scenario != catalog.ALL:
                    raise
                left_out.append(f"{scenario.name}: {error}")
    if not jobs:
        raise DrillError(f"no scenario can be run with these options; the first one cannot: {left_out[0]}")
    return jobs, left_out


def falls_back_to_embedded(options: DrillOptions) -> bool:
    """Return whether the embedded engine carries the links of the drill's clusters only because Spark is missing."""
    given = options.topology_file or options.against_file
    is_own = options.system == NAME and given is None and options.kind == EMBEDDED_KIND
    return is_own and options.engine is None and not is_installed(SPARK)


def _engine(options: DrillOptions, kind: str) -> str | None:
    """Return the engine that carries the links; None leaves it to the topology."""
    return EMBEDDED if kind != EMBEDDED_KIND or falls_back_to_embedded(options) else options.engine


def _job(options: DrillOptions, setting: Setting, subscriptions: tuple[TestedSubscription, ...]) -> OwnJob:
    name = f"{setting.scenario.name}-{options.seed}-{time.time_ns() // 1_000_000}"
    namespace = options.namespace if setting.is_running else DRILL_NAMESPACE
    topic = canary.canary_topic(namespace, name)
    topics = (topic,) if options.topics == 1 else tuple(f"{topic}-{number}" for number in range(options.topics))
    topology = make_topology(setting)
    _check_spark(options, setting, topology)
    if Requirement.OWN_STORES in setting.scenario.needs and (
        setting.kind != EMBEDDED_KIND or setting.topology is not None
    ):
        raise ScenarioImpossible(
            f"--scenario {setting.scenario.name} removes a data directory, so it needs {Requirement.OWN_STORES.value} "
            "that the drill makes itself: leave --topology and --kind out"
        )
    if Requirement.DATABASES in setting.scenario.needs:
        check_databases(topology)
    client = options.client or setting.scenario.client or (OWN if setting.kind == EMBEDDED_KIND else PULSAR)
    check_client(client)
    _check_topics(options, setting, subscriptions, client)
    cast = choose_cast(topology, setting.scenario, topics[0])
    for each in topics:
        if choose_cast(topology, setting.scenario, each) != cast:
            raise DrillError(
                f"--topics {len(topics)}: the links of {topology.path} do not carry all of {topic}-N alike; correct "
                "their `topics`, or give --topics 1"
            )
    if setting.is_running:
        canary.check_bridged(topology, topic, [each.name for each in subscriptions])
    return OwnJob(setting, subscriptions, cast, topics, client, options.namespace, options.keep_data)


def _check_topics(
    options: DrillOptions, setting: Setting, subscriptions: Sequence[TestedSubscription], client: str
) -> None:
    """Raise :class:`DrillError` if there are too many topics for the messages, the clusters or this process."""
    topics = options.topics
    if topics == 1:
        return
    if setting.kind != EMBEDDED_KIND:
        raise DrillError(f"--topics {topics}: a drill of clusters beside brokers has one topic; leave --topics out")
    if topics * TOPIC_MESSAGES_MIN > options.messages:
        needed = topics * TOPIC_MESSAGES_MIN
        raise DrillError(f"--topics {topics}: each needs {TOPIC_MESSAGES_MIN} messages; give --messages {needed}")
    consumers = sum(each.consumers for each in subscriptions)
    consumers_max = CONSUMERS_MAX if client == OWN else OFFICIAL_CONSUMERS_MAX
    if topics * consumers > consumers_max:
        raise DrillError(
            f"--topics {topics}: {topics * consumers:,} consumers, and a drill has at most {consumers_max:,} with "
            f"--client {client}; give at most {consumers_max // consumers} topics, or fewer --subscriptions"
        )


def _subscriptions(options: DrillOptions, kind: str) -> tuple[TestedSubscription, ...]:
    """Return the subscriptions to test. Beside brokers, batch indexes are not tested, as brokers do not show them."""
    if kind == EMBEDDED_KIND:
        return parse_subscriptions(options.subscriptions)
    if options.subscriptions.strip() == "all":
        return chosen([kind for kind in ALL_KINDS if kind != BATCH_INDEX])
    found = parse_subscriptions(options.subscriptions)
    if any(each.batch_index_acks for each in found):
        raise DrillError(
            f"--subscriptions {BATCH_INDEX} goes with --kind {EMBEDDED_KIND}: brokers do not show which messages of a "
            "batch are acknowledged, so these are delivered again after a failover (docs/apache-pulsar.md)"
        )
    return found


def _kind(options: DrillOptions, topology: Topology | None) -> str:
    """Return the kind of the clusters, from the topology file or from ``--kind``.

    Raises :class:`DrillError` for options that do not fit the kind.
    """
    if options.kind not in KINDS:
        raise DrillError(f"--kind must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, not {options.kind!r}")
    kind = options.kind if topology is None else kind_of(topology)
    if options.kind not in (EMBEDDED_KIND, kind):
        file = options.against_file or options.topology_file
        raise DrillError(
            f"--kind {options.kind}: the clusters of {file} are {kind}; leave --kind out, or give another file"
        )
    if kind == EMBEDDED_KIND:
        return kind
    if options.topology_file is not None:
        raise DrillError(
            f"--topology {options.topology_file}: its workers run beside brokers, which a drill does not start; start "
            "them, and give the file with --against"
        )
    given = {
        "--secure": options.secure,
        "--client own": options.client == OWN,
        "--engine spark": options.engine == SPARK,
    }
    these_clusters = (
        f"--kind {kind}" if topology is None else f"--against {options.against_file}, whose clusters are {kind}"
    )
    for option, is_given in given.items():
        if is_given:
            raise DrillError(f"{option} does not go with {these_clusters}: leave it out (docs/drills.md)")
    check_client(PULSAR)
    if topology is None:
        check_brokers(kind)
    return kind


def _check_spark(options: DrillOptions, setting: Setting, topology: Topology) -> None:
    """Raise :class:`ExtraMissing` if the drill needs Spark, and it is not installed."""
    from replicator.pipeline.verify.verify import SMALL_ENTRIES

    if not setting.is_running and any(topology.engine_of(link) == SPARK for link in topology.links):
        require_extra(SPARK, "--engine spark, the default,")
    if options.messages * len(topology.clusters) > SMALL_ENTRIES:
        per_cluster = SMALL_ENTRIES // len(topology.clusters)
        require_extra(SPARK, f"--messages {options.messages}: verifying more than {per_cluster} of them at the end")


def _scenarios(options: DrillOptions) -> list[Scenario]:
    is_running = options.against_file is not None
    if options.scenario != catalog.ALL:
        scenario = find_scenario(options.scenario or ("move" if is_running else catalog.DEFAULT))
        found = [against_running(scenario) if is_running else scenario]
    elif is_running:
        found = [each for each in catalog.usable_against_running() if options.all_clients or not each.moves_everybody]
    else:
        found = list(catalog.SCENARIOS.values())
    if is_running and not options.all_clients and any(each.moves_everybody for each in found):
        raise DrillError(
            f"--scenario {found[0].name} makes another cluster serve all clients of the running topology, not only the "
            "drill's; add --all-clients if that is meant, or take --scenario move"
        )
    return found


def _topology(options: DrillOptions) -> Topology | None:
    if options.topology_file is not None and options.against_file is not None:
        raise DrillError("--topology starts workers and --against leaves those that run alone: give one of them")
    if options.against_file is not None:
        if options.sync is not None:
            raise DrillError(
                "--sync: leave it out, because the workers of a running topology sync as they were started"
            )
        if options.engine is not None:
            raise DrillError(
                "--engine: leave it out, because the links of a running topology are carried as its file says"
            )
        return load_topology(options.against_file)
    return None if options.topology_file is None else load_topology(options.topology_file)


def input_of(options: DrillOptions) -> InputSource:
    if options.input_file is None:
        if options.key is not None:
            raise InputError(
                "--key goes with --input FILE.jsonl; without that file, messages have keys of their own: leave --key "
                "out"
            )
        return Flights(options.messages) if is_installed("demo") else SyntheticInput(options.messages)
    if options.key is None:
        raise InputError(f"--input {options.input_file} needs --key FIELD, the field that is the message key")
    return JsonLines(options.input_file, options.key, options.messages)
