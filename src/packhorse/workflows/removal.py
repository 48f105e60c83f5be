# SPDX-License-Identifier: MIT
"""Remove workflows whose retention has passed, and those that were replaced unstarted."""

from __future__ import annotations

from typing import Final

import msgspec

from packhorse.core.policies.journal import Group
from packhorse.core.policies.records import Put, Record, RecordChange, RecordId, Remove
from packhorse.core.workflows import (
    NODE_KIND,
    HeadDocument,
    name_id,
    node_prefix,
    read_head,
    written_head,
)
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RecordPage

_PAGE: Final = 500


def drop_head(group: Group, head: HeadDocument, version: int) -> Put:
    """Return the put that hides a workflow; `removed` deletes it, now or later."""
    gone = msgspec.structs.replace(head, removing=True)
    return written_head(group, gone, version, order=0)


def removed(store: Store, group: Group, record: Record) -> Asking[None]:
    """Remove a workflow in bounded parts, its head last."""
    head, version = read_head(record.document), record.version
    if not head.removing:
        changed: Changed = yield store.records.change((drop_head(group, head, version),))
        if not changed.applied:
            return
        version = changed.versions[0]
    prefix = node_prefix(group)
    while True:
        page: RecordPage = yield store.records.records(
            NODE_KIND,
            tenant=group.tenant,
            after=RecordId(NODE_KIND, group.tenant, prefix).text,
            limit=min(_PAGE, head.size + 1),
        )
        own = [each.id for each in page.records if each.id.key.startswith(prefix)]
        if not own:
            break
        yield store.records.change([Remove(named) for named in own])
    last: list[RecordChange] = [Remove(group.record, version)]
    name: Record | None = yield store.records.record(name_id(group.tenant, group.key))
    if name is not None and name.document == group.run.encode():
        last.append(Remove(name.id, name.version))
    yield store.records.change(last)
