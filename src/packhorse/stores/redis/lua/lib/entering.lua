-- SPDX-License-Identifier: MIT
-- How a job comes in. A new job is a list as `jobs.py` sends it, and as it is stashed:
-- id, definition, payload, queue, task, priority, signature, due, deadline, timeout, rules.
local entering = {}
local NEW = {
  ID = 1, DEFINITION = 2, PAYLOAD = 3, QUEUE = 4, TASK = 5, PRIORITY = 6, SIGNATURE = 7, DUE = 8,
  DEADLINE = 9, TIMEOUT = 10, RULES = 11,
}
entering.PARTS = 11

-- When a new job is due: `+` is a delay from now, `=` an instant.
function entering.due(new)
  local value = tonumber(string.sub(new[NEW.DUE], 2))
  return string.sub(new[NEW.DUE], 1, 1) == '+' and clock.now + value or value
end

-- A new job's rules, {tenant, unique, idempotency}; nil for most.
function entering.rules(new)
  if new[NEW.RULES] ~= '' then
    local rules = cmsgpack.unpack(new[NEW.RULES])
    local named = {unique = rules[2], idempotency = rules[3]}
    named.unique_id = rules[2] and holders.identity(rules[1], new[NEW.TASK], rules[2].key)
    named.idempotency_id = rules[3] and holders.identity(rules[1], new[NEW.TASK], rules[3].key)
    return named
  end
end

-- Keep a new job; unless `ready`, it takes no place even if due.
function entering.enter(new, seq, place, ready)
  local now, due = clock.now, entering.due(new)
  local status = (due > now or not ready) and PENDING or QUEUED
  local priority = tonumber(new[NEW.PRIORITY])
  local job = {
    id = new[NEW.ID], status = status, queue = new[NEW.QUEUE], task = new[NEW.TASK], priority = priority,
    seq = seq, fence = 0, created = now, updated = now, due = due, ready = 0, rank = priority,
    pass = 0, line = seq, sig = new[NEW.SIGNATURE], attempts = 0, failures = 0, crashes = 0,
    lone_crashes = 0, snoozes = 0, releases = 0, hold = 0, timeout = tonumber(new[NEW.TIMEOUT]),
    deadline = tonumber(new[NEW.DEADLINE]), keyed = new[NEW.RULES] ~= '' or nil,
  }
  if job.sig ~= '' and sigs.read(job.sig).tenant ~= '' then
    places.begin_to_deal(job.queue)
  end
  if status == QUEUED then
    places.take(job, place)
  end
  jobs.save(job, 'd', new[NEW.DEFINITION], 'p', new[NEW.PAYLOAD])
  pending.put(tag .. ':all', seq, job.id)
  index.enter(job)
  local rules = entering.rules(new)
  if rules then
    holders.take(job, rules.unique_id, rules.idempotency_id)
  end
  wakes.queue(job.queue)
  return job
end

-- Submit the job that waited until the holder of its key ended. It was let in when it came, so
-- neither depth nor a closed queue keeps it out now; one that came in otherwise is there already.
function entering.unstash(ended)
  local unique = ended.keyed and holders.identities(jobs.definition(ended.id), ended.task)
  if not unique or redis.call('HGET', tag .. ':uniq', unique) ~= ended.id then
    return
  end
  local text = redis.call('HGET', tag .. ':stash', unique)
  if not text then
    return
  end
  redis.call('HDEL', tag .. ':stash', unique)
  local new = cmsgpack.unpack(text)
  if redis.call('EXISTS', keys.job(new[NEW.ID])) == 1 then
    return
  end
  local rules = entering.rules(new)
  if not (rules.idempotency_id and holders.idempotency(rules.idempotency_id)) then
    local seq = places.numbers(1)
    entering.enter(new, seq, seq, true)
  end
end
