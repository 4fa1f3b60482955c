"""Settings of a worker of ``kind: pulsar``: how it reaches the Apache Pulsar cluster beside it, and what it copies from
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from replicator.topology.patterns import Patterns, any_matches, selects
from replicator.topology.scalars import Flag, check_address, data_path
from replicator.topology.sections import Section

KINDS: Final = ("embedded", "pulsar")
EMBEDDED_KIND, PULSAR_KIND = KINDS
BROKER_SUFFIX: Final = ".pulsar"
"""Suffix of a cluster's name in the origin of messages that producers publish at that cluster's brokers. No cluster's
name has a dot, so no other origin has this name.
"""
SYSTEM_NAMESPACE: Final = "pulsar/system"
PENDING_ACKS: Final = "__transaction_pending_ack"
"""Suffix of topics in which brokers keep acknowledgements of transactions. Old brokers list them among all topics."""
HOSTS_MAX: Final = 32
"""Limit of hosts in one URL. They are tried one after the other."""
PULSAR_NAME_CHARS_MAX: Final = 255
"""Limit of characters of the name that brokers have for a cluster."""
QUIET_REQUESTS_PER_SECOND: Final = 20
_SERVICE_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}
_ADMIN_PORTS: Final = {"http": 8080, "https": 8443}


def _checked_url(text: str, ports: dict[str, int]) -> str:
    scheme, separator, places = text.partition("://")
    url_forms = " or ".join(f"{each}://HOST:PORT" for each in ports)
    if not separator or scheme not in ports:
        raise ValueError(f"{text[:80]!r} must be {url_forms}, the URL of Apache Pulsar brokers")
    named = places.split(",")
    if len(named) > HOSTS_MAX:
        raise ValueError(f"the URL of the brokers names {len(named)} hosts; give {HOSTS_MAX} at most")
    checked = dict.fromkeys(_checked_place(f"{scheme}://{place.strip()}", ports[scheme], url_forms) for place in named)
    return f"{scheme}://{','.join(checked)}"


def _checked_place(url: str, port_by_default: int, url_forms: str) -> str:
    """Return ``HOST:PORT`` of the URL of one host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{url[:80]!r} is no URL of brokers: {error}; it must be {url_forms}") from None
    if "@" in url or parts.path.strip("/") or parts.query or not host:
        raise ValueError(
            f"the URL of the brokers must be {url_forms} and nothing else: hosts of one cluster, no path, no "
            "credentials"
        )
    named = f"[{host}]" if ":" in host else host
    return check_address(f"{named}:{port or port_by_default}")


def _one_by_one(url: str) -> tuple[str, ...]:
    scheme, _, places = url.partition("://")
    return tuple(f"{scheme}://{place}" for place in places.split(","))


def check_service_url(text: str) -> str:
    """Check the URL of the binary protocol of the brokers or their proxies: one host of the cluster, or several."""
    return _checked_url(text, _SERVICE_PORTS)


def check_admin_url(text: str) -> str:
    """Check the URL of the admin REST API of the brokers or their proxies: one host of the cluster, or several."""
    return _checked_url(text, _ADMIN_PORTS)


def check_cluster_name(text: str) -> str:
    """Check a name that Pulsar's brokers may have for a cluster, and return it."""
    if not text or len(text) > PULSAR_NAME_CHARS_MAX or not text.isprintable():
        raise ValueError(
            f"must be the name that the brokers have for their cluster: 1 to {PULSAR_NAME_CHARS_MAX} printable "
            "characters"
        )
    return text


class ApacheAuth(Section):
    """Credentials that the worker shows to the brokers, in files that are read for each connection and each request."""

    token_file: Annotated[Path, BeforeValidator(data_path)] | None = None
    password_file: Annotated[Path, BeforeValidator(data_path)] | None = None
    """One line, ``NAME:PASSWORD``, for basic authentication."""
    certificate: Annotated[Path, BeforeValidator(data_path)] | None = None
    key: Annotated[Path, BeforeValidator(data_path)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> ApacheAuth:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("`certificate` and `key` belong together; give both or none")
        if sum(each is not None for each in (self.token_file, self.password_file, self.certificate)) > 1:
            raise ValueError("give one of `token_file`, `password_file`, or `certificate` with `key`, and not several")
        return self


class ApacheTls(Section):
    """Trust of the worker in its brokers' certificates."""

    ca: Annotated[Path, BeforeValidator(data_path)] | None = None
    """The authorities of the brokers' certificates; those of this host without it."""
    check_hostname: Flag = True


class ApacheSettings(Section):
    """An Apache Pulsar cluster, as the worker beside it reaches it."""

    service_url: Annotated[str, AfterValidator(check_service_url)]
    admin_url: Annotated[str, AfterValidator(check_admin_url)]
    auth: ApacheAuth = Field(default=ApacheAuth(), repr=False)
    tls: ApacheTls = ApacheTls()
    topics: Patterns = ()
    """Patterns of the topics that are bridged; empty for all but the brokers' own."""
    exclude: Patterns = ()
    subscriptions: Patterns = ()
    """Patterns of the names of the subscriptions whose state is bridged; empty for all durable ones."""
    cluster_name: Annotated[str, AfterValidator(check_cluster_name)] | None = None
    """The name that the brokers have for their own cluster, if it is not the name in the topology."""

    quiet_requests_per_second: int = Field(default=QUIET_REQUESTS_PER_SECOND, ge=1, le=1000)
    """Limit of the requests a second that compare quiet topics: those whose messages are all acknowledged."""

    @model_validator(mode="after")
    def _certificate_needs_tls(self) -> ApacheSettings:
        tls = self.service_url.startswith("pulsar+ssl://") and self.admin_url.startswith("https://")
        if self.auth.certificate is not None and not tls:
            raise ValueError(
                "`auth.certificate` is shown by TLS alone: `service_url` must be pulsar+ssl://HOST:PORT and "
                "`admin_url` https://HOST:PORT"
            )
        return self

    @property
    def admin_urls(self) -> tuple[str, ...]:
        """Return a URL for each host of ``admin_url``."""
        return _one_by_one(self.admin_url)

    def bridges(self, topic: str) -> bool:
        """Return whether the topic of that full name is copied out of the brokers and into them."""
        _, _, path = topic.partition("://")
        namespace, _, local = path.rpartition("/")
        if namespace == SYSTEM_NAMESPACE or local.startswith("__") or local.endswith(PENDING_ACKS):
            return False
        return selects(self.topics, self.exclude, topic)

    def bridges_subscription(self, name: str) -> bool:
        """Return whether the state of subscriptions of that name is replicated."""
        return not self.subscriptions or any_matches(self.subscriptions, (name,))

    def written(self) -> dict[str, Any]:
        """Return the settings in the form of the topology file."""
        written: dict[str, Any] = {"service_url": self.service_url, "admin_url": self.admin_url}
        for section in ("auth", "tls"):
            changed = getattr(self, section).model_dump(mode="json", exclude_defaults=True)
            if changed:
                written[section] = changed
        for name in ("topics", "exclude", "subscriptions"):
            if patterns := getattr(self, name):
                written[name] = list(patterns)
        if self.cluster_name is not None:
            written["cluster_name"] = self.cluster_name
        if self.quiet_requests_per_second != QUIET_REQUESTS_PER_SECOND:
            written["quiet_requests_per_second"] = self.quiet_requests_per_second
        return written

    def __str__(self) -> str:
        return f"{self.service_url}, {self.admin_url}"
