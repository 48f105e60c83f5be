-- SPDX-License-Identifier: MIT
-- What a job goes through besides being claimed: waiting again, ending, being given back.
-- Ports of `lifecycle.resolve`, `lifecycle.attempt_status` and `policies.retention`.
local endings = {}
local HISTORY_KEPT = 25
local DAY_US = 86400000000
-- Kinds of settlements, as in `settlement.SettlementKind`.
local RELEASED, DEAD_KIND, RESCUED, LIMITED, CANCELLED_KIND = 6, 7, 8, 9, 5
local ATTEMPT_STATUS = {COMPLETED, FAILED, TIMEOUT, PENDING, CANCELLED, QUEUED, FAILED, FAILED, QUEUED}
-- Verdicts, in the order in which `settling.py` reads them.
local APPLIED, CANCELLED_VERDICT, EXPIRED, STALE = 0, 1, 2, 3
endings.APPLIED, endings.STALE = APPLIED, STALE

-- How long a queue keeps what ended without a settlement; nil for ever.
function endings.lifetimes(queue)
  local retention = queues.get(queue).conf.retention
  if retention then
    return retention.finished_us, retention.dead_us
  end
  return DAY_US, nil
end

-- The rules that run inside the store: status, verdict, due, dead reason.
local function resolve(job, settled)
  local now, status = clock.now, settled.status
  if job.cancel and settled.kind ~= CANCELLED_KIND then
    return CANCELLED, CANCELLED_VERDICT, now, nil
  elseif TERMINAL[status] then
    return status, APPLIED, now, settled.dead_reason
  end
  local due = now + settled.delay
  if job.deadline and due >= job.deadline then
    return DEAD, EXPIRED, now, 'expired'
  elseif status == PENDING and settled.delay == 0 then
    status = QUEUED
  end
  return status, APPLIED, due, nil
end

local function attempt_status(settled, status)
  if status == CANCELLED then
    return CANCELLED
  elseif settled.kind == DEAD_KIND then
    return settled.timed_out and TIMEOUT or FAILED
  end
  return ATTEMPT_STATUS[settled.kind]
end

