"""The views that pages show live: each is a few parts of a page, made from what the workers say.

A view has a key, which is its address under ``/dashboard``: pages with the same key share it (:mod:`.feeds`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from replicator.api.errors import BadRequest
from replicator.api.topic_figures import PAGE_TOPICS, SEARCH_CHARS_MAX
from replicator.dashboard.drilling import Drilling
from replicator.dashboard.fan_out import Answer, FanOut, unreachable_reasons
from replicator.dashboard.map_drawing import draw
from replicator.dashboard.overview import Observer, Overview
from replicator.dashboard.rendering import Part, part_with_form, render
from replicator.dashboard.spark_rows import driver_rows, query_rows
from replicator.dashboard.states import StateColumn, WhatIf, state_column
from replicator.dashboard.switching import Switches
from replicator.dashboard.topic_rows import topic_page, topic_row
from replicator.engine.topic_name import check_subscription_name, parse_topic
from replicator.failover.errors import FailoverError
from replicator.failover.evidence import Evidence
from replicator.failover.peers import Peers
from replicator.failover.report import SwitchReport, TopicReport

Parts = Mapping[str, Part]
"""HTML by the id of the element whose content it is."""
STATUS: Final = "/replication/v1/status"
FIGURES: Final = "/replication/v1/topic-figures"
DRILL_PARTS: Final = ("state", "counts", "lines", "next")
TOPICS_SHOWN: Final = PAGE_TOPICS


class Views:
    """Live views of one worker's dashboard."""

    def __init__(self, fan_out: FanOut, switches: Switches, drilling: Drilling) -> None:
        self._fan_out = fan_out
        self._drilling = drilling
        self._switches = switches
        self._observer = Observer()
        self._looked: tuple[float, Overview, Mapping[str, Answer]] | None = None

    async def compute(self, key: str) -> Parts:
        """Return the parts of the view of that key. Raise :class:`BadRequest` for an unknown view."""
        self._fan_out.use_own_credentials()
        place = urlsplit(key)
        parameters = dict(parse_qsl(place.query, max_num_fields=10))
        match place.path:
            case "map":
                overview = await self.overview()
                return {
                    "map": render("parts/map.html", overview=overview, drawing=draw(overview)),
                    "clusters": render("parts/clusters.html", overview=overview),
                    "links": render("parts/links.html", overview=overview),
                }
            case "links":
                return {"links": render("parts/links.html", overview=await self.overview())}
            case "link":
                return await self._link(parameters)
            case "topics":
                return await self._topics(parameters)
            case "topic":
                return await self._topic(parameters)
            case "subscription":
                return await self._subscription(parameters)
            case "spark":
                overview, statuses = await self._look()
                return {
                    "queries": render("parts/spark_queries.html", rows=query_rows(overview, statuses)),
                    "drivers": render("parts/spark_drivers.html", rows=driver_rows(statuses)),
                }
            case "failover":
                return {
                    "clusters": render("parts/clusters.html", overview=await self.overview()),
                    "runs": render("parts/runs.html", runs=self._switches.newest()),
                }
            case "failover-run":
                return self._run(_needed(parameters, "id"))
            case "drill-run":
                drill = self._drilling.find(_needed(parameters, "id"))
                parts = {name: render(f"parts/drill_{name}.html", run=drill) for name in DRILL_PARTS[:-1]}
                return {**parts, "next": part_with_form("parts/drill_next.html", run=drill)}
        raise BadRequest(f"the dashboard has no view {place.path[:60]!r}: open the page anew from the dashboard")

    async def overview(self) -> Overview:
        """Return the state of clusters and links."""
        return (await self._look())[0]

    async def _look(self) -> tuple[Overview, Mapping[str, Answer]]:
        """Return the overview, and the answer of each worker. Views computed within half a second share them."""
        now = time.monotonic()
        if self._looked is not None and now - self._looked[0] < 0.5:
            return self._looked[1:]
        answers = await self._fan_out.ask_all(STATUS, {"topics": "false"})
        overview = self._observer.overview(self._fan_out.topology, answers, time.monotonic())
        self._looked = time.monotonic(), overview, answers
        return overview, answers

    async def _link(self, parameters: Mapping[str, str]) -> Parts:
        cluster, key = _needed(parameters, "cluster"), _needed(parameters, "key")
        self._fan_out.topology.cluster(cluster)
        overview, answer = await asyncio.gather(
            self.overview(), self._fan_out.ask(cluster, f"/replication/v1/links/{quote(key, safe='')}")
        )
        row = overview.link(cluster, key)
        return {
            "figures": part_with_form("parts/link_figures.html", row=row, cluster=cluster, key=key, answer=answer),
            "gaps": render("parts/link_gaps.html", cluster=cluster, key=key, answer=answer),
            "backlog": render("parts/link_backlog.html", answer=answer),
        }

    def _run(self, run_id: str) -> Parts:
        run = self._switches.find(run_id)
        return {
            "steps": render("parts/run_steps.html", run=run),
            "progress": render("parts/run_progress.html", run=run),
            "result": render("parts/run_result.html", run=run, report=run.report, topics=worst_first(run.report)),
            "next": part_with_form("parts/run_next.html", run=run),
        }

    async def _topics(self, parameters: Mapping[str, str]) -> Parts:
        search = parameters.get("search", "").strip()[:SEARCH_CHARS_MAX]
        after, before = parameters.get("after", ""), parameters.get("before", "")
        asked = {"search": search, "after": after, "before": before, "limit": str(TOPICS_SHOWN + 1)}
        answers = await self._fan_out.ask_all(FIGURES, {name: value for name, value in asked.items() if value})
        page = topic_page(self._fan_out.clusters, answers, after=after, before=before, limit=TOPICS_SHOWN)
        return {"topics": render("parts/topics.html", page=page, search=search)}

    async def _topic(self, parameters: Mapping[str, str]) -> Parts:
        name = str(parse_topic(_needed(parameters, "topic")))
        answers = await self._fan_out.ask_all(FIGURES, {"topic": name})
        clusters = self._fan_out.clusters
        by_cluster = {
            cluster: {topic["name"]: topic for topic in answer.value["topics"]}
            for cluster, answer in answers.items()
            if answer.good
        }
        row = topic_row(name, clusters, by_cluster)
        silent = unreachable_reasons(answers)
        return {"topic": render("parts/topic.html", row=row, clusters=clusters, silent=silent)}

    async def _subscription(self, parameters: Mapping[str, str]) -> Parts:
        topic = str(parse_topic(_needed(parameters, "topic")))
        name = check_subscription_name(_needed(parameters, "name"))
        states, mappings = await asyncio.gather(
            self._fan_out.ask_all("/replication/v1/subscriptions", {"topic": topic}),
            self._fan_out.ask_all("/replication/v1/mappings", {"topic": topic}),
        )
        columns = [
            state_column(cluster, name, states[cluster], mappings[cluster]) for cluster in self._fan_out.clusters
        ]
        what_if = await self._what_if(topic, name, states)
        return {
            "states": render("parts/states.html", columns=columns, rows=_rows(columns)),
            "whatif": render("parts/what_if.html", what_if=what_if),
        }

    async def _what_if(self, topic: str, name: str, states: Mapping[str, Answer]) -> list[WhatIf]:
        """Return what a failover would do to a subscription, for each pair of clusters whose first one answers."""
        topology = self._fan_out.topology
        async with Peers({cluster.name: cluster.address for cluster in topology.clusters}) as peers:
            evidence = Evidence(topology, peers)

            async def compared(source: str, target: str) -> WhatIf:
                if not states[source].good or not states[target].good:
                    silent = states[source].error or states[target].error
                    return WhatIf(source, target, error=silent)
                report = SwitchReport("dry run", source, target, (source,), 0)
                report.source_answers = True
                try:
                    found = await evidence.compare_all(report, asked=[topic])
                except FailoverError as error:
                    return WhatIf(source, target, error=str(error))
                if not found:
                    return WhatIf(source, target, error=f"{source} does not have this topic")
                state = next((each for each in found[0].subscriptions if each.name == name), None)
                return WhatIf(
                    source,
                    target,
                    found[0].carried,
                    found[0].missing_messages,
                    found[0].exact,
                    None if state is None else state.may_be_repeated,
                    None if state is None else state.equal,
                    "it is not replicated" if state is None else state.evidence,
                )

            pairs = [(one, other) for one in topology.names for other in topology.names if one != other]
            return await asyncio.gather(*(compared(source, target) for source, target in pairs))


