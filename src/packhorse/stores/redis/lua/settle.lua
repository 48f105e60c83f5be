-- SPDX-License-Identifier: MIT
-- The end of an attempt or of a job: ports of `lifecycle.resolve`, `lifecycle.attempt_status`,
-- `lifecycle.cancel_lost` and `policies.retention`.
-- needs: new_jobs
local settle = {}

-- How long a queue keeps jobs that ended without a settlement; nil for ever.
function settle.lifetimes(queue)
  local retention = queues.get(queue).conf.retention
  if retention then
    return retention.finished_us, retention.dead_us, retention.results_us
  end
  return POLICY.DAY_US, nil, POLICY.DAY_US
end

-- Decide status, verdict, due time and dead reason.
local function resolve(job, settled)
  local now, status = clock.now, settled.status
  if job.cancel_requested and settled.kind ~= KIND.CANCELLED then
    return CANCELLED, VERDICT.CANCELLED, now, nil
  elseif TERMINAL[status] then
    return status, VERDICT.APPLIED, now, settled.dead_reason
  end
  local delay = settled.delay_us
  if settled.waits and tonumber(redis.call('HGET', keys.job(job.id), FIELD.delivered) or 0) > settled.waits then
    delay = 0
  end
  local due = now + delay
  if job.deadline_us and due >= job.deadline_us then
    return DEAD, VERDICT.EXPIRED, now, DEAD_REASON.EXPIRED
  elseif status == PENDING and delay == 0 then
    status = QUEUED
  end
  return status, VERDICT.APPLIED, due, nil
end

local function attempt_status(settled, status)
  if status == CANCELLED then
    return CANCELLED
  elseif settled.kind == KIND.DEAD then
    return settled.timed_out and TIMEOUT or FAILED
  end
  return ATTEMPT_STATUS[settled.kind]
end

