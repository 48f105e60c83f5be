# SPDX-License-Identifier: MIT
"""The web side of Packhorse, behind the extra `web`: pages for people, a JSON API for programs.

    from packhorse.web import web_app

    application = web_app(app, authorize=who)      # an ASGI application, to serve or to mount

By default no one has access: see `web_app`.
"""

from __future__ import annotations

from packhorse.core.access import ROLES, Permission, Principal
from packhorse.web.application import web_app

__all__ = ["ROLES", "Permission", "Principal", "web_app"]