def worst_first(report: SwitchReport | None) -> list[TopicReport]:
    """Return the topics of a report: those that would lose or repeat something first."""

    def at_zero(topic: TopicReport) -> bool:
        return topic.missing_messages == 0 and all(each.may_be_repeated == 0 for each in topic.subscriptions)

    return [] if report is None else sorted(report.topics, key=lambda topic: (at_zero(topic), topic.topic))


def _rows(columns: list[StateColumn]) -> list[tuple[str, list[list[str]]]]:
    """Return rows with one field of all clusters each, so that they are read side by side."""
    fields: list[tuple[str, list[list[str]]]] = []

    def add(title: str, *cells: list[str]) -> None:
        fields.append((title, list(cells)))

    here = [column for column in columns if not column.error]
    add("mark-delete position", *([column.mark_delete] for column in here))
    add("generation", *([str(column.generation)] for column in here))
    add("replicated", *(["yes" if column.replicated else "no"] for column in here))
    add("type", *([column.kind] for column in here))
    add("acknowledged beyond it", *([*column.acked_beyond, *_more(column.acked_runs, column.acked_beyond)] or ["none"]
                                    for column in here))  # fmt: skip
    add("batches in part", *([*column.batches_in_part, *_more(column.batch_count, column.batches_in_part)] or ["none"]
                             for column in here))  # fmt: skip
    add("mapping found", *([f"{each.peer}: {each.local} here is {each.remote} there" for each in column.mappings]
                           or [column.mappings_error or "none yet"] for column in here))  # fmt: skip
    return fields


def _more(count: int, shown: tuple[str, ...]) -> list[str]:
    return [f"… and {count - len(shown)} more"] if count > len(shown) else []


def _needed(parameters: Mapping[str, str], name: str) -> str:
    value = parameters.get(name, "")
    if not value:
        raise BadRequest(f"parameter {name} is missing in the address: open the page anew from the dashboard")
    return value
