"""The dashboard shows what somebody named as it is, and nothing more to whoever has signed out."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from dashboard_support import FORM, PAGE, cookie_of, form_token, signed_in
from security_support import Secrets
from served_worker import ServedWorker, served_worker

NAMED = "form-token-of-this-browser"
"""Text that an earlier version replaced by the token of the browser's forms, wherever it stood."""


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.made(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def closed(secrets: Secrets) -> Iterator[ServedWorker]:
    with served_worker(sections={"auth": secrets.auth()}) as served:
        yield served


def test_what_somebody_named_is_never_taken_for_the_place_of_a_form_token(
    closed: ServedWorker, secrets: Secrets
) -> None:
    shown = {"Authorization": f"Bearer {secrets.token('operator')}"}
    path = f"namespaces/public/default/permissions/{NAMED}"
    assert closed.ask("POST", path, '["consume"]', shown).status == 204
    answer, _ = signed_in(closed, token=secrets.token("operator"))
    cookie = cookie_of(answer)
    for page in (f"/dashboard/topics?search={NAMED}", "/dashboard/permissions?namespace=public/default"):
        text = closed.ask("GET", page, headers={**PAGE, **cookie}).content.decode()
        assert NAMED in text
        token = form_token(closed.ask("GET", page, headers={**PAGE, **cookie}))
        assert text.count(token) == text.count(f'name="form_token" value="{token}"')


def test_a_stream_of_changes_ends_when_its_browser_signs_out(closed: ServedWorker, secrets: Secrets) -> None:
    answer, _ = signed_in(closed, token=secrets.token("operator"))
    cookie = cookie_of(answer)
    connection = closed._connection()
    try:
        connection.request("GET", "/dashboard/events?view=map", headers={"Accept": "text/event-stream", **cookie})
        stream = connection.getresponse()
        assert stream.readline().startswith(b"data: ")
        page = closed.ask("GET", "/dashboard/topics", headers={**PAGE, **cookie})
        body = urlencode({"form_token": form_token(page)})
        assert closed.ask("POST", "/dashboard/sign-out", body, {**FORM, **cookie}).status == 303
        for line in iter(stream.readline, b""):  # to its end
            assert not line.startswith(b"data: ")
    finally:
        connection.close()


def test_white_space_around_a_token_does_not_keep_anybody_from_signing_in(
    closed: ServedWorker, secrets: Secrets
) -> None:
    answer, _ = signed_in(closed, token=f" \t{secrets.token('operator')}\r\n")
    page = closed.ask("GET", "/dashboard/topics", headers={**PAGE, **cookie_of(answer)})
    assert page.status == 200
