# SPDX-License-Identifier: MIT
"""Routes about batches and workflows."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from packhorse.batches.handle import Batch
from packhorse.client.documents import document_of
from packhorse.core.batches import BatchDocument
from packhorse.core.clock import optional_datetime
from packhorse.core.job import PAGE_MAX
from packhorse.core.job_info import shown
from packhorse.core.redaction import redacted
from packhorse.web.calls import ApiAnswer, ApiCall, answers
from packhorse.web.problems import WebRefusal
from packhorse.workflows.handle import Workflow
from packhorse.workflows.info import NodeInfo, WorkflowInfo

#: Steps of a cancel that one request takes; the next request continues.
_CANCEL_STEPS: Final = 20


class BatchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a batch is."""

    id: str
    task: str
    tenant: str
    status: str
    total: int  #: items known so far
    processed: int
    succeeded: int
    failed: int
    percentage: float
    jobs: int
    created_at: datetime
    completed_at: datetime | None = None
    #: by `on_success`, ...: `waiting`, `submitted`, or the status of its job
    callbacks: dict[str, str] = {}


class GroupsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which page to list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = 50
    after: Annotated[str, msgspec.Meta(min_length=1, max_length=2_000)] | None = None


class FailuresQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to continue."""

    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class WorkflowQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tenant of the workflow: each tenant has its own names."""

    tenant: str | None = None


# ---------------------------------------------------------------------------------------- batches


def batch_document(batch: BatchDocument) -> dict[str, Any]:
    """Describe the progress of a batch."""
    info = shown(
        BatchInfo,
        *(batch, batch.job),
        total=batch.items,
        jobs=batch.members,
        completed_at=optional_datetime(batch.finished_us),
        callbacks=batch.callback_states,
    )
    return document_of(info)


@answers("BatchPage", "List batches")
async def list_batches(call: ApiCall, query: GroupsQuery) -> ApiAnswer:
    """List a page of batches, by tenant and id."""
    page = await call.view.batches.apage(limit=query.limit, after=query.after)
    found = [batch_document(batch) for batch in page.batches]
    return ApiAnswer(body={"batches": found, "after": page.after})


@answers("Batch", "Show how far a batch is")
async def read_batch(call: ApiCall) -> ApiAnswer:
    """Show the progress of one batch."""
    return ApiAnswer(body=batch_document(await (await _batch(call)).adocument()))


@answers("BatchFailurePage", "List items of a batch that failed")
async def batch_failures(call: ApiCall, query: FailuresQuery) -> ApiAnswer:
    """List items that failed for good, from a hundred jobs at a time; secrets are masked."""
    page = await (await _batch(call)).afailure_page(query.after)
    redact = call.app.bus.redact
    shown = [{**document_of(one), "item": redacted(redact, one.item)} for one in page.failures]
    return ApiAnswer(body={"failures": shown, "after": page.after})


@answers("CancelledBatch", "End a batch")
async def cancel_batch(call: ApiCall) -> ApiAnswer:
    """End a batch. If `done` is false nothing more starts, and another request must go on."""
    batch = await _batch(call)
    before = batch_document(await batch.adocument())
    if before["completedAt"] is not None:
        raise WebRefusal(409, "BATCH_CONFLICT", f"batch {batch.id!r} had ended already")
    done, steps = False, 0
    async for step in batch.acancelling():
        steps, done = steps + 1, step.is_done
        if steps >= _CANCEL_STEPS:
            break
    return await _acted(batch, before, done=done)


@answers("RetriedBatch", "Run the items again that failed")
async def retry_batch(call: ApiCall) -> ApiAnswer:
    """Run the items that failed once more, and no others."""
    batch = await _batch(call)
    before = batch_document(await batch.adocument())
    return await _acted(batch, before, retried=await batch.aretry_failed())


async def _batch(call: ApiCall) -> Batch[Any]:
    return await call.view.batches.aget(call.path["id"])


async def _acted(batch: Batch[Any], before: dict[str, Any], **more: Any) -> ApiAnswer:
    body = {**batch_document(await batch.adocument()), **more}
    after = {"status": body["status"], **more}
    return ApiAnswer(body=body, before={"status": before["status"]}, after=after)


# -------------------------------------------------------------------------------------- workflows


def workflow_document(workflow: WorkflowInfo) -> dict[str, Any]:
    """Describe a workflow by its counts."""
    return {"id": workflow.id, **document_of(workflow)}


def node_document(node: NodeInfo) -> dict[str, Any]:
    """Describe a node."""
    document = document_of(node)
    job_id = node.same_as or node.job_id
    return {**document, "jobId": job_id if document.pop("hasJob") else None}


@answers("WorkflowPage", "List workflows")
async def list_workflows(call: ApiCall, query: GroupsQuery) -> ApiAnswer:
    """List a page of workflows, by tenant and name."""
    page = await call.view.workflows.apage(limit=query.limit, after=query.after)
    shown = [workflow_document(one) for one in page.workflows]
    return ApiAnswer(body={"workflows": shown, "after": page.after})


@answers("WholeWorkflow", "Show a workflow and its nodes")
async def read_workflow(call: ApiCall, query: WorkflowQuery) -> ApiAnswer:
    """Show the newest run of a name, or a run by its id, with its nodes and their jobs."""
    workflow = await _workflow(call, query)
    document = workflow_document(await workflow.ainfo())
    nodes = [node_document(node) for node in await workflow.anodes()]
    return ApiAnswer(body={"workflow": document, "nodes": nodes})


@answers("Workflow", "Cancel a workflow")
async def cancel_workflow(call: ApiCall, query: WorkflowQuery) -> ApiAnswer:
    """Cancel its jobs and what waits behind them; one that had ended is a conflict."""
    workflow = await _workflow(call, query)
    before = await workflow.ainfo()
    if not await workflow.acancel():
        raise WebRefusal(409, "WORKFLOW_CONFLICT", f"workflow {workflow.id!r} had ended already")
    return await _moved(workflow, before)


@answers("RetriedWorkflow", "Try again what failed in a workflow")
async def retry_workflow(call: ApiCall, query: WorkflowQuery) -> ApiAnswer:
    """Try again what is dead or cancelled in it, and what waits behind that."""
    workflow = await _workflow(call, query)
    before = await workflow.ainfo()
    return await _moved(workflow, before, retried=await workflow.aretry())


async def _workflow(call: ApiCall, query: WorkflowQuery) -> Workflow:
    call.tenant(query.tenant)  # refuses another one
    return await call.view.workflows.aget(call.path["id"], tenant=query.tenant or "")


async def _moved(workflow: Workflow, before: WorkflowInfo, **more: Any) -> ApiAnswer:
    after = workflow_document(await workflow.ainfo())
    return ApiAnswer(
        body={**after, **more},
        before={"state": before.state},
        after={"state": after["state"], **more},
    )
