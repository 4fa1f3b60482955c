"""The options of the data source: what is wrong is named, what is given is understood."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from replicator.pipeline.errors import BadOption
from replicator.pipeline.source.options import Bound, SourceOptions, for_batch, for_stream
from snapshots.position import Position

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({}, "url"),
        ({"url": "127.0.0.1:80"}, "url"),
        ({"url": "ftp://host"}, "url"),
        ({"url": "http://host:99999"}, "url"),
        ({"url": f"{URL},"}, "url"),
        ({"url": f"{URL},{URL}"}, "url"),
        ({"url": URL, "topology": "t.yaml"}, "topology"),
        ({"topology": "/nothing/t.yaml"}, "topology"),
        ({"url": URL, "cluster": "us"}, "cluster"),
        ({"url": URL, "topics": "t"}, "topics"),
        ({"url": URL, "topic": "a/../b"}, "topic"),
        ({"url": URL, "topic": "a,,b"}, "topic"),
        ({"url": URL, "topic": "a", "pattern": "a.*"}, "pattern"),
        ({"url": URL, "pattern": "a("}, "pattern"),
        ({"url": URL, "topic": "t", "after": "3"}, "after"),
        ({"url": URL, "topic": "t", "upto": "3:x"}, "upto"),
        ({"url": URL, "after": "3:0"}, "after"),
        ({"url": URL, "topic": "a,b", "upto": "3:0"}, "upto"),
        ({"url": f"{URL},{URL}1", "topic": "a", "upto": "3:0"}, "upto"),
        ({"url": URL, "topic": "t", "after": "3:0", "start": "3:0"}, "after"),
        ({"url": URL, "start": "yesterday"}, "start"),
        ({"url": URL, "end": "earliest"}, "end"),
        ({"url": URL, "mode": "blocks"}, "mode"),
        ({"url": URL, "ongap": "ignore"}, "onGap"),
        ({"url": URL, "entries_per_partition": "0"}, "entries_per_partition"),
        ({"url": URL, "entries_per_partition": "many"}, "entries_per_partition"),
        ({"url": URL, "bytes_per_trigger": "8 bananas"}, "bytes_per_trigger"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], option: str) -> None:
    with pytest.raises(BadOption, match=rf"^option '{option}': ") as caught:
        SourceOptions.parse(options)
    assert caught.value.option == option
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value), "Spark carries it between processes"


def test_options_are_read_whatever_their_case() -> None:
    options = SourceOptions.parse(
        {
            "URL": f"{URL}/",
            "Topic": "a, b,a",
            "entries_per_Partition": "7",
            "BYTES_per_trigger": "2MiB",
            "ONGAP": "Skip",
        }
    )
    assert options == SourceOptions(
        urls=(URL,),
        topics=("persistent://public/default/a", "persistent://public/default/b"),
        entries_per_partition=7,
        bytes_per_trigger=2 * 1024 * 1024,
        on_gap="skip",
    )


def test_a_read_starts_at_the_first_entry_that_start_names_and_after_the_one_that_after_names() -> None:
    of_topic = {"url": URL, "topic": "t"}
    assert SourceOptions.parse(of_topic | {"start": "3:5"}).start == Bound("start", "3:5", position=Position(3, 4))
    assert SourceOptions.parse(of_topic | {"start": "3:-1"}).start == Bound("start", "3:-1", position=Position(3, -1))
    assert SourceOptions.parse(of_topic | {"after": "3:5"}).start == Bound("after", "3:5", position=Position(3, 5))
    assert SourceOptions.parse(of_topic | {"end": "3:5"}).end == Bound("end", "3:5", position=Position(3, 5))
    assert SourceOptions.parse({"url": URL, "start": "earliest", "end": "latest"}) == SourceOptions((URL,))
    assert SourceOptions.parse({"url": URL, "start": "latest"}).start == Bound("start", "latest", latest=True)


def test_a_time_without_a_zone_is_utc() -> None:
    for text in ("1970-01-01T01:00:00", "1970-01-01T02:00:00+01:00", "1970-01-01T01:00:00Z"):
        start = SourceOptions.parse({"url": URL, "start": text}).start
        assert start is not None
        assert start.time_ms == 3_600_000


def test_a_time_is_taken_to_the_millisecond_and_what_lies_between_two_is_the_later() -> None:
    for text, time_ms in (
        ("1974-04-29T23:25:20.582Z", 136_509_920_582),
        ("1970-01-01T00:00:00.001001Z", 2),
        ("1969-12-31T23:59:59Z", 0),
    ):
        assert SourceOptions.parse({"url": URL, "end": text}).end == Bound("end", text, time_ms=time_ms)


def test_a_topology_gives_the_addresses_of_its_clusters_or_of_those_that_are_named(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("clusters:\n  us: {address: 127.0.0.1:8081, data: us}\n  eu: {address: 127.0.0.1:8082, data: eu}\n")
    options = SourceOptions.parse({"topology": str(file)})
    assert (options.urls, options.clusters) == (("http://127.0.0.1:8081", "http://127.0.0.1:8082"), ("us", "eu"))
    assert SourceOptions.parse({"topology": str(file), "cluster": "eu"}).urls == ("http://127.0.0.1:8082",)
    with pytest.raises(BadOption, match=r"^option 'cluster': .* no cluster 'asia'; there are: us, eu"):
        SourceOptions.parse({"topology": str(file), "cluster": "asia"})


def test_what_belongs_to_the_other_way_of_reading_is_refused() -> None:
    with pytest.raises(BadOption, match="option 'entries_per_trigger': belongs to readStream"):
        for_batch({"url": URL, "entries_per_trigger": "3"})
    with pytest.raises(BadOption, match=r"option 'END': belongs to spark.read"):
        for_stream({"url": URL, "END": "latest"})


def test_a_pattern_is_over_one_namespace_and_whole_local_names() -> None:
    options = SourceOptions.parse({"url": URL, "pattern": "persistent://acme/orders/eu-.*"})
    assert options.wants("persistent://acme/orders/eu-1")
    assert not options.wants("persistent://acme/orders/not-eu-1")
    assert not options.wants("persistent://acme/other/eu-1")
