# SPDX-License-Identifier: MIT
"""Log events: `records` makes log records of them, `formats` formats them.

`lines` writes them out of the process without blocking jobs; `setup` is for whole processes.
`attach` and the formatters are public.
"""

from __future__ import annotations

from packhorse.context import job_fields
from packhorse.logs.formats import ConsoleFormatter, JobFields, JsonFormatter
from packhorse.logs.records import LogFormat, attach, attached, configure, is_for_people

__all__ = [
    "ConsoleFormatter",
    "JobFields",
    "JsonFormatter",
    "LogFormat",
    "attach",
    "attached",
    "configure",
    "is_for_people",
    "job_fields",
]
