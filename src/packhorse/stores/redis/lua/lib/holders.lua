-- SPDX-License-Identifier: MIT
-- Who holds a key: a port of `policies.uniqueness`. Rules are the maps of a job's definition.
local holders = {}
local UNIQUE, IDEMPOTENCY, TENANT = 15, 16, 4 -- parts of a definition

-- What a key belongs to.
function holders.identity(tenant, task, key)
  return keys.len(tenant) .. keys.len(task) .. key
end

function holders.holds_unique(rule, status, created)
  if rule.scope == 'until_started' then
    return WAITING[status] or false
  elseif rule.scope == 'window' then
    return status ~= CANCELLED and status ~= DEAD and clock.now < created + (rule.window_us or 0)
  end
  return not TERMINAL[status]
end

function holders.holds_idempotency(rule, status, created)
  if status == COMPLETED then
    return clock.now < created + rule.window_us
  end
  return not TERMINAL[status]
end

-- The job that holds a unique key by its own rule.
function holders.unique(identity)
  local id = redis.call('HGET', tag .. ':uniq', identity)
  local job = id and jobs.load(id)
  local rule = job and jobs.definition(id)[UNIQUE]
  if rule and holders.holds_unique(rule, job.status, job.created) then
    return job
  end
end

-- The job that holds an idempotency key by its own rule, and that rule.
function holders.idempotency(identity)
  local id = redis.call('HGET', tag .. ':idem', identity)
  local job = id and jobs.load(id)
  local rule = job and jobs.definition(id)[IDEMPOTENCY]
  if rule and holders.holds_idempotency(rule, job.status, job.created) then
    return job, rule
  end
end

-- The two identities of a job, from its definition; nil where it has no such key.
function holders.identities(definition, task)
  local unique, idempotency = definition[UNIQUE], definition[IDEMPOTENCY]
  local tenant = definition[TENANT]
  return unique and holders.identity(tenant, task, unique.key),
    idempotency and holders.identity(tenant, task, idempotency.key)
end

-- Become the holder of one's keys; whoever waited behind the last holder is outdated.
function holders.take(job, unique, idempotency)
  if unique then
    redis.call('HSET', tag .. ':uniq', unique, job.id)
    redis.call('HDEL', tag .. ':stash', unique)
  end
  if idempotency then
    redis.call('HSET', tag .. ':idem', idempotency, job.id)
  end
end

-- Give up the keys of a job that is removed.
function holders.forget(job)
  if not job.keyed then
    return
  end
  local unique, idempotency = holders.identities(jobs.definition(job.id), job.task)
  if unique and redis.call('HGET', tag .. ':uniq', unique) == job.id then
    redis.call('HDEL', tag .. ':uniq', unique)
  end
  if idempotency and redis.call('HGET', tag .. ':idem', idempotency) == job.id then
    redis.call('HDEL', tag .. ':idem', idempotency)
  end
end

-- Until when the record and the result of a completed job must be kept for its keys.
function holders.keep_until(job)
  local definition = jobs.definition(job.id)
  local unique, idempotency = definition[UNIQUE], definition[IDEMPOTENCY]
  local result = job.created + (idempotency and idempotency.window_us or 0)
  local record = result
  if unique and unique.scope == 'window' then
    record = math.max(record, job.created + (unique.window_us or 0))
  end
  return record, result
end
