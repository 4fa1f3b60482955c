"""The drawings of docs/concepts.md: docs/assets/NAME.svg for light pages, NAME-dark.svg for dark ones.

A drawing is a list of boxes, arrows and words, with places in units of a pixel. Both files are made from it, with other
colours; `make reference` writes them. The light one has a background of its own, so that it can be read anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

LINE: Final = 19
"""Pixels from one line of words to the next."""


@dataclass(frozen=True, slots=True)
class Theme:
    suffix: str
    background: str
    words: str
    faint: str
    box: str
    inner: str
    accent: str
    warning: str


LIGHT: Final = Theme("", "#ffffff", "#1c2b33", "#5b6b74", "#e6f2f1", "#ffffff", "#00796b", "#b3261e")
DARK: Final = Theme("-dark", "none", "#e3eaec", "#9fb0b6", "#22383a", "#172628", "#4db6ac", "#ff8a80")


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    inner: bool = False
    lost: bool = False

    def svg(self, theme: Theme) -> Iterator[str]:
        colour = theme.warning if self.lost else theme.accent
        dashes = ' stroke-dasharray="6 5"' if self.lost else ""
        fill = theme.inner if self.inner else theme.box
        yield (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="8" fill="{fill}" '
            f'stroke="{colour}" stroke-width="1.5"{dashes}/>'
        )
        middle = self.x + self.width // 2
        yield from Words(middle, self.y + 23, self.title, bold=True).svg(theme)
        for number, line in enumerate(self.lines, 1):
            yield from Words(middle, self.y + 23 + LINE * number, line).svg(theme)


@dataclass(frozen=True, slots=True)
class Arrow:
    x: int
    y: int
    to_x: int
    to_y: int
    words: str = ""
    above: int = 8
    dashed: bool = False
    lost: bool = False

    def svg(self, theme: Theme) -> Iterator[str]:
        colour = theme.warning if self.lost else theme.accent
        dashes = ' stroke-dasharray="6 5"' if self.dashed or self.lost else ""
        head = "lost" if self.lost else "head"
        yield (
            f'<line x1="{self.x}" y1="{self.y}" x2="{self.to_x}" y2="{self.to_y}" stroke="{colour}" stroke-width="2"'
            f'{dashes} marker-end="url(#{head})"/>'
        )
        if self.words:
            middle_x, middle_y = (self.x + self.to_x) // 2, (self.y + self.to_y) // 2
            yield from Words(middle_x, middle_y - self.above, self.words, faint=True).svg(theme)


@dataclass(frozen=True, slots=True)
class Words:
    x: int
    y: int
    text: str
    bold: bool = False
    faint: bool = False

    def svg(self, theme: Theme) -> Iterator[str]:
        weight = ' font-weight="600"' if self.bold else ""
        colour = theme.faint if self.faint else theme.words
        yield f'<text x="{self.x}" y="{self.y}" text-anchor="middle" fill="{colour}"{weight}>{escape(self.text)}</text>'


@dataclass(frozen=True, slots=True)
class Drawing:
    name: str
    title: str
    width: int
    height: int
    parts: tuple[Box | Arrow | Words, ...]

    def svg(self, theme: Theme) -> str:
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{colour}"/></marker>'
            for name, colour in (("head", theme.accent), ("lost", theme.warning))
        )
        body = "\n".join(line for part in self.parts for line in part.svg(theme))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="14">\n<title>{escape(self.title)}</title>\n'
            f"<!-- Made by `make reference` from .ci/reference/drawings.py. -->\n<defs>{heads}</defs>\n"
            f'<rect width="{self.width}" height="{self.height}" fill="{theme.background}"/>\n{body}\n</svg>\n'
        )


_PARTS: Final = ("log, cursors: LMDB and segments", "subscriptions, sync, failover", "HTTP and Pulsar's protocol")
REGIONS: Final = Drawing(
    "regions",
    "Two regions, each with a worker, its clients and its Postgres, and links both ways",
    860,
    330,
    (
        Box(20, 70, 350, 240, "region us-east"),
        Box(50, 110, 290, 105, "worker", _PARTS, inner=True),
        Box(50, 245, 290, 50, "Postgres: an index", inner=True),
        Arrow(195, 216, 195, 244),
        Box(490, 70, 350, 240, "region eu-west"),
        Box(520, 110, 290, 105, "worker", _PARTS, inner=True),
        Box(520, 245, 290, 50, "Postgres: an index", inner=True),
        Arrow(665, 216, 665, 244),
        Arrow(341, 140, 518, 140, "blocks, markers"),
        Arrow(518, 190, 341, 190, "blocks, markers"),
        Box(60, 8, 270, 34, "producers and consumers", inner=True),
        Arrow(100, 42, 100, 108),
        Box(530, 8, 270, 34, "producers and consumers", inner=True),
        Arrow(570, 42, 570, 108),
    ),
)
COPYING: Final = Drawing(
    "copying",
    "A block is copied with its origin position, and the destination notes how far it has the origin",
    860,
    300,
    (
        Box(20, 20, 300, 255, "us-east: topic orders"),
        Box(45, 60, 250, 55, "block 7:0 to 7:99", ("published here",), inner=True),
        Box(45, 130, 250, 55, "block 7:100 to 7:149", ("published here",), inner=True),
        Box(45, 200, 250, 55, "block 9:0 to 9:19", ("origin eu-west: stays",), inner=True),
        Box(540, 20, 300, 255, "eu-west: topic orders"),
        Box(565, 60, 250, 55, "block 3:0 to 3:99", ("origin us-east 7:0 to 7:99",), inner=True),
        Box(565, 130, 250, 55, "block 3:100 to 3:149", ("origin us-east 7:100 to 7:149",), inner=True),
        Box(565, 200, 250, 55, "us-east: all up to 7:149", ("noted in the same transaction",), inner=True),
        Arrow(296, 157, 563, 157, "the same bytes"),
        Arrow(563, 227, 322, 227, "“I have it up to 7:149”", dashed=True),
    ),
)
_ACKNOWLEDGED: Final = ("consumer acknowledges 7:42", "cursor: 7:42 is done", "and that is on the disk")
_IDENTITY: Final = ("origin us-east,", "position 7:42, index 0:", "the same everywhere")
_APPLIED: Final = ("the message lies at 3:42", "cursor: 3:42 is done", "it is not delivered here")
SYNC: Final = Drawing(
    "sync",
    "An acknowledgement becomes an identity, travels with the messages, and becomes a position of the other cluster",
    860,
    250,
    (
        Box(20, 60, 240, 120, "us-east", _ACKNOWLEDGED),
        Box(320, 60, 220, 120, "identity", _IDENTITY, inner=True),
        Box(600, 60, 240, 120, "eu-west", _APPLIED),
        Arrow(261, 120, 318, 120),
        Arrow(541, 120, 598, 120),
        Words(430, 30, "a marker in the stream that the link carries, at most once in 5 ms for a topic", faint=True),
        Words(430, 218, "Merging is a union: in any order, any number of times, over one-way links too.", faint=True),
    ),
)
FAILOVER: Final = Drawing(
    "failover",
    "Epoch 0: each serves its own clients. Epoch 1: eu-west serves all, us-east is fenced. Epoch 2: as before",
    860,
    300,
    (
        Words(150, 24, "epoch 0", bold=True),
        Words(430, 24, "epoch 1: unplanned failover", bold=True),
        Words(710, 24, "epoch 2: failback", bold=True),
        Box(30, 45, 240, 75, "us-east", ("serves its own clients",)),
        Box(310, 45, 240, 75, "us-east", ("dead; when it is back: fenced",), lost=True),
        Box(590, 45, 240, 75, "us-east", ("serves its own clients",)),
        Box(30, 195, 240, 75, "eu-west", ("serves its own clients",)),
        Box(310, 195, 240, 75, "eu-west", ("serves the clients of both",)),
        Box(590, 195, 240, 75, "eu-west", ("serves its own clients",)),
        Arrow(120, 121, 120, 193),
        Arrow(180, 194, 180, 122),
        Arrow(430, 121, 430, 193, "", lost=True),
        Words(430, 288, "what was stranded flows on when us-east is back", faint=True),
        Arrow(680, 121, 680, 193),
        Arrow(740, 194, 740, 122),
    ),
)
DRAWINGS: Final = (REGIONS, COPYING, SYNC, FAILOVER)


def made() -> dict[str, str]:
    """Return every drawing by its name in docs/."""
    return {
        f"assets/{drawing.name}{theme.suffix}.svg": drawing.svg(theme)
        for drawing in DRAWINGS
        for theme in (LIGHT, DARK)
    }
