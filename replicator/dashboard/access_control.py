"""Access to the dashboard: signing in and out, the cookie, the tokens of forms, and the headers of every page.

A page is for superusers, by the rule for routes without one (:mod:`replicator.api.guarding`). What is shown to that
guard for a browser is what was shown when it signed in.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from replicator.api.errors import BadRequest
from replicator.api.guarding import ROLE, Guarding, canonical, is_dashboard, shown_with
from replicator.dashboard.fan_out import Answer
from replicator.dashboard.rendering import render
from replicator.dashboard.sessions import Sessions, is_id
from replicator.engine.errors import EngineError
from replicator.security.errors import NotIdentified, NotPermitted
from replicator.security.identity import TOKEN_CHARS_MAX

FORM_FIELD: Final = "form_token"
SIGN_IN: Final = "/dashboard/sign-in"
FORM_BYTES_MAX: Final = 64 * 1024
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Nothing is loaded from elsewhere, nothing runs that stands in a page, and no other site shows it in a frame."""
MORE_PAGES: Final[tuple[tuple[str, str], ...]] = (
    ("/dashboard/failover", "Failover"),
    ("/dashboard/policies", "Policies"),
    ("/dashboard/spark", "Spark"),
    ("/dashboard/drills", "Drills"),
    ("/dashboard/audit", "Audit log"),
)
"""Address and name of those that stand behind the first three."""
_VISIT: Final[web.RequestKey[BrowserRequest]] = web.RequestKey("visit")


class FormRefused(EngineError):
    """A form that does not bear the token of this browser."""

    status = 403


@dataclass(frozen=True, slots=True)
class BrowserRequest:
    """One request of a browser."""

    session_id: str
    form_token: str
    role: str
    shown: str | None
    """Credentials for requests to other workers in the name of this browser."""
    signed_in: bool
    asks: bool
    """Whether this worker asks who somebody is."""


