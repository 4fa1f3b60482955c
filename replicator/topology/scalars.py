"""Single values of a topology file: how each is written, what makes it valid, and how it is shown.

Sizes, durations, limits, words of a choice, addresses, database URLs, paths, and settings of Spark. Every message says
what is expected, and none shows a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn
from urllib.parse import SplitResult, urlsplit

from pydantic import BeforeValidator

from replicator.engine.log.segments.settings import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from replicator.engine.policies_codec import NUMBER_MAX

END_AFTER_SECONDS_MIN: Final = 3
"""Shortest time that can be set. The watchdog ticks once a second, and a process that was suspended may tick once
before its event loop turns."""
END_AFTER_SECONDS_MAX: Final = 24 * 60 * 60
EMBEDDED: Final = "embedded"
"""A database of the worker's own; and copying by the worker itself."""
BATCH_SECONDS_MAX: Final = 60
"""The longest micro-batch. Spark learns what became of a batch only when it ends."""
CONF_MAX: Final = 200
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]{2,45}\]")
_SIZE_UNITS: Final = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_SIZE = re.compile(rf"(\d{{1,18}})\s*({'|'.join(_SIZE_UNITS)})")
_DURATION_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(rf"(\d{{1,12}})\s*({'|'.join(_DURATION_UNITS)})")
UNLIMITED: Final = "unlimited"
"""The word for "no limit", where a default or the file's top level sets one."""
_MASTER = re.compile(r"local(\[(\*|[1-9]\d{0,3})\])?|yarn|(spark|k8s)://\S+")
SECRET = re.compile(r"(?i)secret|password|token|access[.]?key|credential")
"""Names of settings whose values are not shown; as Spark itself has it."""
_ANY_INTERFACE: Final = frozenset({"0.0.0.0", "[::]", "[::0]"})  # nosec B104


def check_listen(text: str) -> str:
    """Check an address like :func:`check_address`, but also accept "every address of this host"."""
    host, _, port = text.rpartition(":")
    if host not in _ANY_INTERFACE:
        return check_address(text)
    return f"{host}:{check_address(f'localhost:{port}').rpartition(':')[2]}"


def check_host_name(text: str) -> str:
    """Check a host name without a port."""
    if not _HOST.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a host name (write it without a port)")
    return text.lower()


def check_origin(text: str) -> str:
    """Check the origin of a page, as browsers send it."""
    scheme, _, place = text.lower().partition("://")
    host, _, port = place.partition(":")
    if scheme not in ("http", "https") or not _HOST.fullmatch(host) or (port and not port.isdigit()):
        raise ValueError(
            f"{text[:80]!r} is not the site of a page: give scheme, host and port only (for example "
            "https://app.example or http://h:8080)"
        )
    return f"{scheme}://{place.removesuffix(':443' if scheme == 'https' else ':80')}"


def check_address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text[:80]!r} is not HOST:PORT (for example 127.0.0.1:7101)")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(f"the port {port[:20]!r} of {text[:80]!r} must be a number from 1 to 65535")
    if host in _ANY_INTERFACE:
        raise ValueError(
            f"{host} is no address that other workers can reach; give the host that they connect to as `address`, and "
            f"{text} as `listen`"
        )
    if ":" in host and not host.startswith("["):
        raise ValueError(f"{text[:80]!r}: write an IPv6 address in brackets, as [::1]:7101")
    if not (_HOST.fullmatch(host) or _IPV6.fullmatch(host)):
        raise ValueError(f"{host[:80]!r} is not a host name or an IP address")
    return f"{host}:{int(port)}"


