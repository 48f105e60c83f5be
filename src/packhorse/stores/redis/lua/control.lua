-- SPDX-License-Identifier: MIT
-- Single jobs changed on request: progress, cancel, redrive, delete, await.

-- script: note_progress
-- Keeps the newest progress of jobs whose fences are current.
-- Arguments: for each note: job id, fence, progress as JSON text. Answer: for each 1, or 0: stale.
-- needs: jobs
local verdicts = {}
for at = 2, #ARGV, 3 do
  local job = jobs.load(ARGV[at])
  local current = job and job.status == PROCESSING and job.fence == tonumber(ARGV[at + 1])
  if current then
    job.updated_us = clock.now
    jobs.save(job, FIELD.progress, ARGV[at + 2])
  end
  verdicts[#verdicts + 1] = current and 1 or 0
end
return verdicts

-- script: cancel
-- Finishes a waiting or lost job as cancelled, or flags a running one and wakes its worker.
-- Arguments: job id; 1 if only a tenant's jobs are known to the caller, else 0; that tenant.
-- Answer: "cancelled", "flagged", "finished" or "unknown".
-- needs: settle
local job = jobs.seen(ARGV[2], ARGV[3], ARGV[4])
if not job then
  return 'unknown'
elseif TERMINAL[job.status] then
  return 'finished'
end
local answer = 'cancelled'
if job.status == PROCESSING and settle.is_lost(job) then
  settle.cancel_lost(job)
elseif job.status == PROCESSING then
  answer = 'flagged'
  if not job.cancel_requested then
    job.cancel_requested, job.updated_us = true, clock.now
    jobs.save(job)
  end
  wakes.add('cancel:' .. job.worker)
else
  settle.finish_waiting(job, CANCELLED)
end
index.flush()
return answer

-- script: redrive
-- Makes finished jobs ready again with fresh budgets, and waiting ones due now.
-- Arguments: 1 if only a tenant's jobs are known to the caller, else 0; that tenant; how many names of
-- what is attached to forget, and these; job ids. Answer: for each "redriven", "refused", "conflict" or "unknown".
-- needs: settle attachments
local FIRST = 5 + tonumber(ARGV[4])

-- Whether another job holds one of the keys.
local function superseded(job, unique, idempotency)
  local one = unique and uniqueness.unique(unique)
  local other = idempotency and uniqueness.idempotency(idempotency)
  return (one and one.id ~= job.id) or (other and other.id ~= job.id)
end

local function clear_ending(job)
  job.failures, job.snoozes, job.lone_crashes = 0, 0, 0
  job.has_result, job.result_dropped, job.dead_reason, job.dead_letter = nil, nil, nil, nil
  job.holds_line, job.cancel_requested, job.finished_us, job.expires_us = nil, nil, nil, nil
  job.keep_us, job.result_keep_us = nil, nil
  redis.call('HDEL', keys.job(job.id), FIELD.result, FIELD.error)
end

local function redrive(job)
  local finished, unique, idempotency = TERMINAL[job.status], nil, nil
  if finished and job.keyed then
    unique, idempotency = uniqueness.identities(jobs.definition(job.id), job.task)
    if superseded(job, unique, idempotency) then
      return 'conflict'
    end
  end
  if job.status == COMPLETED then
    attachments.forget(job.id)
  elseif finished then
    for at = 5, FIRST - 1 do
      attachments.drop(job.id, ARGV[at])
    end
  end
  local member, was = finished and journal.member(job), job.status
  index.leave(job)
  job.status, job.due_us, job.updated_us = QUEUED, clock.now, clock.now
  if job.deadline_us and job.deadline_us <= clock.now then
    job.deadline_us = nil
  end
  clear_ending(job)
  if finished then
    job.line_number = places.numbers(1)
  end
  places.take(job)
  index.enter(job)
  jobs.save(job)
  uniqueness.take(job, unique, idempotency)
  if member then
    journal.resumed(job, member, was)
  end
  wakes.queue(job.queue)
  return 'redriven'
end

local answers = {}
for at = FIRST, #ARGV do
  local job = jobs.seen(ARGV[at], ARGV[2], ARGV[3])
  if not job then
    answers[#answers + 1] = 'unknown'
  elseif job.status == PROCESSING or job.status == QUEUED or journal.ran_once(job) then
    answers[#answers + 1] = 'refused'
  else
    answers[#answers + 1] = redrive(job)
  end
end
index.flush()
return answers

-- script: delete
-- Removes finished jobs that a filter means, the oldest first, some of those there are at a time.
-- Arguments: limit, the sequence after which to look, the filter as JSON text, how many to look at.
-- Answer: how many were removed, and the sequence to go on after, or nothing.
-- needs: inspection settle
local limit, after, chosen, most = tonumber(ARGV[2]), ARGV[3], filters.read(ARGV[4]), tonumber(ARGV[5])
local set = chosen.only_dead and KEY.dead or KEY.all
local found = redis.call('ZRANGEBYSCORE', tag .. set, '(' .. after, '+inf', 'WITHSCORES',
  'LIMIT', 0, most)
local removed, last = 0, #found == 2 * most and found[#found] or false
for at = 1, #found, 2 do
  if removed == limit then
    last = found[at - 1] -- of the one before
    break
  end
  local job = jobs.load(found[at])
  if TERMINAL[job.status] and filters.fits(chosen, job) and journal.group_until(job) ~= math.huge then
    settle.forget(job)
    removed = removed + 1
  end
end
index.flush()
return {removed, last}

-- script: await_finish
-- Marks a job as awaited, then reads it.
-- Arguments: job id. Answer: the store's clock, then the fields of `rows.RECORD_FIELDS`; or nothing.
-- needs: jobs
local job = jobs.load(ARGV[2])
if not job then
  return false
end
-- Interest in a job that has finished would never be answered, and never be forgotten.
local awaited = not TERMINAL[job.status] or nil
if awaited ~= job.awaited then
  job.awaited = awaited
  jobs.save(job)
end
return {clock.now, redis.call('HMGET', keys.job(ARGV[2]), FIELD.state, FIELD.definition, FIELD.payload, FIELD.result, FIELD.error, FIELD.progress, FIELD.own)}
