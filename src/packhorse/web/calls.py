# SPDX-License-Identifier: MIT
"""One request to the API as a handler sees it, and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from packhorse.app import Packhorse
from packhorse.core.access import Permission, Principal
from packhorse.handle import JobHandle
from packhorse.insights import Insights
from packhorse.web.looks import FleetLooks
from packhorse.web.problems import WebRefusal

Q = TypeVar("Q", bound=msgspec.Struct)


class EmptyOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing needs to be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """What a handler answers."""

    body: Any = None
    status: int = 200
    etag: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Any = None  #: for the audit: what was there, and what became of it
    after: Any = None
    response: Response | None = None  #: instead of all that


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """A request that may be answered: who asks was established, what was sent is checked."""

    app: Packhorse
    principal: Principal
    request: Request
    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    idempotency_key: str | None = None

    @property
    def insights(self) -> Insights:
        """What the principal may see of the store."""
        if self.principal.tenant is None:
            return self.app.insights
        return Insights(self.app.store, tenant=self.principal.tenant)

    @property
    def looks(self) -> FleetLooks:
        """What is counted over the whole store, and kept for a while."""
        looks: FleetLooks = self.request.app.state.looks
        return looks

    def job(self) -> JobHandle[Any]:
        """The job that the path names; of another tenant's, every verb says that there is none."""
        job_id, tenant = self.path["id"], self.principal.tenant
        return self.app.job(job_id) if tenant is None else self.app.tenant(tenant).job(job_id)

    def asked(self, kind: type[Q]) -> Q:
        """The query, whose kind the route names."""
        return _checked(self.query, kind)

    def sent(self, kind: type[Q]) -> Q:
        """The body, whose kind the route names."""
        return _checked(self.body, kind)

    def require_match(self, etag: str) -> None:
        """Refuse a change of something that is not any more what the client has seen."""
        wanted = self.request.headers.get("if-match")
        if wanted is None or wanted.strip() == "*":
            return
        if etag not in [each.strip() for each in wanted.split(",")]:
            raise WebRefusal(
                *(412, "CHANGED_MEANWHILE"),
                "it is not any more what If-Match says; read it again, then decide",
                headers={"ETag": etag},
            )


def _checked(value: Any, kind: type[Q]) -> Q:
    if not isinstance(value, kind):
        raise TypeError(f"the route of this handler does not name {kind.__name__}")
    return value


ApiHandler = Callable[[ApiCall], Awaitable[ApiAnswer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    """One row of the table of routes: everything that is true of a route is said here."""

    method: str
    path: str  #: below `/api/v1`
    handler: ApiHandler
    #: What the caller must be allowed to do; None: everybody may, as they learn nothing by it.
    permission: Permission | None
    summary: str
    answer: str  #: the schema of its answer, by its name in the OpenAPI document
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    #: It is about the whole fleet, so that a tenant's token may not use it.
    fleet: bool = False
    status: int = 200  #: when all is well
    media: str = "application/json"

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET"