def check_database(text: str) -> str:
    if text == EMBEDDED:
        return text
    embedded_or_postgresql_url = "`embedded` or postgresql://user:password@host:port/database"
    scheme, separator, _rest = text.partition("://")
    if not separator:
        raise ValueError(f"the value is not a database; expected {embedded_or_postgresql_url}")
    if scheme != "postgresql":
        raise ValueError(f"{scheme[:30]!r} is not a database that can be used; expected {embedded_or_postgresql_url}")
    shown = mask_password(text)
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise ValueError(
            f"malformed URL {shown}: write @ : / ? # in the password as %40 %3A %2F %3F %23; expected "
            f"{embedded_or_postgresql_url}"
        ) from None
    if port == 0 or (not url.hostname and "host=" not in url.query):
        raise ValueError(f"malformed URL {shown}: it names no host, or port 0; expected {embedded_or_postgresql_url}")
    if "@" in url.netloc.rpartition("@")[0] or any(char.isspace() for char in text):
        raise ValueError(
            f"malformed URL {shown}: write @ in the password as %40, and a space as %20; expected "
            f"{embedded_or_postgresql_url}"
        )
    if not url.path.strip("/") or "/" in url.path[1:] or "@" in url.path or url.fragment:
        raise ValueError(f"malformed URL {shown}: it must end in /DATABASE; expected {embedded_or_postgresql_url}")
    return text


def mask_password(url: str) -> str:
    """Return a database URL that may be shown: every part where a password can stand is masked, well-formed or not."""
    if "://" not in url:
        return url if url == EMBEDDED else "***"
    scheme, _, rest = url.partition("://")
    try:
        parts: SplitResult | None = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or "@" in parts.path + parts.query + parts.fragment or _is_invalid_port(parts):
        # The user's part is not where a parser looks for it, so nothing after it is safe to show.
        return f"{scheme}://***@{rest.rpartition('@')[2]}" if "@" in rest else f"{scheme}://***"
    masked = re.sub(r"^([^:/?#]*):[^/?#]*@", r"\1:***@", rest)
    return f"{scheme}://" + re.sub(r"(?i)((?:^|[?&])[^=&]*password=)[^&]*", r"\1***", masked)


def _is_invalid_port(parts: SplitResult) -> bool:
    try:
        return parts.port == 0
    except ValueError:
        return True


def data_path(value: object, info: Any) -> object:
    if not isinstance(value, str):
        return value  # refused as the wrong type
    if not value.strip() or "\0" in value:
        raise ValueError("must name a directory")
    try:
        path = Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"the home directory of {value[:80]!r} is not known; write the path out") from None
    return Path(os.path.abspath((info.context or Path()) / path))  # noqa: PTH100 - keeps symlinks, drops ..


def parse_size(value: object) -> object:
    """Return the bytes of ``64GiB``, ``500MB`` or a plain number; raise ValueError. Other types are left to the
    caller.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value[:40]!r} is not a size (for example 64GiB, 500MB, or a number of bytes)")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def check_segment(size_bytes: int) -> int:
    """Raise ValueError if segments cannot have that size."""
    if size_bytes and not SEGMENT_BYTES_MIN <= size_bytes <= SEGMENT_BYTES_MAX:
        raise ValueError(
            f"segments cannot have {format_size(size_bytes)}: give from {format_size(SEGMENT_BYTES_MIN)} to "
            f"{format_size(SEGMENT_BYTES_MAX)}, or 0 for no segments"
        )
    return size_bytes


def format_size(size_bytes: int) -> str:
    """Return the shortest exact text that :func:`parse_size` reads back."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit]}{unit}"
    return f"{size_bytes}B"


def rounded_size(size_bytes: int) -> str:
    """Return a size for people: ``1.3 GB``, ``0.2 MB``."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.1f} MB"


def parse_duration(value: object) -> object:
    """Return the seconds of ``7d``, ``90s`` or a plain number; raise ValueError. Other types are left to the caller."""
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value[:40]!r} is not a duration (for example 7d, 12h, 30m, or a number of seconds)")
    return int(match[1]) * _DURATION_UNITS[match[2]]


def format_duration(seconds: int) -> str:
    """Return the shortest exact text that :func:`parse_duration` reads back, in days at most."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _DURATION_UNITS[unit] == 0:
            return f"{seconds // _DURATION_UNITS[unit]}{unit}"
    return f"{seconds}s"


