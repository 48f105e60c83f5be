# SPDX-License-Identifier: MIT
"""A request to the API as its handler gets it, the handler's answer, and a route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from packhorse.app import Packhorse
from packhorse.client.tenant import TenantView
from packhorse.core.access import Permission, Principal
from packhorse.handle import JobHandle
from packhorse.insights import Insights
from packhorse.web.count_cache import FleetLooks
from packhorse.web.problems import WebRefusal

#: A name or a short text in a query or a body.
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class EmptyOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query or a body without fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """The answer of a handler."""

    body: Any = None
    status: int = 200
    etag: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Any = None  #: for the audit log: the state before the change, and after it
    after: Any = None
    response: Response | None = None  #: sent instead of everything above


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """An authenticated request whose query and body were validated."""

    app: Packhorse
    principal: Principal
    request: Request
    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    idempotency_key: str | None = None

    @property
    def insights(self) -> Insights:
        """The part of the store that the principal may see."""
        if self.principal.tenant is None:
            return self.app.insights
        return Insights(self.app.store, tenant=self.principal.tenant)

    @property
    def looks(self) -> FleetLooks:
        """Counts over the whole store, cached for a while."""
        looks: FleetLooks = self.request.app.state.looks
        return looks

    @property
    def view(self) -> Packhorse | TenantView:
        """The app, or what the principal's tenant may use of it."""
        return self.view_of(self.principal.tenant)

    def view_of(self, tenant: str | None) -> Packhorse | TenantView:
        """Return the app as a tenant may use it; None is the whole app."""
        return self.app if tenant is None else self.app.tenant(tenant)

    def job(self) -> JobHandle[Any]:
        """Return the job that the path names; the verbs of another tenant's job find none."""
        return self.view.job(self.path["id"])

    def tenant(self, asked: str | None) -> str | None:
        """Return the tenant to act for; refuse another one than the principal's own."""
        own = self.principal.tenant
        if own is not None and asked not in (None, own):
            raise WebRefusal(403, "OTHER_TENANT", "this token is for another tenant")
        return asked if own is None else own

    async def answered_by(self, handler: ApiHandler) -> ApiAnswer:
        """Call a handler with the query and the body, as far as it takes them."""
        given = {"query": self.query, "order": self.body}
        return await handler(self, **{name: given[name] for name in _taken(handler)})

    def require_match(self, etag: str) -> None:
        """Refuse to change something that has changed since the client read it."""
        wanted = self.request.headers.get("if-match")
        if wanted is None or wanted.strip() == "*":
            return
        if etag not in [each.strip() for each in wanted.split(",")]:
            raise WebRefusal(
                *(412, "CHANGED_MEANWHILE"),
                "it is not any more what If-Match says; read it again, then decide",
                headers={"ETag": etag},
            )


#: Takes the call, and where it needs them the `query` and the body as `order`.
ApiHandler = Callable[..., Awaitable[ApiAnswer]]


H = TypeVar("H", bound=ApiHandler)


@dataclass(frozen=True, slots=True)
class Answers:
    """How the OpenAPI document describes a handler."""

    schema: str  #: of its answer, by its name in the document; empty: a text
    summary: str
    status: int  #: on success
    media: str


def answers(
    schema: str, summary: str, *, status: int = 200, media: str = "application/json"
) -> Callable[[H], H]:
    """Describe the answer of a handler."""

    def describe(handler: H) -> H:
        vars(handler)["answers"] = Answers(schema, summary, status, media)
        return handler

    return describe


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One row of the table of routes. The handler's annotations name its query and its body."""

    method: str
    path: str  #: below `/api/v1`
    handler: ApiHandler
    permission: Permission  #: what the caller must be allowed to do
    _: KW_ONLY
    fleet: bool = False  #: about all tenants: refused to the token of one tenant

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET"

    @property
    def answers(self) -> Answers:
        """The description of its answer."""
        described: Answers = vars(self.handler)["answers"]
        return described

    @property
    def query(self) -> type[msgspec.Struct] | None:
        """The query's type; None if it takes none."""
        return query_type(self.handler)

    @property
    def body(self) -> type[msgspec.Struct] | None:
        """The body's type; None if it takes none."""
        return _taken(self.handler).get("order", EmptyOrder if self.method == "POST" else None)


def given_fields(order: msgspec.Struct, *, missing: object = None) -> dict[str, Any]:
    """Return the fields of a body by name, without those that were left out."""
    fields = {name: getattr(order, name) for name in order.__struct_fields__}
    return {name: value for name, value in fields.items() if value is not missing}


def query_type(handler: ApiHandler) -> type[msgspec.Struct] | None:
    """Return the type of the query that a handler takes."""
    return _taken(handler).get("query")


@cache
def _taken(handler: ApiHandler) -> Mapping[str, type[msgspec.Struct]]:
    """Return the types of the `query` and the `order` that a handler takes."""
    hints = get_type_hints(handler)
    return {name: hints[name] for name in ("query", "order") if name in hints}
