"""A database's URL in a file of its own: read only where needed, and not shared between workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.topology import EMBEDDED, Topology, TopologyError, database_of, dump, load_topology
from replicator.topology.database_file import DATABASE_URL_BYTES_MAX
from replicator.topology.diff import diff, digest, portable_text, refusals

URL = "postgresql://replicator:s3cret@postgres.example:5432/us"


def topology_of(tmp_path: Path, more: str = "") -> Topology:
    file = tmp_path / "topology.yaml"
    file.write_text(
        f"clusters:\n  us-east: {{address: '127.0.0.1:7101', data: ./us{more}}}\n"
        "  eu-west: {address: '127.0.0.1:7102', data: ./eu}\n"
    )
    return load_topology(file)


def test_the_url_is_what_stands_in_the_file(tmp_path: Path) -> None:
    topology = topology_of(tmp_path, ", database_file: ./url")
    (tmp_path / "url").write_text(f"{URL}\n")
    assert database_of(topology.cluster("us-east")) == URL
    (tmp_path / "url").write_text(EMBEDDED)
    assert database_of(topology.cluster("us-east")) == EMBEDDED
    assert database_of(topology.cluster("eu-west")) == EMBEDDED


def test_a_topology_is_read_where_the_file_is_not(tmp_path: Path) -> None:
    """Every worker reads the file of all clusters; the others' databases are none of its business."""
    topology = topology_of(tmp_path, ", database_file: ./nowhere")
    with pytest.raises(
        TopologyError, match=r"clusters\.us-east\.database_file: .*nowhere: cannot be read: No such file"
    ):
        database_of(topology.cluster("us-east"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not a database"),
        ("mysql://replicator:s3cret@host/us", "'mysql' is not a database that can be used"),
        ("postgresql://replicator:s3cret@host", "must end in /DATABASE"),
        ("x" * (DATABASE_URL_BYTES_MAX + 1), "longer than"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_what_is_no_url_is_refused_without_its_password(tmp_path: Path, content: str, said: str) -> None:
    topology = topology_of(tmp_path, ", database_file: ./url")
    (tmp_path / "url").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(TopologyError, match=said) as refused:
        database_of(topology.cluster("us-east"))
    assert "s3cret" not in str(refused.value)


def test_a_file_beside_a_url_is_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r":2: clusters\.us-east\.database_file: stands beside `database`"):
        topology_of(tmp_path, ", database_file: ./url, database: embedded")


def test_it_is_written_as_it_was_read(tmp_path: Path) -> None:
    topology = topology_of(tmp_path, ", database_file: ./url")
    (tmp_path / "again.yaml").write_text(dump(topology))
    assert load_topology(tmp_path / "again.yaml").clusters == topology.clusters
    assert "database_file" in portable_text(topology)


def test_workers_agree_whoever_keeps_a_url_in_a_file(tmp_path: Path) -> None:
    assert digest(topology_of(tmp_path, ", database_file: ./url")) == digest(topology_of(tmp_path))


def test_another_file_needs_a_restart_of_its_own_worker_alone(tmp_path: Path) -> None:
    changes = diff(topology_of(tmp_path), topology_of(tmp_path, ", database_file: ./url"))
    (said,) = refusals(changes, "us-east")
    assert "clusters.us-east.database_file" in said
    assert "needs a restart of the worker of us-east" in said
    assert refusals(changes, "eu-west") == []


def test_a_directory_with_a_file_for_each_part_stands_for_the_url(tmp_path: Path) -> None:
    """Operators of Postgres on Kubernetes make Secrets with such files. A password may have any character."""
    parts = tmp_path / "parts"
    parts.mkdir()
    given = {"host": "db.example", "user": "us east", "password": "p@:/?#% \N{SNOWMAN}\n", "dbname": "re-plicator"}
    for name, text in given.items():
        (parts / name).write_text(text)
    url = "postgresql://us%20east:p%40%3A%2F%3F%23%25%20%E2%98%83@db.example"
    own = topology_of(tmp_path, ", database_file: ./parts").cluster("us-east")
    assert database_of(own) == f"{url}:5432/re-plicator"
    (parts / "port").write_text("6432\n")
    (parts / "host").write_text("2001:db8::7")
    assert database_of(own) == f"{url.replace('db.example', '[2001:db8::7]')}:6432/re-plicator"
    (parts / "password").unlink()
    with pytest.raises(TopologyError, match=r"database_file: .*parts: password cannot be read: No such file"):
        database_of(own)
