# SPDX-License-Identifier: MIT
"""Serve the API: authenticate, authorize, validate, call the handler, and audit changes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from packhorse.app import Packhorse
from packhorse.client.audit import AuditLog, KeptAnswer, KeptAnswers
from packhorse.client.sealed_store import sealed_digest
from packhorse.client.tokens import Tokens
from packhorse.core.access import Permission, Principal
from packhorse.core.policies.uniqueness import same_payload
from packhorse.errors import PackhorseError
from packhorse.web import jobs
from packhorse.web.access import AccessRules, check_origin, principal_of, source_of
from packhorse.web.calls import ApiAnswer, ApiCall, ApiRoute, EmptyOrder
from packhorse.web.problems import WebRefusal, problem, problem_of

_LOG: Final = logging.getLogger("packhorse.web")
#: Bytes of a request body; a larger payload belongs in an artifact.
BODY_MAX: Final = 1024 * 1024
_KEY_MAX: Final = 200


def unauthenticated() -> WebRefusal:
    """Return the refusal of a request that nothing authenticates."""
    return WebRefusal(
        *(401, "UNAUTHENTICATED"),
        "send a token, as 'packhorse tokens create' makes it, in Authorization after 'Bearer '",
        headers={"WWW-Authenticate": "Bearer"},
    )


def allowed(principal: Principal, permission: Permission | None, *, fleet: bool) -> None:
    """Refuse what the principal may not do."""
    if permission is not None and not principal.may(permission):
        raise WebRefusal(403, "FORBIDDEN", f"that needs the permission {permission}")
    if fleet and principal.tenant is not None:
        raise WebRefusal(
            *(403, "OTHER_TENANT"), "that is about all tenants, and this token is for one"
        )


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Answers requests to the API of one app."""

    app: Packhorse
    rules: AccessRules
    audit_days: int

    def endpoint(self, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
        """Return the function that answers requests to a route."""

        async def answer(request: Request) -> Response:
            try:
                return await self.done(request, route)
            except (PackhorseError, WebRefusal) as error:
                return problem_of(error)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception:  # noqa: BLE001 - a request must not take the server down
                _LOG.exception("%s %s failed", route.method, route.path)
                return problem(500, "UNEXPECTED", "something went wrong here; it was logged")

        return answer

    async def principal(self, request: Request) -> Principal:
        """Authenticate a request, or refuse it."""
        tokens = Tokens(self.app.store)
        found = await principal_of(request, self.rules, tokens)
        if found is None:
            raise unauthenticated()
        return found

    async def done(self, request: Request, route: ApiRoute, *, form: bool = False) -> Response:
        """Carry out a request, if it is allowed; `form`: its body comes from a page's form."""
        principal = await self.principal(request)
        try:
            allowed(principal, route.permission, fleet=route.fleet)
            check_origin(request, principal)
            call = await self._call(request, route, principal, form=form)
            response, done = await self._done(call, route)
        except (PackhorseError, WebRefusal) as error:
            if route.changes:
                refused = problem_of(error)
                await self.note(request, route, principal, ApiAnswer(status=refused.status_code))
            raise
        if route.changes and done is not None:
            await self.note(request, route, principal, done)
        if form:  # the next page must show the change
            request.app.state.looks.forget()
        if isinstance(response, StreamingResponse):
            response.body_iterator = self._while_allowed(request, route, response.body_iterator)
        return response

    async def _while_allowed(
        self, request: Request, route: ApiRoute, parts: AsyncIterable[Any]
    ) -> AsyncIterator[Any]:
        """End a stream as soon as its reader is no longer allowed to read it."""
        async for part in parts:
            try:
                allowed(await self.principal(request), route.permission, fleet=route.fleet)
            except WebRefusal:
                return
            yield part

    async def note(
        self, request: Request, route: ApiRoute, principal: Principal, answer: ApiAnswer
    ) -> None:
        """Write to the audit log what was done, or tried."""
        redact = self.app.bus.redact
        await AuditLog(self.app.store, keep_days=self.audit_days).anote(
            who=principal.name,
            by=principal.by,
            action=f"{route.method} {route.path}",
            target=request.url.path,
            source=source_of(request, self.rules),
            status=answer.status,
            tenant=principal.tenant or "",
            before=None if answer.before is None else redact(msgspec.to_builtins(answer.before)),
            after=None if answer.after is None else redact(msgspec.to_builtins(answer.after)),
        )

    # ------------------------------------------------------------------------------------ reading

    async def _call(
        self, request: Request, route: ApiRoute, principal: Principal, *, form: bool
    ) -> ApiCall:
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _KEY_MAX:
            raise WebRefusal(400, "BAD_REQUEST", f"Idempotency-Key has 1 to {_KEY_MAX} characters")
        read = _form if form else _body
        return ApiCall(
            app=self.app,
            principal=principal,
            request=request,
            path=request.path_params,
            query=read_query(request, route.query),
            body=await read(request, route.body) if route.changes else None,
            idempotency_key=key if route.changes else None,
        )

    # -------------------------------------------------------------------------------------- doing

    async def _done(self, call: ApiCall, route: ApiRoute) -> tuple[Response, ApiAnswer | None]:
        """Call the handler once per Idempotency-Key; return None as answer for a repeated call."""
        key = call.idempotency_key
        if key is None or route.handler is jobs.submit:  # which passes the key to the store
            answer = await call.answered_by(route.handler)
            return _response(answer), answer
        kept, who = KeptAnswers(self.app.store), call.principal.name
        asked = sealed_digest(self.app.store, await _digest(call.request))
        known = await kept.abegin(who, key, asked)
        if known is not None:
            return _given_again(known, asked), None
        try:
            answer = await call.answered_by(route.handler)
        except BaseException:
            await kept.aend(who, key, None)  # nothing was done: free the key
            raise
        response = _response(answer)
        headers = {name: value for name, value in response.headers.items() if name == "etag"}
        body = bytes(response.body).decode()
        await kept.aend(who, key, KeptAnswer(asked, answer.status, body, headers))
        return response, answer


def read_query(
    request: Request,
    kind: type[msgspec.Struct] | None,
    *,
    leave_out: frozenset[str] | None = None,
) -> Any:
    """Validate the query; `leave_out` drops these names and empty fields first.

    A form sent by GET has all its fields in the query, also empty ones.
    """
    pairs = request.query_params.multi_items()
    if leave_out is not None:
        pairs = [(name, value) for name, value in pairs if name not in leave_out and value]
    read = _gathered(pairs, kind)
    given = dict(pairs)
    for one in () if kind is None else msgspec.structs.fields(kind):
        text, value = given.get(one.encode_name), getattr(read, one.name)
        # msgspec reads texts leniently: "null" as None, and 0.5 as an instant.
        if text is not None and (
            value is None or (isinstance(value, datetime) and ":" not in text)
        ):
            raise WebRefusal(422, "INVALID", f"{one.encode_name}: {text!r} is no value for it")
    return read


def _gathered(pairs: Iterable[tuple[str, str]], kind: type[msgspec.Struct] | None) -> Any:
    """Validate the fields of a query or form; only a list may be repeated."""
    given: dict[str, Any] = {}
    listed = () if kind is None else _listed(kind)
    for name, value in pairs:
        if name in listed:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise WebRefusal(400, "BAD_REQUEST", f"{name} is given twice")
        else:
            given[name] = value
    return _converted(lambda: msgspec.convert(given, kind or EmptyOrder, strict=False))


def _listed(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names that may be repeated."""
    fields = msgspec.structs.fields(kind)
    return frozenset(one.encode_name for one in fields if isinstance(one.default, tuple))


async def _form(request: Request, kind: type[msgspec.Struct] | None) -> Any:
    kind_of = request.headers.get("content-type", "").split(";")[0].strip()
    text = await read_body(request)
    if text and kind_of != "application/x-www-form-urlencoded":
        raise WebRefusal(415, "UNSUPPORTED_MEDIA_TYPE", "send the form of a page")
    return _gathered(parse_qsl(text.decode(errors="replace")), kind)


async def read_body(request: Request) -> bytes:
    """Read the body, up to a limit."""
    text = b""
    async for part in request.stream():
        text += part
        if len(text) > BODY_MAX:
            raise WebRefusal(413, "TOO_LARGE", f"a request has at most {BODY_MAX} bytes")
    request.state.body_digest = hashlib.sha256(text).hexdigest()
    return text


async def _body(request: Request, kind: type[msgspec.Struct] | None) -> Any:
    text = await read_body(request)
    if text and request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise WebRefusal(415, "UNSUPPORTED_MEDIA_TYPE", "send application/json")
    return _converted(lambda: msgspec.json.decode(text or b"{}", type=kind or EmptyOrder))


def _converted(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        field = place.strip("`$.") or None
        what = f"{field}: {message}" if field else message
        raise WebRefusal(422, "INVALID", what) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WebRefusal(400, "BAD_REQUEST", "the body is no JSON") from None


async def _digest(request: Request) -> str:
    asked = f"{request.method} {request.url.path}?{request.url.query}\n{request.state.body_digest}"
    return hashlib.sha256(asked.encode()).hexdigest()


def _given_again(known: KeptAnswer, asked: str) -> Response:
    if not same_payload(known.request, asked):
        raise WebRefusal(
            *(422, "IDEMPOTENCY_MISMATCH"),
            "this Idempotency-Key was used with another request; take a new one",
        )
    if not known.status:
        raise WebRefusal(
            *(409, "STILL_RUNNING"),
            "a request with this Idempotency-Key is still being worked on",
            headers={"Retry-After": "1"},
        )
    headers = {**known.headers, "Idempotency-Replayed": "true"}
    return Response(
        known.body, status_code=known.status, media_type="application/json", headers=headers
    )


def _response(answer: ApiAnswer) -> Response:
    if answer.response is not None:
        return answer.response
    headers = dict(answer.headers)
    if answer.etag is not None:
        headers["ETag"] = answer.etag
    return Response(
        msgspec.json.encode(answer.body),
        status_code=answer.status,
        media_type="application/json",
        headers=headers,
    )
