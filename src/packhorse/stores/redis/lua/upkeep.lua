-- SPDX-License-Identifier: MIT
-- Upkeep: expiring, parking, forgetting. Promoting is in lua/places.lua.

-- script: expire
-- Moves waiting jobs whose deadline has passed to the dead letters.
-- Arguments: how many at most. Answer: their ids.
-- needs: settle
local overdue = redis.call('ZRANGEBYSCORE', tag .. KEY.deadlines, '-inf', keys.number(clock.now),
  'LIMIT', 0, ARGV[2])
local ids = {}
for at, member in ipairs(overdue) do
  ids[at] = keys.numbered_id(member)
  settle.finish_waiting(jobs.load(ids[at]), DEAD, DEAD_REASON.EXPIRED)
end
index.flush()
return ids

-- script: park
-- Parks ready jobs whose task no live worker knows, unparks those that a worker knows, and moves those
-- that were parked for too long to the dead letters.
-- Arguments: how long a job may be parked, how many of each at most.
-- Answer: the names of newly parked tasks, and the ids of dead jobs.
-- needs: settle
local LOOKED_AT = 10000 -- ready jobs that one script looks at, and parked ones of each kind
local PARKED_PAGE = 100 -- parked jobs that are read at once, at least
local after, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local served, known = {}, {}
if limit == 0 then
  return {{}, {}}
end

-- What live workers serve and know.
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', tag .. KEY.leases,
  '(' .. keys.number(clock.now), '+inf')) do
  local renewal = cjson.decode(cmsgpack.unpack(redis.call('HGET', tag .. KEY.workers, worker))[1])
  for _, queue in ipairs(renewal.queues) do
    served[queue] = true
    for _, task in ipairs(renewal.tasks) do
      known[keys.pair(queue, task)] = true
    end
  end
end

local function is_known(queue, task)
  return known[keys.pair(queue, task)] or known[keys.pair(queue, '*')]
end

-- The first `limit` of these jobs, in order of submission.
local function first_of(found)
  table.sort(found, function(one, other) return one.sequence < other.sequence end)
  while #found > limit do
    table.remove(found)
  end
  return found
end

