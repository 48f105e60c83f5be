-- SPDX-License-Identifier: MIT
-- Makes finished jobs ready again with fresh budgets, and waiting ones due now.
-- Arguments: 1 if only a tenant's jobs are known to the caller, else 0; that tenant; job ids.
-- Answer: for each "redriven", "refused", "conflict" or "unknown".
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings

-- Whether another job holds one of the keys.
local function superseded(job, unique, idempotency)
  local one = unique and holders.unique(unique)
  local other = idempotency and holders.idempotency(idempotency)
  return (one and one.id ~= job.id) or (other and other.id ~= job.id)
end

local function clear_ending(job)
  job.failures, job.snoozes, job.lone_crashes = 0, 0, 0
  job.has_result, job.result_dropped, job.dead_reason, job.dead_letter = nil, nil, nil, nil
  job.holds_line, job.cancel, job.finished, job.expires = nil, nil, nil, nil
  job.keep, job.result_keep = nil, nil
  redis.call('HDEL', keys.job(job.id), 'r', 'e')
end

local function redrive(job)
  local finished, unique, idempotency = TERMINAL[job.status], nil, nil
  if finished and job.keyed then
    unique, idempotency = holders.identities(jobs.definition(job.id), job.task)
    if superseded(job, unique, idempotency) then
      return 'conflict'
    end
  end
  index.leave(job)
  job.status, job.due, job.updated = QUEUED, clock.now, clock.now
  if job.deadline and job.deadline <= clock.now then
    job.deadline = nil
  end
  clear_ending(job)
  if finished then
    job.line = places.numbers(1)
  end
  places.take(job)
  index.enter(job)
  jobs.save(job)
  holders.take(job, unique, idempotency)
  wakes.queue(job.queue)
  return 'redriven'
end

local answers = {}
for at = 4, #ARGV do
  local job = jobs.load(ARGV[at])
  if not job or (ARGV[2] == '1' and sigs.read(job.sig).tenant ~= ARGV[3]) then
    answers[#answers + 1] = 'unknown'
  elseif job.status == PROCESSING or job.status == QUEUED then
    answers[#answers + 1] = 'refused'
  else
    answers[#answers + 1] = redrive(job)
  end
end
index.flush()
return answers
