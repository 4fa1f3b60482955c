from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from replicator.cli.exit_status import exit_status_of
from replicator.pipeline.backfill.backfill import link_for
from replicator.pipeline.backfill.clusters import carrier_name, has_ended
from replicator.pipeline.errors import BadOption, LinkTaken
from replicator.topology import Topology, TopologyError, load_topology

CLUSTERS = "clusters: {A: {address: '127.0.0.1:1', data: a}, B: {address: '127.0.0.1:2', data: b}}\n"


def topology(tmp_path: Path, links: str) -> Topology:
    file = tmp_path / "regions.yaml"
    file.write_text(f"{CLUSTERS}links: {links}\n")
    return load_topology(file)


def test_the_link_that_leads_there_is_taken_whatever_it_is_named(tmp_path: Path) -> None:
    assert link_for(topology(tmp_path, "[{from: A, to: B}]"), "A", "B", None).key == "A>B"
    assert link_for(topology(tmp_path, "[{from: A, to: B, name: all}]"), "A", "B", None).key == "A>B#all"


def test_without_a_link_it_is_said_how_to_add_one(tmp_path: Path) -> None:
    with pytest.raises(
        BadOption, match=r"add `- \{from: B, to: A\}` to its links, and run `replicator apply -f .*yaml`"
    ):
        link_for(topology(tmp_path, "[{from: A, to: B}]"), "B", "A", None)
    with pytest.raises(TopologyError, match="there is no cluster 'C'; there are: A, B"):
        link_for(topology(tmp_path, "[{from: A, to: B}]"), "A", "C", None)


def test_of_several_links_one_is_named(tmp_path: Path) -> None:
    two = topology(tmp_path, "[{from: A, to: B, name: some, topics: [a/b]}, {from: A, to: B, name: rest}]")
    assert link_for(two, "A", "B", "rest").name == "rest"
    with pytest.raises(BadOption, match="several links lead there, give one: some, rest"):
        link_for(two, "A", "B", None)
    with pytest.raises(BadOption, match="no link 'other' leads there; there are: some, rest"):
        link_for(two, "A", "B", "other")


def test_a_link_that_changes_what_it_carries_is_refused_by_name(tmp_path: Path) -> None:
    filtered = topology(tmp_path, "[{from: A, to: B, engine: spark, where: \"key = 'a'\"}]")
    with pytest.raises(BadOption, match="link A>B has `where` or `select`"):
        link_for(filtered, "A", "B", None)


def test_only_a_process_of_this_machine_that_does_not_run_has_ended() -> None:
    mine = carrier_name()
    assert f"process {os.getpid()} on {platform.node()} since " in mine
    assert not has_ended(mine)
    assert has_ended(mine[:-20] + "2001-01-01T00:00:00Z"), "another one had the number before"
    assert not has_ended(mine.replace(f"on {platform.node()}", "on elsewhere"))
    assert not has_ended("live-driver-1")
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    gone = mine.replace(f"process {os.getpid()}", f"process {over.pid}")
    assert has_ended(gone)
    assert not has_ended(gone.replace(f"on {platform.node()}", "on elsewhere")), "who knows what runs there"


def test_a_link_that_another_backfill_has_is_a_check_that_failed_and_no_wrong_usage() -> None:
    assert exit_status_of(LinkTaken("link A>B is being backfilled")) == 1
    assert exit_status_of(BadOption("rate", "5 is too little")) == 2