-- A line of history beside the state; the first and the last are kept, so one in between goes.
local function remember_attempt(job, settled, status, fields)
  fields[#fields + 1] = 'a' .. job.attempts
  fields[#fields + 1] = '\151' .. cmsgpack.pack(job.attempts, attempt_status(settled, status),
    job.started or 0, clock.now, job.worker or '', not TERMINAL[status], settled.error)
  if job.attempts > 2 * HISTORY_KEPT then
    redis.call('HDEL', keys.job(job.id), 'a' .. (job.attempts - HISTORY_KEPT))
  end
end

local function first_expiry(job)
  local ends = job.keep and job.finished + job.keep
  if job.has_result and job.result_keep then
    ends = math.min(ends or math.huge, job.finished + job.result_keep)
  end
  return ends
end

-- End a job, which is in no index now; the caller puts it back and saves it.
local function finish(job, status, reason, keep)
  local now = clock.now
  job.status, job.finished, job.parked, job.keep = status, now, nil, keep
  if status == DEAD then
    local conf = queues.get(job.queue).conf
    job.dead_reason, job.dead_letter = reason, conf.dead_letter
    job.holds_line = conf.on_dead == 'hold' or nil
  elseif status == COMPLETED and job.keyed then
    local record, result = holders.keep_until(job)
    job.keep = job.keep and math.max(job.keep, record - now)
    job.result_keep = job.result_keep and math.max(job.result_keep, result - now)
  end
  job.expires = first_expiry(job)
  if job.awaited then
    job.awaited = nil
    wakes.add('job:' .. job.id)
  end
end

-- Wake whoever waits for room in a queue, if that has a limit.
function endings.wake_room(queue)
  if queues.get(queue).conf.max_depth then
    wakes.add('room:' .. queue)
  end
end

-- End a job that nobody holds; it is kept as long as its queue says.
function endings.finish_waiting(job, status, reason)
  local keep, dead_keep = endings.lifetimes(job.queue)
  index.leave(job)
  job.updated = clock.now
  finish(job, status, reason, status == DEAD and dead_keep or status ~= DEAD and keep or nil)
  index.enter(job)
  jobs.save(job)
  entering.unstash(job)
  endings.wake_room(job.queue)
  if sigs.read(job.sig).ordering then
    wakes.queue(job.queue)
  end
end

local function wait_again(job, settled, status, due)
  job.status, job.due = status, due
  if not settled.keep_place then
    job.place = nil
  end
  if status == QUEUED and not job.place then
    places.take(job)
  end
  wakes.queue(job.queue)
end

local function count(job, settled)
  job.attempts = job.attempts + (settled.ended and 1 or 0)
  job.failures = job.failures + settled.failures
  job.crashes = job.crashes + settled.crashes
  job.lone_crashes = job.lone_crashes + settled.lone_crashes
  job.snoozes = job.snoozes + settled.snoozes
  job.releases = job.releases + settled.releases
end

local function judge(job, settled)
  if settled.kind == RESCUED then
    job.suspect = job.suspect or settled.suspect or nil
  elseif settled.ended and settled.kind ~= RELEASED then
    job.suspect = nil
  end
end

-- A limit that somebody else has was met: close the job's rate gate for a time.
local function close_gate(job, settled)
  local gate = sigs.rate_gate(job.task, job.sig)
  local before = tonumber(redis.call('HGET', tag .. ':shut', gate) or 0) or 0
  local until_us = math.max(clock.now + settled.limit, before)
  redis.call('HSET', tag .. ':shut', gate, until_us)
  redis.call('ZADD', tag .. ':shuts', until_us, gate)
end

-- What a job that ran until now may have held back is looked at again.
local function let_others_go(job)
  if sigs.read(job.sig).ordering or queues.get(job.queue).conf.concurrency then
    wakes.queue(job.queue)
  end
  local limits = queues.task(job.task)
  if limits and limits.concurrency then
    lines.open_gate(sigs.concurrency_gate(job.task, job.sig))
    wakes.task(job.task)
  end
end

-- The end of an attempt that is the end of its job.
local function end_as_settled(job, settled, status, reason, fields, result)
  if status == COMPLETED then
    if settled.has_result then
      job.has_result = true
      fields[#fields + 1] = 'r'
      fields[#fields + 1] = result
    end
    job.result_keep = settled.result_keep
    if job.attempts > 1 then
      redis.call('HDEL', keys.job(job.id), 'e')
    end
  end
  finish(job, status, reason, status == DEAD and settled.dead_keep or status ~= DEAD and settled.keep or nil)
end

-- Write a settlement that has been found to count; answers with its verdict.
function endings.apply(job, settled, result)
  local status, verdict, due, reason = resolve(job, settled)
  local fields = {}
  index.leave(job)
  job.updated = clock.now
  count(job, settled)
  if settled.ended then
    remember_attempt(job, settled, status, fields)
  end
  judge(job, settled)
  if settled.error then
    fields[#fields + 1] = 'e'
    fields[#fields + 1] = settled.error
  end
  if TERMINAL[status] then
    end_as_settled(job, settled, status, reason, fields, result)
  else
    wait_again(job, settled, status, due)
  end
  index.enter(job)
  jobs.save(job, unpack(fields))
  if TERMINAL[status] then
    entering.unstash(job)
  end
  if settled.kind == LIMITED then
    close_gate(job, settled)
  end
  let_others_go(job)
  return verdict
end

-- Give back a job whose worker does not know of it, or leaves.
function endings.release(job)
  local keep, dead_keep = endings.lifetimes(job.queue)
  return endings.apply(job, {
    kind = RELEASED, status = QUEUED, delay = 0, keep_place = true, ended = false, failures = 0,
    crashes = 0, lone_crashes = 0, snoozes = 0, releases = 1, keep = keep, dead_keep = dead_keep,
  })
end

-- Remove a finished job, with its history; a line it held goes on.
function endings.forget(job)
  index.leave(job)
  if job.holds_line then
    index.forget_order(job)
    wakes.queue(job.queue)
  end
  holders.forget(job)
  pending.drop(tag .. ':all', job.id)
  redis.call('UNLINK', keys.job(job.id))
end
