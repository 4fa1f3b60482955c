"""Checks of browsers' requests: a worker's own names, and the pages that may use it."""

from __future__ import annotations

import pytest

from replicator.api.browsers import Allowed, ForeignOrigin, UnknownHost, check_host, check_origin

ALLOWED = Allowed(frozenset({"us-east.example"}), frozenset({"https://app.example", "http://tools.example:8080"}))


@pytest.mark.parametrize(
    "host",
    ["us-east.example", "us-east.example:7101", "us-east.example.:7101", "localhost:7101", "a.localhost",
     "127.0.0.1:7101", "10.1.2.3", "[::1]:7101", "[fe80::1%eth0]"],
)  # fmt: skip
def test_a_worker_is_called_by_its_names_and_by_numeric_addresses(host: str) -> None:
    check_host(host, ALLOWED)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7101", "us-east.example.evil.example", "127.0.0.1.evil.example", "notlocalhost",
     "0x7f000001", "[evil.example]", "us-east.example@evil.example", " ", ":7101"],
)  # fmt: skip
def test_any_other_name_is_refused(host: str) -> None:
    with pytest.raises(UnknownHost, match="hosts"):
        check_host(host, ALLOWED)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:7101", "127.0.0.1:7101"),
        ("https://us-east.example", "us-east.example"),
        ("https://us-east.example", "us-east.example:443"),
        ("http://us-east.example:80", "us-east.example"),
        ("http://[::1]:7101", "[::1]:7101"),
        ("https://app.example", "127.0.0.1:7101"),
        ("https://app.example:443", "127.0.0.1:7101"),
        ("http://tools.example:8080", "127.0.0.1:7101"),
    ],
)
def test_pages_of_the_worker_itself_and_those_that_are_allowed_may_use_it(origin: str, host: str) -> None:
    check_origin(origin, host, ALLOWED)


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://app.example", "https://app.example:8443", "http://tools.example", "null", "", "file://",
     "http://127.0.0.1:7102", "http://127.0.0.1", "127.0.0.1:7101", "http://", "chrome-extension://127.0.0.1:7101"],
)  # fmt: skip
def test_pages_of_any_other_site_may_not(origin: str) -> None:
    with pytest.raises(ForeignOrigin, match="origins"):
        check_origin(origin, "127.0.0.1:7101", ALLOWED)