class AccessControl:
    """Access to the dashboard of one worker."""

    def __init__(self, cluster: str, sessions: Sessions, guarding: Guarding | None) -> None:
        self._cluster = cluster
        self._sessions = sessions
        self._guarding = guarding

    def shown_by_browser(self, request: web.Request) -> str | None:
        return self._sessions.authorization(self._session_id(request))

    def visit(self, request: web.Request) -> BrowserRequest:
        """Return the visit that sends this request; a browser without a cookie gets one with the answer."""
        if _VISIT not in request:
            session_id = self._session_id(request) or Sessions.new_id()
            request[_VISIT] = BrowserRequest(
                session_id,
                self._sessions.form_token(session_id),
                request.get(ROLE, ""),
                shown_with(request),
                self._sessions.authorization(session_id) is not None,
                self._guarding is not None,
            )
        return request[_VISIT]

    async def form(self, request: web.Request) -> dict[str, str]:
        """Return the fields of a form that this dashboard gave to this browser. Raise :class:`FormRefused`."""
        if request.content_type != "application/x-www-form-urlencoded":
            raise FormRefused(
                "the request is not a form of this dashboard: open the page in a browser, and send its form"
            )
        if (request.content_length or 0) > FORM_BYTES_MAX:
            raise BadRequest(
                f"the form that was sent is larger than {FORM_BYTES_MAX} bytes: shorten what is typed in it"
            )
        try:
            fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        except (ValueError, UnicodeError):
            raise BadRequest("the form cannot be read") from None
        if not self._sessions.is_form_token(self._session_id(request), fields.get(FORM_FIELD, "")):
            raise FormRefused(
                "the form is not one of this browser's: it was given to another one, or before the worker was "
                "restarted; open the page again and send its form"
            )
        return fields

    def as_pages(self) -> Middleware:
        """Return the middleware that sets headers and cookie of the dashboard's answers, and shows errors as pages to
        browsers.
        """

        @web.middleware
        async def paged(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not is_dashboard(canonical(request)):
                return await handler(request)
            response: web.StreamResponse
            try:
                response = await handler(request)
            except web.HTTPNotFound:
                if not wants_page(request):
                    raise
                response = self._error_page(request, 404, f"there is no page {request.path[:200]}")
            except NotIdentified as error:
                if not wants_page(request):
                    raise
                if request.method == "GET":
                    onward = str(request.rel_url.without_query_params("token"))  # an address is no place for a token
                    where = "" if request.path == "/" else f"?next={quote(onward, safe='')}"
                    response = see_other(f"{SIGN_IN}{where}")
                else:
                    response = self._error_page(request, 401, f"you are not signed in any more: {error}")
            except EngineError as error:
                if not wants_page(request):
                    raise
                response = self._error_page(request, error.status, str(error))
            if not response.prepared:
                self.add_headers(request, response)
            return response

        return paged

    def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add to an answer the headers and the cookie that every answer of the dashboard has. A stream needs them
        before it begins.
        """
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        if (visit := request.get(_VISIT)) is not None and visit.session_id != self._session_id(request):
            self._set_cookie(request, response, visit.session_id)

    def page(self, request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
        visit = self.visit(request)
        text = render(
            template,
            visit=visit,
            form_token=visit.form_token,
            cluster=self._cluster,
            path=request.path,
            more_pages=MORE_PAGES,
            **values,
        )
        return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)

    def is_still_allowed(self, request: web.Request) -> bool:
        """Return whether whoever opened a long answer may get more of it: not after signing out, for example."""
        visit = self.visit(request)
        if visit.signed_in and not self._sessions.is_signed_in(visit.session_id):
            return False
        try:
            if self._guarding is not None:
                self._guarding.guard.check_superuser(visit.role)
        except NotPermitted:
            return False
        return True

    def refused(self, request: web.Request, answer: Answer, back: str) -> web.Response:
        """Return a page that tells why a change was not done, with the way back."""
        visit = self.visit(request)
        hint = ""
        if visit.asks and visit.shown is None:
            hint = "You came in by a certificate, which cannot be passed on. Sign in with a token to change things."
        status = answer.status if answer.status >= 400 else 502
        title = "That was not done"
        return self.page(request, "error.html", status=status, title=title, reason=answer.error, hint=hint, back=back)

    def _error_page(self, request: web.Request, status: int, reason: str) -> web.Response:
        return self.page(
            request, "error.html", status=status, title="That was not done", reason=reason, hint="", back=""
        )

    # Signing in and out.

    async def show_sign_in(self, request: web.Request) -> web.Response:
        """Show the form for signing in."""
        return self._sign_in_page(request, _next(request.query.get("next")), "")

    async def sign_in(self, request: web.Request) -> web.Response:
        """Check the credentials of the form, and keep them for this browser."""
        fields = await self.form(request)
        onward = _next(fields.get("next"))
        if self._guarding is None:
            return see_other(onward)
        try:
            shown = _shown(fields)
            identity = await self._guarding.identifying().of_request(shown, None, None)
            self._guarding.guard.check_superuser(identity.role)
        except (NotIdentified, NotPermitted) as error:
            return self._sign_in_page(request, onward, str(error), error.status)
        self._sessions.sign_out(self._session_id(request))
        response = see_other(onward)
        self._set_cookie(request, response, self._sessions.sign_in(shown))
        return response

    async def sign_out(self, request: web.Request) -> web.Response:
        """Forget the credentials of this browser."""
        await self.form(request)
        self._sessions.sign_out(self._session_id(request))
        response = see_other(SIGN_IN)
        response.del_cookie(self._cookie(request), path="/")
        return response

    def _sign_in_page(self, request: web.Request, onward: str, reason: str, status: int = 200) -> web.Response:
        methods = () if self._guarding is None else tuple(self._guarding.identifying().methods)
        return self.page(
            request, "sign_in.html", status=status, title="Sign in", onward=onward, reason=reason, methods=methods
        )

    def _session_id(self, request: web.Request) -> str:
        value = request.cookies.get(self._cookie(request), "")
        return value if is_id(value) else ""

    def _cookie(self, request: web.Request) -> str:
        """Return the cookie's name. It has the port, because browsers send cookies to all ports of a host."""
        return f"replicator-{hashlib.sha256(f'{self._cluster} {request.host}'.encode()).hexdigest()[:12]}"

    def _set_cookie(self, request: web.Request, response: web.StreamResponse, session_id: str) -> None:
        response.set_cookie(
            self._cookie(request), session_id, httponly=True, samesite="Strict", secure=request.secure, path="/"
        )


def see_other(path: str) -> web.Response:
    """Return a redirect (303) to ``path``, the answer to a form: loading the page again then does not send the form
    again.
    """
    return web.Response(status=303, headers={"Location": path})


def wants_page(request: web.Request) -> bool:
    return "text/html" in request.headers.get("Accept", "")


def _next(path: str | None) -> str:
    """Return the page to show next: one of the dashboard, never another site."""
    safe = path is not None and path.startswith("/dashboard/") and "\\" not in path and path.isprintable()
    return path if safe and path is not None and not path.startswith("/dashboard/events") else "/"


def _shown(fields: dict[str, str]) -> str:
    """Return a form's credentials in the form of the header ``Authorization``. Raise :class:`NotIdentified`."""
    token, name, password = (fields.get(each, "") for each in ("token", "name", "password"))
    if token.strip():
        if len(token) > TOKEN_CHARS_MAX:
            raise NotIdentified("this is not a token")
        return f"Bearer {token.strip()}"
    if name:
        return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"
    raise NotIdentified("show who you are: give a token, or a name and a password")
