-- SPDX-License-Identifier: MIT
-- Holders of keys, and ids that are taken: a port of `policies.uniqueness`. Rules are the maps of a
-- job's definition.
-- needs: jobs
local uniqueness = {}

-- What a key belongs to.
function uniqueness.identity(tenant, task, key)
  return keys.len(tenant) .. keys.len(task) .. key
end

function uniqueness.holds_unique_key(rule, status, created)
  if rule.scope == 'until_started' then
    return WAITING[status] or false
  elseif rule.scope == 'window' then
    return status ~= CANCELLED and status ~= DEAD and clock.now < created + (rule.window_us or 0)
  end
  return not TERMINAL[status]
end

function uniqueness.holds_idempotency_key(rule, status, created)
  if status == COMPLETED then
    return clock.now < created + rule.window_us
  end
  return not TERMINAL[status]
end

-- The job that holds a unique key by its own rule.
function uniqueness.unique(identity)
  local id = redis.call('HGET', tag .. KEY.unique, identity)
  local job = id and jobs.load(id)
  local rule = job and jobs.definition(id)[DEFINITION.unique]
  if rule and uniqueness.holds_unique_key(rule, job.status, job.created_us) then
    return job
  end
end

-- The job that holds an idempotency key by its own rule, and that rule.
function uniqueness.idempotency(identity)
  local id = redis.call('HGET', tag .. KEY.idempotency, identity)
  local job = id and jobs.load(id)
  local rule = job and jobs.definition(id)[DEFINITION.idempotency]
  if rule and uniqueness.holds_idempotency_key(rule, job.status, job.created_us) then
    return job, rule
  end
end

-- The two identities of a job, from its definition; nil where it has no such key.
function uniqueness.identities(definition, task)
  local unique, idempotency = definition[DEFINITION.unique], definition[DEFINITION.idempotency]
  local tenant = definition[DEFINITION.tenant]
  return unique and uniqueness.identity(tenant, task, unique.key),
    idempotency and uniqueness.identity(tenant, task, idempotency.key)
end

-- Make a job the holder of its keys; a job stashed behind the last holder is outdated.
function uniqueness.take(job, unique, idempotency)
  if unique then
    redis.call('HSET', tag .. KEY.unique, unique, job.id)
    redis.call('HDEL', tag .. KEY.stash, unique)
  end
  if idempotency then
    redis.call('HSET', tag .. KEY.idempotency, idempotency, job.id)
  end
end

-- Give up the keys of a job that is removed.
function uniqueness.forget(job)
  if not job.keyed then
    return
  end
  local unique, idempotency = uniqueness.identities(jobs.definition(job.id), job.task)
  if unique and redis.call('HGET', tag .. KEY.unique, unique) == job.id then
    redis.call('HDEL', tag .. KEY.unique, unique)
  end
  if idempotency and redis.call('HGET', tag .. KEY.idempotency, idempotency) == job.id then
    redis.call('HDEL', tag .. KEY.idempotency, idempotency)
  end
end

-- Until when the record and the result of a completed job must be kept for its keys.
function uniqueness.keep_until(job)
  local definition = jobs.definition(job.id)
  local unique, idempotency = definition[DEFINITION.unique], definition[DEFINITION.idempotency]
  local result = job.created_us + (idempotency and idempotency.window_us or 0)
  local record = result
  if unique and unique.scope == 'window' then
    record = math.max(record, job.created_us + (unique.window_us or 0))
  end
  return record, result
end

local seen = {}

-- What a job is: task, tenant, payload, and the rule of its unique key.
local function arrived(new)
  local definition = cmsgpack.unpack(new[NEW.definition])
  return {new[NEW.task], definition[DEFINITION.tenant], new[NEW.payload], definition[DEFINITION.unique]}
end

-- The same of a job that is stored, or nil.
local function stored(id)
  local job = jobs.load(id)
  if job then
    local definition = jobs.definition(id)
    local payload = redis.call('HGET', keys.job(id), FIELD.payload)
    return {job.task, definition[DEFINITION.tenant], payload, definition[DEFINITION.unique]}
  end
end

local function is_equal(one, other)
  if type(one) ~= 'table' or type(other) ~= 'table' then
    return one == other
  end
  for key, value in pairs(one) do
    if not is_equal(value, other[key]) then
      return false
    end
  end
  for key in pairs(other) do
    if one[key] == nil then
      return false
    end
  end
  return true
end

-- How often each byte stands in a text.
local function letters(text)
  local counts = {}
  for at = 1, #text do
    local letter = string.byte(text, at)
    counts[letter] = (counts[letter] or 0) + 1
  end
  return counts
end

-- Whether two payloads say the same, in whatever order their names stand. To cjson an empty list is
-- an empty object, and long numbers are rounded; but then the texts have other letters. Those sealed
-- with different keys (core.sealing) cannot be compared, and count as the same.
local SEALED = '^{"$enc":"([^:~"]+)~?:'
local function says_the_same(one, other)
  if one == other or string.match(one, SEALED) ~= string.match(other, SEALED) then
    return true
  elseif not is_equal(letters(one), letters(other)) then
    return false
  end
  local read, first = pcall(cjson.decode, one)
  local read_too, second = pcall(cjson.decode, other)
  return read and read_too and is_equal(first, second)
end

local function is_stranger(known, new)
  local tenant = cmsgpack.unpack(new[NEW.definition])[DEFINITION.tenant]
  if known[1] ~= new[NEW.task] or known[2] ~= tenant then
    return true
  end
  local mode = known[4] and known[4].on_conflict or 'reject'
  local replaced = mode ~= 'reject' and mode ~= 'throttle'
  return not replaced and not says_the_same(known[3], new[NEW.payload])
end

-- The refusal of a new job with the id of another job, which is stored or came before it.
function uniqueness.refuse_strangers(new)
  local id, known = new[NEW.id], nil
  if seen[id] then
    known = arrived(seen[id])
  else
    seen[id], known = new, stored(id)
  end
  return known and is_stranger(known, new) and {'stranger', id}
end
