"""Text for a terminal: names that cannot command it, and reports that fit one screen.

Names of topics, subscriptions and producers come from clients, and may have any character in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

SCREEN_LINES_MAX: Final = 40
"""Lines of a report on the screen. A usual terminal shows as many at once."""
SENTENCE_CHARACTERS_MAX: Final = 400
"""Characters of one sentence on the screen, so that a long name or reason leaves room for others."""

_COMMANDING: Final = re.compile(
    "["
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # control characters of ASCII and of Latin-1, but for tab and line feed
    "\\u2028-\\u202e\\u2066-\\u2069"  # ends of lines, and characters that change the direction of writing
    "]"
)
_BREAKING: Final = str.maketrans({"\t": "\\u0009", "\n": "\\u000a"})


def commands_terminal(text: str) -> bool:
    """Return whether a terminal would take a character of ``text`` for a command."""
    return _COMMANDING.search(text) is not None


def escaped(text: str) -> str:
    """Return ``text`` with escapes such as ``\\u001b`` instead of characters that a terminal takes for commands.

    Tab and line feed stay. In JSON such an escape stands for the same character.
    """
    return _COMMANDING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def in_one_line(text: str) -> str:
    """Return ``text`` escaped, with tabs and line feeds escaped too, so that a name cannot make lines of its own."""
    return escaped(text).translate(_BREAKING)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a report, with the style of rich that it is shown in.

    A ``whole`` sentence may take three quarters of the report's lines, as a reason that ends with the command to give.
    Others are cut at :data:`SENTENCE_CHARACTERS_MAX`.
    """

    text: str
    style: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Screenful:
    """A report that takes at most ``lines_max`` lines at any width.

    It shows ``always`` first, then as many of ``sentences`` as fit. The worst come first. A last line counts those that
    are left out, and names in ``more`` where they are.
    """

    always: Sequence[Sentence]
    sentences: Sequence[Sentence] = ()
    more: str = "--details"
    lines_max: int = SCREEN_LINES_MAX

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, left_out = self._fitting(console, options)
        yield from shown
        if left_out:
            yield Text(f"… and {left_out:,} more: {self.more}", no_wrap=True, overflow="ellipsis")

    def _fitting(self, console: Console, options: ConsoleOptions) -> tuple[list[Text], int]:
        """Return the texts that fit, and how many are left out."""
        shown: list[Text] = []
        room, count = self.lines_max, len(self.always) + len(self.sentences)
        for number, text in enumerate(self._texts(console, options.max_width)):
            lines = len(text.wrap(console, options.max_width))
            reserve = 0 if number + 1 == count else 1  # for the line that counts the rest
            if lines > room - reserve:
                return shown, count - number
            shown.append(text)
            room -= lines
        return shown, 0

    def _texts(self, console: Console, width: int) -> Iterator[Text]:
        for sentence in (*self.always, *self.sentences):
            text = in_one_line(sentence.text)
            if sentence.whole:
                yield _cut(Text(text, style=sentence.style), console, width, self.lines_max * 3 // 4)
                continue
            if len(text) > SENTENCE_CHARACTERS_MAX:
                text = f"{text[: SENTENCE_CHARACTERS_MAX - 1]}…"
            yield Text(text, style=sentence.style)


def _cut(text: Text, console: Console, width: int, lines_max: int) -> Text:
    """Wrap ``text`` at ``width``, and return at most its first ``lines_max`` lines."""
    lines = text.wrap(console, width)
    if len(lines) <= lines_max:
        return text
    last = lines[lines_max - 1]
    last.rstrip()
    last.truncate(width - 1)
    last.append("…")
    return Text("\n").join(lines[:lines_max])
