-- SPDX-License-Identifier: MIT
-- Read and write jobs, buffer changes of indexes, wake listeners.
-- needs: keys
local jobs = {}

-- The job of an id, from its two packed texts.
function jobs.read(id, state, own)
  local job = unpack_state(state)
  add_own(job, own)
  job.id = id
  return job
end

-- The job of an id, or nil; with the bytes that are counted for it.
function jobs.load(id)
  local texts = redis.call('HMGET', keys.job(id), FIELD.state, FIELD.own, FIELD.bytes)
  if texts[1] then
    local job = jobs.read(id, texts[1], texts[2])
    job.bytes = tonumber(texts[3] or 0)
    return job
  end
end

-- The job of an id, or nil; a caller with a tenant, `limited` is '1', sees only jobs of that.
function jobs.seen(id, limited, tenant)
  local job = jobs.load(id)
  if job and (limited ~= '1' or signatures.read(job.signature).tenant == tenant) then
    return job
  end
end

-- Write the state of a job, and more fields: name, value, ...
function jobs.save(job, ...)
  redis.call('HSET', keys.job(job.id), FIELD.state, pack_state(job), FIELD.own, pack_own(job), ...)
end

-- A line of history: `_Attempt` of rows.py, packed.
function jobs.attempt_line(job, status, will_retry, error)
  return '\151' .. cmsgpack.pack(job.attempts, status, job.started_us or 0, clock.now,
    job.worker or '', will_retry, error)
end

-- When the record or the result of a finished job expires first: `policies.retention.first_expiry_us`.
function jobs.first_expiry_us(job)
  local ends = job.keep_us and job.finished_us + job.keep_us
  if job.has_result and job.result_keep_us then
    ends = math.min(ends or math.huge, job.finished_us + job.result_keep_us)
  end
  return ends
end

-- What the producer decided: see DEFINITION for the positions.
function jobs.definition(id)
  local text = redis.call('HGET', keys.job(id), FIELD.definition)
  return text and cmsgpack.unpack(text)
end

-- Changes of sorted sets and counters, buffered until `flush` writes them with few commands.
-- The last of several changes to one member wins.
local pending = {}
local ARGUMENTS_MAX = 2000 -- of one command; Lua cannot unpack many more
local sets, counted, running, suspended, weighed, named = {}, {}, {}, {}, {}, {}

-- Add a member to a sorted set. The set `registry` lists the sorted sets that are not empty; there this
-- one is called `name`.
function pending.put(key, score, member, registry, name)
  table_in(sets, key)[member] = score
  if registry and not named[key] then
    named[key] = {registry, name}
  end
end

-- Remove a member from a sorted set.
function pending.drop(key, member, registry, name)
  pending.put(key, false, member, registry, name)
end

-- Count jobs of a queue in a status.
function pending.count(queue, status, by)
  local field = keys.count(queue, status)
  counted[field] = (counted[field] or 0) + by
end

-- Count running jobs that share a gate of concurrency.
function pending.run(gate, by)
  running[gate] = (running[gate] or 0) + by
end

-- Count jobs of a queue that wait in a step.
function pending.suspend(queue, by)
  suspended[queue] = (suspended[queue] or 0) + by
end

-- Count bytes of a queue, and of the store.
function pending.weigh(queue, by)
  weighed[queue] = (weighed[queue] or 0) + by
  weighed[''] = (weighed[''] or 0) + by
end

local function flush_counts(key, changed)
  for field, by in pairs(changed) do
    if by ~= 0 and redis.call('HINCRBY', key, field, by) <= 0 then
      redis.call('HDEL', key, field)
    end
    changed[field] = nil
  end
end

-- Run a command with a list of arguments, in parts that Lua can unpack.
function pending.many(command, key, arguments)
  for first = 1, #arguments, ARGUMENTS_MAX do
    local last = math.min(first + ARGUMENTS_MAX - 1, #arguments)
    redis.call(command, key, unpack(arguments, first, last))
  end
end

-- Read values with a list of arguments, in such parts.
function pending.read(command, key, arguments)
  local found = {}
  for first = 1, #arguments, ARGUMENTS_MAX do
    local last = math.min(first + ARGUMENTS_MAX - 1, #arguments)
    for at, value in ipairs(redis.call(command, key, unpack(arguments, first, last))) do
      found[first + at - 1] = value
    end
  end
  return found
end

local function flush_set(key, set)
  local added, removed = {}, {}
  for member, score in pairs(set) do
    if score then
      added[#added + 1] = score
      added[#added + 1] = member
    else
      removed[#removed + 1] = member
    end
  end
  pending.many('ZADD', key, added)
  pending.many('ZREM', key, removed)
  local name = named[key]
  if not name then
    return
  end
  named[key] = nil
  if #added > 0 then
    redis.call('SADD', tag .. name[1], name[2])
  elseif redis.call('EXISTS', key) == 0 then
    redis.call('SREM', tag .. name[1], name[2])
  end
end

-- Write the buffered changes of one sorted set, which is about to be read.
function pending.write(key)
  local set = sets[key]
  if set then
    sets[key] = nil
    flush_set(key, set)
  end
end

-- Write all buffered changes.
function pending.flush()
  for key, set in pairs(sets) do
    sets[key] = nil
    flush_set(key, set)
  end
  flush_counts(tag .. KEY.counts, counted)
  flush_counts(tag .. KEY.running, running)
  flush_counts(tag .. KEY.suspended, suspended)
  flush_counts(tag .. KEY.bytes, weighed)
end

-- Topics to publish, each once, at the end of the script.
local wakes = {}
local woken, topics = {}, {}

function wakes.add(topic)
  if not woken[topic] then
    woken[topic] = true
    topics[#topics + 1] = topic
  end
end

function wakes.queue(queue)
  wakes.add('queue:' .. queue)
end

-- Wake the workers of every queue in which a job of this task is ready.
function wakes.task(task)
  for _, queue in ipairs(redis.call('SUNION', tag .. KEY.task_queues .. task, tag .. KEY.suspect_queues .. task)) do
    wakes.queue(queue)
  end
end

-- All topics of jobs share one channel, and so do those of cancels.
local function channel(topic)
  if string.sub(topic, 1, 4) == 'job:' then
    return KEY.wake .. 'job'
  elseif string.sub(topic, 1, 7) == 'cancel:' then
    return KEY.wake .. 'cancel'
  end
  return KEY.wake .. topic
end

function wakes.flush()
  for _, topic in ipairs(topics) do
    redis.call('PUBLISH', tag .. channel(topic), topic)
  end
end