-- Add a line of history; drop one from the middle when there are too many.
local function remember_attempt(job, settled, status, fields)
  fields[#fields + 1] = FIELD.attempt .. job.attempts
  fields[#fields + 1] = jobs.attempt_line(job, attempt_status(settled, status),
    not TERMINAL[status], settled.error)
  if job.attempts > 2 * POLICY.HISTORY_EACH_END then
    redis.call('HDEL', keys.job(job.id), FIELD.attempt .. (job.attempts - POLICY.HISTORY_EACH_END))
  end
end

-- End a job that was removed from the indexes; the caller adds it again and saves it.
local function finish(job, status, reason, keep, counted)
  local now, was = clock.now, job.status
  job.status, job.finished_us, job.parked_us, job.keep_us = status, now, nil, keep
  if status == DEAD then
    local conf = queues.get(job.queue).conf
    job.dead_reason, job.dead_letter = reason, conf.dead_letter
    job.holds_line = conf.on_dead == 'hold' or nil
  elseif status == COMPLETED and job.keyed then
    local record, result = uniqueness.keep_until(job)
    job.keep_us = job.keep_us and math.max(job.keep_us, record - now)
    job.result_keep_us = job.result_keep_us and math.max(job.result_keep_us, result - now)
  end
  local member = journal.member(job)
  if member then
    journal.ended(job, member, was, counted)
  end
  job.expires_us = jobs.first_expiry_us(job)
  if job.awaited then
    job.awaited = nil
    wakes.add('job:' .. job.id)
  end
end

-- Wake producers that wait for room in a queue, if it has a limit. Only an end makes room in bytes.
function settle.wake_room(queue, waited)
  local conf = queues.get(queue).conf
  if conf.max_bytes or (waited and conf.max_depth) then
    wakes.add('room:' .. queue)
  end
end

-- End a job that no worker holds; it is kept as long as its queue says.
function settle.finish_waiting(job, status, reason)
  local keep, dead_keep = settle.lifetimes(job.queue)
  index.leave(job)
  job.updated_us = clock.now
  finish(job, status, reason, status == DEAD and dead_keep or status ~= DEAD and keep or nil)
  index.enter(job)
  jobs.save(job)
  new_jobs.unstash(job)
  settle.wake_room(job.queue, true)
  if signatures.read(job.signature).ordering then
    wakes.queue(job.queue)
  end
end

local function wait_again(job, settled, status, due)
  job.status, job.due_us = status, due
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
  if settled.kind == KIND.RESCUED then
    job.suspect = job.suspect or settled.suspect or nil
  elseif settled.ended and settled.kind ~= KIND.RELEASED then
    job.suspect = nil
  end
end

-- The handler met a limit of another service: close the job's rate gate for a time.
local function close_gate(job, settled)
  local gate = signatures.rate_gate(job.task, job.signature)
  local before = tonumber(redis.call('HGET', tag .. KEY.closed_gates, gate) or 0) or 0
  local until_us = math.max(clock.now + settled.limit_us, before)
  redis.call('HSET', tag .. KEY.closed_gates, gate, until_us)
  redis.call('ZADD', tag .. KEY.closed_until, until_us, gate)
end

-- Let claims look again at jobs that this one held back while it ran.
local function let_others_go(job)
  if signatures.read(job.signature).ordering or queues.get(job.queue).conf.concurrency then
    wakes.queue(job.queue)
  end
  local limits = queues.task(job.task)
  if limits and limits.concurrency then
    lines.open_gate(signatures.concurrency_gate(job.task, job.signature))
    wakes.task(job.task)
  end
end

-- End a job together with its attempt.
local function end_as_settled(job, settled, status, reason, fields, result)
  if status == COMPLETED then
    if settled.has_result then
      job.has_result = true
      fields[#fields + 1] = FIELD.result
      fields[#fields + 1] = result
    end
    job.result_keep_us = settled.result_keep_us
    if job.attempts > 1 then
      redis.call('HDEL', keys.job(job.id), FIELD.error)
    end
  end
  local keep = status == DEAD and settled.dead_keep_us or status ~= DEAD and settled.keep_us or nil
  finish(job, status, reason, keep, settled.counted)
end

-- Write a settlement whose fence is current; returns its verdict.
function settle.apply(job, settled, result)
  local status, verdict, due, reason = resolve(job, settled)
  local fields = {}
  index.leave(job)
  job.updated_us = clock.now
  count(job, settled)
  if settled.ended then
    remember_attempt(job, settled, status, fields)
  end
  judge(job, settled)
  if settled.error then
    fields[#fields + 1] = FIELD.error
    fields[#fields + 1] = settled.error
  end
  if TERMINAL[status] then
    end_as_settled(job, settled, status, reason, fields, result)
  else
    wait_again(job, settled, status, due)
    if settled.waits then
      job.suspends = true
      fields[#fields + 1] = FIELD.waits
      fields[#fields + 1] = keys.number(job.fence)
    end
  end
  index.enter(job)
  jobs.save(job, unpack(fields))
  if TERMINAL[status] then
    new_jobs.unstash(job)
    settle.wake_room(job.queue, false)
  end
  if settled.kind == KIND.LIMITED then
    close_gate(job, settled)
  end
  let_others_go(job)
  return verdict
end

-- Release a job whose worker leaves, or does not know that it holds it.
function settle.release(job)
  local keep, dead_keep = settle.lifetimes(job.queue)
  return settle.apply(job, {
    kind = KIND.RELEASED, status = QUEUED, delay_us = 0, keep_place = true, ended = false,
    failures = 0, crashes = 0, lone_crashes = 0, snoozes = 0, releases = 1, keep_us = keep,
    dead_keep_us = dead_keep,
  })
end

-- Whether a running job may be taken from its owner.
function settle.is_lost(job)
  local expires = redis.call('ZSCORE', tag .. KEY.leases, job.worker or '')
  return not expires or tonumber(expires) <= clock.now or job.hold_until_us <= clock.now
end

-- Cancel a running job that its owner has lost. A port of `lifecycle.cancel_lost`.
function settle.cancel_lost(job)
  local lost = cjson.encode({
    type = 'WorkerLost', message = 'worker ' .. job.worker .. ' went away while it held the job',
    code = 'WORKER_LOST', reason = 'worker_lost',
  })
  return settle.apply(job, {
    kind = KIND.RESCUED, status = CANCELLED, delay_us = 0, ended = true, failures = 0, crashes = 1,
    lone_crashes = job.alone and 1 or 0, snoozes = 0, releases = 0, error = lost,
    keep_us = settle.lifetimes(job.queue),
  })
end

-- Remove a finished job with its history, and open the line that it held.
function settle.forget(job)
  index.leave(job)
  index.weigh(job, true)
  if job.holds_line then
    index.forget_order(job)
    wakes.queue(job.queue)
  end
  uniqueness.forget(job)
  pending.drop(tag .. KEY.all, job.id)
  redis.call('UNLINK', keys.job(job.id))
end

-- script: settle
-- Writes settlements whose fences are current.
-- Arguments: for each settlement: job id, fence, result text, and the rest as `SettlementParts`.
-- Answer: for each its code in VERDICT.
-- needs: settle
local PARTS = 4
local settlements = {}

local function settle_one(id, fence, result, text)
  local job = jobs.load(id)
  if not job then
    return VERDICT.STALE
  end
  settlements[text] = settlements[text] or unpack_settlement(text)
  local settled = settlements[text]
  if job.keyed then
    local counted = {unpack(cmsgpack.unpack(text), 21, 22)}
    settled.counted = counted[1] and counted
  end
  if job.settled_fence == fence and job.settled_kind == settled.kind then
    return VERDICT.APPLIED
  elseif job.status ~= PROCESSING or job.fence ~= fence then
    return VERDICT.STALE
  elseif settled.kind ~= KIND.RESCUED then
    job.settled_fence, job.settled_kind = fence, settled.kind
  elseif not settle.is_lost(job) then
    return VERDICT.STALE
  end
  return settle.apply(job, settled, result)
end

local verdicts = {}
for at = 2, #ARGV, PARTS do
  verdicts[#verdicts + 1] = settle_one(ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3])
end
index.flush()
return verdicts
