-- SPDX-License-Identifier: MIT
-- New jobs, stored or stashed. A new job is a list as Python sends it: see NEW for the positions.
-- needs: places uniqueness journal
local new_jobs = {}

-- When a new job is due: `+` is a delay from now, `=` an instant. `!` is the error of a refused job.
function new_jobs.due(new)
  local value = tonumber(string.sub(new[NEW.due], 2))
  return string.sub(new[NEW.due], 1, 1) == '+' and clock.now + value or value
end

-- A new job's rules, {tenant, unique, idempotency, whether it is a member of a group}; nil for most.
function new_jobs.rules(new)
  if new[NEW.rules] ~= '' then
    local rules = cmsgpack.unpack(new[NEW.rules])
    local named = {unique = rules[2], idempotency = rules[3], member = rules[4]}
    named.unique_id = rules[2] and uniqueness.identity(rules[1], new[NEW.task], rules[2].key)
    named.idempotency_id = rules[3] and uniqueness.identity(rules[1], new[NEW.task], rules[3].key)
    return named
  end
end

-- Store a new job; unless `ready`, it takes no place even if due.
function new_jobs.enter(new, sequence, place, ready)
  local now, due = clock.now, new_jobs.due(new)
  local status = (due > now or not ready) and PENDING or QUEUED
  local priority = tonumber(new[NEW.priority])
  local job = {
    id = new[NEW.id], status = status, queue = new[NEW.queue], task = new[NEW.task], priority = priority,
    sequence = sequence, fence = 0, created_us = now, updated_us = now, due_us = due, ready_us = 0,
    rank = priority, pass_number = 0, line_number = sequence, signature = new[NEW.signature],
    attempts = 0, failures = 0, crashes = 0, lone_crashes = 0, snoozes = 0, releases = 0,
    hold_until_us = 0, timeout_us = tonumber(new[NEW.timeout_us]),
    deadline_us = tonumber(new[NEW.deadline_us]), keyed = new[NEW.rules] ~= '' or nil,
  }
  if job.signature ~= '' and signatures.read(job.signature).tenant ~= '' then
    places.begin_to_deal(job.queue)
  end
  if status == QUEUED then
    places.take(job, place)
  end
  jobs.save(job, FIELD.definition, new[NEW.definition], FIELD.payload, new[NEW.payload])
  pending.put(tag .. KEY.all, sequence, job.id)
  index.enter(job)
  local rules = new_jobs.rules(new)
  if rules then
    uniqueness.take(job, rules.unique_id, rules.idempotency_id)
  end
  if rules and rules.member then
    journal.begin(POLICY.SCHEMA_OF_GROUPS)
  end
  wakes.queue(job.queue)
  return job
end

-- Submit the job that was stashed until the holder of its key ended. It was admitted when it came, so
-- neither depth nor a closed queue refuses it now.
function new_jobs.unstash(ended)
  local unique = ended.keyed and uniqueness.identities(jobs.definition(ended.id), ended.task)
  if not unique or redis.call('HGET', tag .. KEY.unique, unique) ~= ended.id then
    return
  end
  local text = redis.call('HGET', tag .. KEY.stash, unique)
  if not text then
    return
  end
  redis.call('HDEL', tag .. KEY.stash, unique)
  local new = cmsgpack.unpack(text)
  if redis.call('EXISTS', keys.job(new[NEW.id])) == 1 then
    return
  end
  local rules = new_jobs.rules(new)
  if not (rules.idempotency_id and uniqueness.idempotency(rules.idempotency_id)) then
    local sequence = places.numbers(1)
    new_jobs.enter(new, sequence, sequence, true)
  end
end
