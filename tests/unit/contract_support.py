# SPDX-License-Identifier: MIT
"""For tests of contracts: the one that the requirements give, word for word."""

from __future__ import annotations

from typing import Any, Final

#: A file of exactly this shape is a contract.
QUEUE_BASED: Final = """\
worker_id: queue-based-worker
version: 1.0
purpose: Consume queued tasks safely with retries and without duplicate side effects.
inputs:
  - message: object
  - idempotency_key: string
outputs:
  - status: string
  - outputs: object
constraints:
  timeout_seconds: 60
  max_tokens: 1500
  tools_allowed: [language_model, write_result_store]
  rate_limit: "per-tenant (example: 10/min)"
retries:
  max_attempts: 2
  backoff: exponential
observability:
  trace_id: required
  log_fields: [worker_id, attempt, duration_ms]
"""

INPUT_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
    "properties": {"message": {"type": "object"}, "idempotency_key": {"type": "string"}},
    "required": ["message", "idempotency_key"],
}

OUTPUT_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": True,
    "properties": {"status": {"type": "string"}, "outputs": {"type": "object"}},
}
