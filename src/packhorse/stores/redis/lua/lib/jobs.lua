-- SPDX-License-Identifier: MIT
-- A job's state, packed in two fields of its hash; see `rows.State` and `rows.Own` for the order.
-- `s` has what jobs that go the same way at the same time share, so that the short ways can work
-- out once what becomes of all of them; `b` has what is each job's own.
local jobs = {}
jobs.HEADER, jobs.HEADER_BYTES = '\220\000\030', 3 -- an array of 30 parts, in MessagePack
local PARTS, OWN_PARTS, OWN_HEADER, OWN_HEADER_BYTES = 30, 13, '\157', 1

local function named(_,
    status, fence, updated, worker, started, hold, alone, timeout, deadline, cancel, awaited,
    attempts, suspect, settled_fence, settled_kind, finished, keep, result_keep, expires,
    has_result, queue, task, sig, keyed, priority, ready, failures, crashes, lone_crashes, snoozes)
  return {
    status = status, fence = fence, updated = updated, worker = worker, started = started,
    hold = hold, alone = alone, timeout = timeout, deadline = deadline, cancel = cancel,
    awaited = awaited, attempts = attempts, suspect = suspect, settled_fence = settled_fence,
    settled_kind = settled_kind, finished = finished, keep = keep, result_keep = result_keep,
    expires = expires, has_result = has_result, queue = queue, task = task, sig = sig,
    keyed = keyed, priority = priority, ready = ready, failures = failures, crashes = crashes,
    lone_crashes = lone_crashes, snoozes = snoozes,
  }
end

local function add_own(job, _,
    seq, created, due, place, rank, pass, line, releases, parked, dead_reason, dead_letter,
    result_dropped, holds_line)
  job.seq, job.created, job.due, job.place, job.rank, job.pass, job.line, job.releases,
    job.parked, job.dead_reason, job.dead_letter, job.result_dropped, job.holds_line =
    seq, created, due, place, rank, pass, line, releases, parked, dead_reason, dead_letter,
    result_dropped, holds_line
end

-- The state from its two texts.
function jobs.read(id, text, own)
  local job = named(cmsgpack.unpack_limit(text, PARTS, jobs.HEADER_BYTES))
  add_own(job, cmsgpack.unpack_limit(own, OWN_PARTS, OWN_HEADER_BYTES))
  job.id = id
  return job
end

-- The job of an id, or nil.
function jobs.load(id)
  local texts = redis.call('HMGET', tag .. ':j:' .. id, 's', 'b')
  if texts[1] then
    return jobs.read(id, texts[1], texts[2])
  end
end

-- The first text of the state.
function jobs.pack(j)
  return jobs.HEADER .. cmsgpack.pack(
    j.status, j.fence, j.updated, j.worker, j.started, j.hold, j.alone, j.timeout, j.deadline,
    j.cancel, j.awaited, j.attempts, j.suspect, j.settled_fence, j.settled_kind, j.finished,
    j.keep, j.result_keep, j.expires, j.has_result, j.queue, j.task, j.sig, j.keyed, j.priority,
    j.ready, j.failures, j.crashes, j.lone_crashes, j.snoozes)
end

-- The second text of the state.
function jobs.pack_own(j)
  return OWN_HEADER .. cmsgpack.pack(
    j.seq, j.created, j.due, j.place, j.rank, j.pass, j.line, j.releases, j.parked, j.dead_reason,
    j.dead_letter, j.result_dropped, j.holds_line)
end

-- Write the state, and other fields beside it: name, value, ...
function jobs.save(job, ...)
  redis.call('HSET', tag .. ':j:' .. job.id, 's', jobs.pack(job), 'b', jobs.pack_own(job), ...)
end

-- What the producer decided: the parts of `rows.Definition`, by position.
function jobs.definition(id)
  local text = redis.call('HGET', tag .. ':j:' .. id, 'd')
  return text and cmsgpack.unpack(text)
end
