"""Names from clients cannot command the terminal of whoever reads a result."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import unicodedata

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.live import Live
from rich.table import Table
from rich.text import Text

from replicator import __version__
from replicator.cli.output import Format, SafeConsole, Shown, print_result
from replicator.running.screen import escaped

BAD = "orders\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202egnp"
COMMANDS = "\x1b\x07\x9b\r\u202e"


def printed(renderable: object) -> str:
    console = SafeConsole(file=io.StringIO(), width=300, highlight=False, markup=False, emoji=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def table(name: str) -> Table:
    shown = Table("topic", "backlog", title=name)
    shown.add_row(name, "7")
    shown.add_row(Text(name, style="red"), "8")
    return shown


@pytest.mark.parametrize("shown", [BAD, Text(BAD), table(BAD)], ids=["text", "styled", "table"])
def test_no_name_reaches_the_terminal_with_characters_that_command_it(shown: object) -> None:
    text = printed(shown)
    assert not set(COMMANDS) & set(text)
    assert "\\u001b]0;owned" in text


@pytest.mark.parametrize("output", list(Format))
@pytest.mark.parametrize("shown", [BAD, table(BAD)], ids=["text", "table"])
def test_every_form_of_output_is_escaped_and_json_still_has_the_name(
    capsys: pytest.CaptureFixture[str], output: Format, shown: str | Table
) -> None:
    print_result(output, Shown({"topic": BAD}, shown))
    text = capsys.readouterr().out
    assert not set(COMMANDS) & set(text)
    if output is Format.JSON:
        assert json.loads(text) == {"topic": BAD}
    if output is Format.YAML:
        assert yaml.safe_load(text) == {"topic": BAD}


def test_columns_stay_straight_around_an_escaped_name() -> None:
    lines = [line for line in printed(table(BAD)).splitlines() if line[0] in "│┃"]
    assert len({line.rindex(line[0]) for line in lines}) == 1
    assert len({len(line) for line in lines}) == 1


def test_styles_and_the_controls_of_a_live_display_still_work() -> None:
    console = SafeConsole(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    with Live(Text("red", style="red"), console=console, auto_refresh=False, screen=True):
        pass
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[31mred" in console.file.getvalue()
    assert "\x1b[?1049h" in console.file.getvalue()


@given(st.text())
def test_what_can_be_read_stays_and_nothing_else(text: str) -> None:
    shown = escaped(text)
    assert all(unicodedata.category(each) != "Cc" or each in "\t\n" for each in shown)
    assert escaped(shown) == shown
    if all(unicodedata.category(each) not in ("Cc", "Cf", "Zl", "Zp") for each in text):
        assert shown == text


def test_what_a_command_logs_is_not_in_its_answer() -> None:
    program = (
        "import sys, structlog\n"
        "from replicator.cli.__main__ import main\n"
        "sys.argv = ['replicator', '--version']\n"
        "try:\n    main()\nfinally:\n    structlog.get_logger().warning('it took long')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"replicator {__version__}\n"
    assert "it took long" in done.stderr
