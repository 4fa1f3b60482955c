"""Signing in to the dashboard as a browser does."""

from __future__ import annotations

import re
from urllib.parse import urlencode

from served_worker import Answer, ServedWorker

PAGE = {"Accept": "text/html,application/xhtml+xml"}


FORM = {"Content-Type": "application/x-www-form-urlencoded", **PAGE}


def cookie_of(answer: Answer) -> dict[str, str]:
    return {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}


def form_token(answer: Answer) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', answer.content.decode())
    assert found is not None, answer.content
    return found[1]


def signed_in(worker: ServedWorker, **fields: str) -> tuple[Answer, dict[str, str]]:
    shown = worker.ask("GET", "/dashboard/sign-in", headers=PAGE)
    before = cookie_of(shown)
    body = urlencode({"form_token": form_token(shown), "next": "/dashboard/topics", **fields})
    return worker.ask("POST", "/dashboard/sign-in", body, {**FORM, **before}), before