-- Add the first parked jobs of a queue and task, in order of submission, to those found: `limit` of
-- them or a few more. Those parked after `until_us` do not count, but `looks` bounds them too.
local function parked_of(pair, until_us, looks, found)
  local first, enough = 0, #found + limit
  while #found < enough and first < looks do
    local last = math.min(first + math.max(limit, PARKED_PAGE), looks) - 1
    local ids = redis.call('ZRANGE', tag .. KEY.parked .. pair, first, last)
    for _, id in ipairs(ids) do
      local job = jobs.load(id)
      if not until_us or job.parked_us <= until_us then
        found[#found + 1] = job
      end
    end
    first = #ids > 0 and first + #ids or looks
  end
end

-- The first parked jobs of the (queue, task)s that are wanted, in order of submission.
local function parked(wanted, until_us)
  local found, pairs_wanted = {}, {}
  for _, pair in ipairs(redis.call('SMEMBERS', tag .. KEY.parked_pairs)) do
    if wanted(keys.unpair(pair)) then
      pairs_wanted[#pairs_wanted + 1] = pair
    end
  end
  for _, pair in ipairs(pairs_wanted) do
    parked_of(pair, until_us, math.ceil(LOOKED_AT / #pairs_wanted), found)
  end
  return first_of(found)
end

local function set_parked(job, since)
  index.leave(job)
  job.parked_us, job.updated_us = since, clock.now
  index.enter(job)
  jobs.save(job)
end

for _, job in ipairs(parked(is_known)) do
  set_parked(job, nil)
  wakes.queue(job.queue)
end
pending.flush()
local dead = {}
for at, job in ipairs(parked(function(...) return not is_known(...) end, clock.now - after)) do
  dead[at] = job.id
  settle.finish_waiting(job, DEAD, DEAD_REASON.UNKNOWN_TASK)
end
pending.flush()
lines.flush()

-- Ready jobs of one queue and task, at most `limit` of each of at most `limit` lines.
local function ready(queue, task, found)
  local pair = keys.pair(queue, task)
  local sources = {tag .. KEY.suspects .. pair, tag .. KEY.overdue .. pair}
  for at, sig in ipairs(redis.call('HRANDFIELD', tag .. KEY.heads .. pair, limit)) do
    sources[at + 2] = keys.line(queue, task, sig)
  end
  for _, source in ipairs(sources) do
    local most = math.min(limit, LOOKED_AT - #found)
    for _, member in ipairs(most > 0 and redis.call('ZRANGE', source, 0, most - 1) or {}) do
      found[#found + 1] = jobs.load(keys.ranked_id(member))
    end
  end
end

local found, names = {}, {}
for queue in pairs(served) do
  for _, task in ipairs(redis.call('SUNION', tag .. KEY.ready_tasks .. queue,
    tag .. KEY.suspect_tasks .. queue, tag .. KEY.overdue_tasks .. queue)) do
    if not is_known(queue, task) then
      ready(queue, task, found)
    end
  end
end
for _, job in ipairs(first_of(found)) do
  set_parked(job, clock.now)
  names[job.task] = true
end
index.flush()
local parked_tasks = {}
for name in pairs(names) do
  parked_tasks[#parked_tasks + 1] = name
end
table.sort(parked_tasks)
return {parked_tasks, dead}

-- script: prune
-- Removes records and results whose lifetime has passed, workers gone for long, and gates and logs
-- that are over.
-- Arguments: how many jobs and workers at most, how long a worker is kept after its lease has ended,
-- how long a member is kept for its group, and after how long it is looked at again.
-- Answer: how many jobs and workers.
-- needs: settle settings records
local GATES_MAX = 1000 -- closings that one script looks at, and logs it removes
local GHOSTS_MAX = 1000 -- workers gone for long that one script looks at
local now = clock.now

-- Remove a result that expires before its record.
local function drop_result(job)
  index.leave(job)
  job.has_result, job.result_dropped = nil, true
  job.expires_us = job.keep_us and job.finished_us + job.keep_us
  index.enter(job)
  jobs.save(job)
  redis.call('HDEL', keys.job(job.id), FIELD.result)
end

-- Whether a member is kept because the record of its group is there.
local function kept(job)
  return job.finished_us + tonumber(ARGV[4]) > now and journal.group_until(job)
end

-- Look at a member again later.
local function keep(job)
  index.leave(job)
  job.expires_us = now + tonumber(ARGV[5])
  index.enter(job)
  jobs.save(job)
end

local spared = 0
local expired = redis.call('ZRANGEBYSCORE', tag .. KEY.expiring, '-inf', keys.number(now), 'LIMIT', 0, ARGV[2])
for _, member in ipairs(expired) do
  local job = jobs.load(keys.numbered_id(member))
  if kept(job) then
    spared = spared + 1
    keep(job)
  elseif job.keep_us and job.finished_us + job.keep_us <= now then
    settle.forget(job)
  else
    drop_result(job)
  end
end
index.flush()

-- Forget workers that left long ago, unless they hold jobs: those have to be rescued first.
local function forget_ghosts(most)
  local found, gone = redis.call('ZRANGEBYSCORE', tag .. KEY.leases, '-inf',
    keys.number(now - tonumber(ARGV[3])), 'LIMIT', 0, GHOSTS_MAX), {}
  for _, worker in ipairs(found) do
    if #gone == most then
      break
    elseif redis.call('EXISTS', tag .. KEY.held .. worker) == 0 then
      gone[#gone + 1] = worker
    end
  end
  pending.many('ZREM', tag .. KEY.leases, gone)
  pending.many('HDEL', tag .. KEY.workers, gone)
  return #gone
end

local forgotten = forget_ghosts(tonumber(ARGV[2]) - #expired)

-- Remove members of a set that ended before an instant: closed gates, or logs that no rate rule counts.
local function over(set, until_us)
  local found = redis.call('ZRANGEBYSCORE', tag .. set, '-inf', keys.number(until_us), 'LIMIT', 0,
    GATES_MAX)
  pending.many('ZREM', tag .. set, found)
  return found
end

records.forget(ARGV[2])
pending.many('HDEL', tag .. KEY.closed_gates, over(KEY.closed_until, now))
if redis.call('EXISTS', tag .. KEY.rate_logs) == 1 then
  for _, gate in ipairs(over(KEY.rate_logs, now - settings.longest_window())) do
    redis.call('DEL', tag .. KEY.rate_log .. gate)
  end
end
return #expired - spared + forgotten