def limit(kind: str, parse: Callable[[object], object] = lambda value: value, *, most: int = NUMBER_MAX,
           off_at_0: bool = True) -> BeforeValidator:  # fmt: skip
    """Return a validator for a whole number of ``kind`` or ``unlimited``. With ``off_at_0``, 0 is no limit, as at
    brokers.
    """

    def check(value: object) -> int | None:
        if value == UNLIMITED:
            return None
        try:
            number = parse(value)
        except ValueError as error:
            raise ValueError(f"{error}; this is a limit, so it may also be `{UNLIMITED}`") from None
        if type(number) is not int:
            raise ValueError(f"must be {kind}, or `{UNLIMITED}` for no limit")
        if number < 0:
            raise ValueError(f"{number} is too small; the least is 0, and without a limit it is `{UNLIMITED}`")
        if number > most:
            raise ValueError(f"{number} is too large; the most is {most}, or `{UNLIMITED}` for no limit")
        return None if off_at_0 and number == 0 else number

    return BeforeValidator(check)


def one_of(kind: type[Enum]) -> BeforeValidator:
    names = [each.value for each in kind]

    def check(value: object) -> object:
        if value in names:
            return kind(value)
        _refuse(value, names)

    return BeforeValidator(check)


def _refuse(value: object, possible_values: Sequence[object]) -> NoReturn:
    known = ", ".join(map(str, possible_values))
    if isinstance(value, str):
        raise ValueError(f"{value[:40]!r} is not one of {known}")  # noqa: TRY004 - what pydantic reports
    raise ValueError(f"must be one of {known}")


def _check_flag(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - what pydantic reports
    return value


SIZE_KIND: Final = "a size (for example 10GiB, or a number of bytes)"
DURATION_KIND: Final = "a duration (for example 7d, 12h, 30m, or a number of seconds)"
_COUNT_KIND: Final = "a whole number"

Count = Annotated[int | None, limit(_COUNT_KIND)]
Size = Annotated[int | None, limit(SIZE_KIND, parse_size)]
Duration = Annotated[int | None, limit(DURATION_KIND, parse_duration)]
Flag = Annotated[bool, BeforeValidator(_check_flag)]


def check_end_after(seconds: int) -> int:
    """Return ``seconds`` if it is 0 (never) or within the allowed range; else raise ValueError.

    With a shorter time, the watchdog could not tell a standstill from a slow worker.
    """
    if seconds != 0 and not END_AFTER_SECONDS_MIN <= seconds <= END_AFTER_SECONDS_MAX:
        raise ValueError(
            "the time after which a stuck worker ends must be 0, for never, or "
            f"{format_duration(END_AFTER_SECONDS_MIN)} to {format_duration(END_AFTER_SECONDS_MAX)}"
        )
    return seconds


def check_master(text: str) -> str:
    if not _MASTER.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is not a Spark master (for example local[2] or spark://host:7077)")
    return text


def choice(words: tuple[str, ...]) -> BeforeValidator:
    """Return a validator that accepts one of ``words``."""

    def check(value: object) -> object:
        if value not in words:
            _refuse(value, words)
        return value

    return BeforeValidator(check)


def check_batch(value: object) -> object:
    seconds = parse_duration(value)
    if type(seconds) is not int or not 1 <= seconds <= BATCH_SECONDS_MAX:
        raise ValueError(f"must be a duration from 1s to {BATCH_SECONDS_MAX}s, the length of a micro-batch of Spark")
    return seconds


def check_conf(value: object) -> object:
    if not isinstance(value, Mapping) or len(value) > CONF_MAX:
        raise ValueError(
            f"must be a mapping of at most {CONF_MAX} settings of Spark, such as spark.executor.memory: 2g"
        )
    for key, setting in value.items():
        if not (isinstance(key, str) and key.startswith("spark.") and len(key) <= 200):
            raise ValueError(f"{str(key)[:80]!r} is not a setting of Spark; their names begin with spark.")
        if not isinstance(setting, str):
            raise ValueError(  # noqa: TRY004 - for pydantic
                f"the value of Spark's setting {key} must be text; put it in quotes"
            )
    return dict(value)
