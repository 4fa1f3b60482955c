"""The checks of ``replicator doctor --offline``: the topology file and the files it names, before an installation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_support import ended

from replicator.operating.doctor.findings import Finding, Level
from replicator.operating.doctor.offline import NotExpectable, as_lines, examine_offline, parse_expectation
from replicator.security.tokens import new_key_pair
from replicator.topology import load_topology

RELEASE = ("listen=7101", "data=/var/lib/replicator", "tls.required=false")
"""Settings that the chart relies on in any release."""


def _written(directory: Path, **more: Any) -> Path:
    """Write a topology for a pod, over which ``more`` goes; return its file."""
    _, public = new_key_pair("ES256")
    (directory / "public.pem").write_bytes(public)
    (directory / "token").write_text("a token")
    solo = {"address": "solo.example:7101", "listen": "0.0.0.0:7101", "data": "/var/lib/replicator/solo"}
    auth = {"tokens": {"public_key": "public.pem"}, "superusers": ["operator"], "token_file": "token"}
    content = {"clusters": {"solo": solo | more.pop("solo", {})}, "pipeline": {"engine": "embedded"}, "auth": auth}
    file = directory / "topology.yaml"
    file.write_text(yaml.safe_dump(content | more, sort_keys=False))
    return file


def _wrong(file: Path, *expected: str, made_later: tuple[Path, ...] = ()) -> list[str]:
    """Return the errors that the offline doctor finds for the cluster ``solo`` of ``file``, with their remedies."""
    topology = load_topology(file)
    expectations = [parse_expectation(each) for each in expected]
    found = asyncio.run(examine_offline(topology, topology.cluster("solo"), expectations, made_later))
    return [f"{each.text} → {each.remedy}" for each in found if each.level is Level.ERROR]


def test_a_good_file_passes_without_its_data_directory_and_its_peers(tmp_path: Path) -> None:
    assert _wrong(_written(tmp_path), *RELEASE) == []


def test_a_file_that_is_missing_is_named_with_line_and_field(tmp_path: Path) -> None:
    file = _written(tmp_path, solo={"database_file": "url"})
    (tmp_path / "public.pem").unlink()
    lines = file.read_text().splitlines()
    key = 1 + next(number for number, line in enumerate(lines) if "public_key" in line)
    url = 1 + next(number for number, line in enumerate(lines) if "database_file" in line)
    first, second = _wrong(file)
    assert first.startswith(f"{file}:{key}: auth.tokens.public_key: {tmp_path / 'public.pem'}: No such file")
    assert second.startswith(f"{file}:{url}: clusters.solo.database_file: {tmp_path / 'url'}: No such file")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("token", "", "auth.token_file: {}/token is empty"),
        ("url", "mysql://here/there", "clusters.solo.database_file: {}/url: 'mysql' is not a database"),
        ("public.pem", "no key", "public.pem"),
    ],
)
def test_a_file_with_wrong_content_is_an_error(tmp_path: Path, name: str, content: str, said: str) -> None:
    file = _written(tmp_path, solo={"database_file": "url"})
    (tmp_path / "url").write_text("postgresql://user@host:5432/database")
    assert _wrong(file) == []
    (tmp_path / name).write_text(content)
    (error,) = _wrong(file)
    assert said.format(tmp_path) in error


@pytest.mark.parametrize(
    ("change", "expected", "said"),
    [
        ({"listen": "127.0.0.1:7101"}, "listen=7101", "clusters.solo.listen: 127.0.0.1:7101"),
        ({"listen": "0.0.0.0:7102"}, "listen=7101", "clusters.solo.listen: 0.0.0.0:7102"),
        ({"listen": None}, "listen=7101", "clusters.solo.listen: missing"),
        ({"data": "/data/solo"}, "data=/var/lib/replicator", "clusters.solo.data: /data/solo"),
        ({}, "pulsar=6650", "clusters.solo.pulsar: missing"),
        ({}, "database_file=/etc/replicator/database/url", "clusters.solo.database_file: missing"),
        ({}, "tls=true", "clusters.solo.tls: missing"),
        ({}, "tls.ca=true", "clusters.solo.tls.ca: missing"),
        ({}, "tls.required=true", "tls.required: false"),
        ({}, "tls.trust=true", "tls.trust: missing"),
        ({}, "pipeline.driver=external", "pipeline.driver: worker"),
    ],
)
def test_what_an_installation_relies_on_is_expected(
    tmp_path: Path, change: dict[str, Any], expected: str, said: str
) -> None:
    file = _written(tmp_path, solo=change)
    if change.get("listen", "") is None:  # without it the worker binds its address, which no pod has
        content = yaml.safe_load(file.read_text())
        del content["clusters"]["solo"]["listen"]
        file.write_text(yaml.safe_dump(content))
    (error,) = _wrong(file, expected)
    assert said in error
    assert f"{file}:" in error


def test_certificates_that_are_made_later_may_be_missing_and_are_looked_at_once_they_are_there(tmp_path: Path) -> None:
    later = tmp_path / "tls"
    tls = {"certificate": str(later / "tls.crt"), "key": str(later / "tls.key")}
    file = _written(tmp_path, solo={"tls": tls})
    assert len(_wrong(file)) == 2
    assert _wrong(file, made_later=(later,)) == []
    later.mkdir()
    (later / "tls.crt").write_text("no certificate")
    (later / "tls.key").write_text("no key")
    assert _wrong(file, made_later=(later,)) != []


@pytest.mark.parametrize("text", ["listen", "listen=", "nothing=1", "=1"])
def test_an_expectation_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(NotExpectable, match="listen"):
        parse_expectation(text)


def test_a_log_has_a_line_for_each_thing_that_is_wrong() -> None:
    fine, bad = Finding("auth", "solo", Level.OK, "fine"), Finding("files", "solo", Level.ERROR, "wrong", "mend it")
    assert as_lines([bad, fine]) == "error: files of solo: wrong → mend it\n1 checks passed, 1 did not"


def test_the_command_ends_with_1_for_an_error_and_2_for_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = _written(tmp_path)
    told = ended("doctor", "--offline", "-f", str(file), "-c", "solo", "--expect=listen=7101")
    assert (told.status, told.stderr) == (0, ""), told
    assert "0 did not" in told.stdout
    told = ended("doctor", "--offline", "-f", str(file), "-c", "solo", "--expect=listen=1")
    assert told.status == 1
    assert f"{file}:" in told.stdout
    assert ended("doctor", "-f", str(file), "--expect=listen=1").status == 2
    file.write_text(file.read_text().replace("pipeline:", "pipelines:"))
    told = ended("doctor", "--offline", "-f", str(file), "-c", "solo")
    assert told.status == 2
    assert "unknown key; did you mean 'pipeline'?" in told.stderr
