"""``replicator init``: a topology by answers or by options, which the project's reader takes; or one clear error."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from cli_support import Ended, ended
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from replicator.cli.main import app
from replicator.topology import load_topology
from replicator.topology.reader import parse_topology

EXAMPLE = re.compile(r"( *)# ([a-z_]+: .*)")
NAMES = st.sampled_from(
    ["us-east", "eu-west", "a", "on", "123", "0x1F", "1e3", "null", "a" * 58, "a" * 65, "ü", "a b", ""]
)
ADDRESSES = st.sampled_from(
    ["", "127.0.0.1:7101", "[::1]:7102", "db.example:7103", "nowhere", "h:99999", "a: b", "#:1"]
)
DIRECTORIES = st.one_of(
    st.sampled_from(
        ["", ".", "./data", "/", "yes", "~", "- x", "*a", "a\\b", 'q"q', "${HOME}", "\x85", "\u2028", "\ud800"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
URLS = st.sampled_from(
    ["", "pulsar://b:6650", "pulsar+ssl://b", "http://b:8080", "https://b", "ftp://b", "pulsar://u:p@b"]
)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@contextmanager
def _empty_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def answered(answers: str, *options: str) -> Ended:
    with patch.object(sys, "stdin", io.StringIO(answers)):
        return ended("init", *options)


def test_defaults_are_two_clusters_that_copy_to_each_other() -> None:
    done = ended("init", "--yes", "--output", "json")
    assert (done.status, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "file": "topology.yaml",
        "clusters": ["us-east", "eu-west"],
        "links": ["us-east>eu-west", "eu-west>us-east"],
        "engine": "embedded",
        "next": [
            "replicator plan -f topology.yaml",
            "replicator doctor -f topology.yaml",
            "replicator up -f topology.yaml",
        ],
    }
    topology = load_topology(Path("topology.yaml"))
    assert [each.address for each in topology.clusters] == ["127.0.0.1:7101", "127.0.0.1:7102"]
    assert topology.clusters[0].data == Path("data/us-east").absolute()
    assert {link.key for link in topology.links} == {"us-east>eu-west", "eu-west>us-east"}
    planned = ended("plan", "-f", "topology.yaml")
    assert planned.status == 0, planned.stderr


def test_what_is_there_is_not_written_over_unless_that_is_asked_for() -> None:
    Path("topology.yaml").write_text("mine")
    refused = ended("init", "--yes")
    assert (refused.status, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "--force" in refused.stderr
    assert Path("topology.yaml").read_text() == "mine"
    assert ended("init", "--yes", "--force").status == 0
    assert load_topology(Path("topology.yaml")).clusters
    assert [each.name for each in Path().iterdir()] == ["topology.yaml"]


def test_options_say_all_without_a_question() -> None:
    done = ended(
        *("init", "three.yaml", "--yes", "--cluster", "a=10.0.0.1:7101", "-c", "b", "-c", "on"),
        *("--data", "/srv", "--links", "one-way", "--engine", "spark"),
        *("--pulsar", "b=pulsar://broker:6650,http://broker:8080"),
    )
    assert done.status == 0, done.stderr
    assert "10.0.0.1:7101 of a is no loopback address" in done.stderr
    topology = load_topology(Path("three.yaml"))
    assert [each.name for each in topology.clusters] == ["a", "b", "on"]
    assert [each.kind for each in topology.clusters] == ["embedded", "pulsar", "embedded"]
    assert [link.key for link in topology.links] == ["a>b", "a>on"]
    assert topology.pipeline.engine == "spark"


def test_questions_are_on_standard_error_and_a_wrong_answer_is_asked_for_again() -> None:
    answers = ["us east", "us, eu", "embeded", "pulsar", "pulsar://", "pulsar://b:6650", "", "127.0.0.1", "127.0.0.1:1"]
    answers += ["", "embedded", "127.0.0.1:1", "127.0.0.1:2", "./data/us", "./eu", "ring", "one-way", "", ""]
    done = answered("\n".join(answers), "-o", "json")
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)["links"] == ["us>eu"]
    assert "us: the brokers' admin URL [http://127.0.0.1:8080]: " in done.stderr
    assert "'embeded' is not one of 'embedded', 'pulsar'" in done.stderr
    assert done.stderr.count("eu: HOST:PORT of its worker") == 2  # the first is us' address
    assert done.stderr.count("eu: directory of its data") == 2
    topology = load_topology(Path("topology.yaml"))
    assert [each.address for each in topology.clusters] == ["127.0.0.1:1", "127.0.0.1:2"]
    assert topology.clusters[1].data == Path("eu").absolute()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--links", "ring"], "'ring' is not one of 'all', 'one-way', 'none'"),
        (["--engine", "flink"], "'flink' is not one of 'embedded', 'spark'"),
        (["--pulsar", "us-east"], "NAME=SERVICE_URL,ADMIN_URL"),
        (["--pulsar", "mars=pulsar://a,http://a"], "there is no cluster 'mars'; there are: us-east, eu-west"),
        (["--pulsar", "us-east=http://a,http://a"], "service_url"),
        (["--cluster", "a", "--cluster", "a"], "'a' is named twice"),
        (["--cluster", "a=here"], "clusters.a.address"),
        (["--cluster", "a b"], "a cluster's name has"),
        (["nowhere/topology.yaml"], "cannot be written: No such file or directory"),
        (["\0"], "embedded null"),
    ],
)
def test_an_option_that_does_not_fit_is_one_line_and_nothing_is_written(options: list[str], said: str) -> None:
    done = ended("init", "--yes", *options)
    assert (done.status, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert not [each.name for each in Path().iterdir()]


def test_typers_runner_answers_too() -> None:
    done = CliRunner().invoke(app, ["init"], input="\n" * 20)
    assert done.exit_code == 0, done.stderr
    assert load_topology(Path("topology.yaml")).links


def test_answers_that_end_too_soon_are_one_error_that_names_the_options() -> None:
    done = answered("us, eu\n")
    assert done.status == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "--yes" in done.stderr.splitlines()[-1]
    assert not [each.name for each in Path().iterdir()]


@pytest.mark.parametrize("engine", ["embedded", "spark"])
@pytest.mark.parametrize("links", ["all", "one-way"])
def test_each_example_in_the_comments_is_right(engine: str, links: str) -> None:
    clusters = ("--cluster", "a=10.0.0.1:1", "--cluster", "b", "--pulsar", "b=pulsar://b,http://b")
    assert ended("init", "--yes", *clusters, "--engine", engine, "--links", links).status == 0
    lines = Path("topology.yaml").read_text().splitlines()
    examples = [index for index, line in enumerate(lines) if EXAMPLE.fullmatch(line)]
    assert len(examples) >= 10
    before = yaml.safe_load("\n".join(lines))
    for index in examples:
        changed = [*lines[:index], EXAMPLE.sub(r"\1\2", lines[index]), *lines[index + 1 :]]
        parse_topology("\n".join(changed), Path("topology.yaml").absolute())
        assert yaml.safe_load("\n".join(changed)) != before
    every = [EXAMPLE.sub(r"\1\2", line) for line in lines]
    parse_topology("\n".join(every), Path("topology.yaml").absolute())


def test_each_field_that_is_written_has_a_comment_before_it() -> None:
    assert ended("init", "--yes", "--pulsar", "us-east=pulsar://b,http://b").status == 0
    commented: set[str] = set()
    told = False
    for line in Path("topology.yaml").read_text().splitlines():
        name = line.strip().lstrip("- ").partition(":")[0]
        if line.lstrip().startswith("#"):
            told = True
        elif told:
            commented.add(name)
            told = name in ("kind", "apache", "service_url")  # one comment for what belongs together
    assert commented >= {
        "address",
        "data",
        "database",
        "kind",
        "service_url",
        "admin_url",
        "links",
        "engine",
        "size_max",
    }


@settings(max_examples=40, deadline=None)
@given(
    clusters=st.lists(st.tuples(NAMES, ADDRESSES), max_size=3),
    data=DIRECTORIES,
    urls=st.tuples(URLS, URLS),
    links=st.sampled_from(["all", "one-way", "none"]),
    engine=st.sampled_from(["embedded", "spark"]),
)
def test_whatever_options_say_gives_a_file_that_loads_or_one_error(
    clusters: list[tuple[str, str]], data: str, urls: tuple[str, str], links: str, engine: str
) -> None:
    with _empty_directory() as directory:
        file = directory / "topology.yaml"
        options = [part for name, address in clusters for part in ("--cluster", f"{name}={address}")]
        if any(urls):
            options += ["--pulsar", f"{clusters[0][0] if clusters else 'eu-west'}={urls[0]},{urls[1]}"]
        done = ended("init", str(file), "--yes", *options, f"--data={data}", f"--links={links}", f"--engine={engine}")
        if done.status:
            assert (done.status, done.stderr.count("\n"), file.exists()) == (2, 1, False), done.stderr
            return
        topology = load_topology(file)
        assert [each.name for each in topology.clusters] == [name for name, _ in clusters] or not clusters
        if data.startswith("~"):
            return  # somebody's home
        root = directory / (data or "data")
        assert [each.data for each in topology.clusters] == [
            Path(os.path.abspath(root / each.name))  # noqa: PTH100 - as the reader makes it
            for each in topology.clusters
        ]


@settings(max_examples=40, deadline=None)
@given(answers=st.lists(st.one_of(st.just(""), NAMES, ADDRESSES, DIRECTORIES, URLS, st.just("pulsar")), max_size=20))
def test_whatever_is_answered_gives_a_file_that_loads_or_one_error(answers: list[str]) -> None:
    with _empty_directory() as directory:
        file = directory / "topology.yaml"
        given_text = "\n".join(answers).encode("utf-8", "replace").decode()
        done = answered(given_text, str(file))
        if done.status:
            assert (done.status, done.stdout, file.exists()) == (2, "", False), done.stderr
            assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1
        else:
            assert load_topology(file).clusters
