-- SPDX-License-Identifier: MIT
-- Looks for what queues still hold for a worker: the instant, whether it could run something now,
-- when its next retry is due, whether jobs are held by workers that are gone, and when time opens
-- the first gate that holds a job back. Queues come before tasks; their number is the first thing.
-- needs: keys clock jobs queues sigs rates gates
local ANY, ASKED_MAX, BEHIND_MAX = '*', 1000, 100
local GROUPS_MAX = 1000 -- groups of lines of one queue and task, those that are open first
local HEADS_MAX = 10000 -- heads of lines of one queue
local asked_for, known, knows_all = {}, {}, false
local count = tonumber(ARGV[2])
for at = 3, count + 2 do
  local queue = queues.get(ARGV[at])
  if not queue.paused then
    local order = queue.conf.priority or 0
    asked_for[#asked_for + 1] = {name = ARGV[at], order = order, at = at}
  end
end
table.sort(asked_for, function(one, other)
  return one.order < other.order or (one.order == other.order and one.at < other.at)
end)
for at = count + 3, #ARGV do
  known[ARGV[at]] = true
  knows_all = knows_all or ARGV[at] == ANY
end

local function overdue(job)
  return job.deadline and job.deadline <= clock.now
end

-- The tasks of a registry that the worker knows.
local function tasks_of(registry)
  local found = {}
  for _, task in ipairs(redis.call('SMEMBERS', tag .. registry)) do
    if knows_all or known[task] then
      found[#found + 1] = task
    end
  end
  return found
end

local turnstile = gates.turnstile()

-- Whether the gates let a job go; of a line whose head is past its deadline, the first after it.
local function goes(job)
  if not overdue(job) then
    return gates.pass(turnstile, job) == nil
  end
  if job.suspect or job.status ~= QUEUED or sigs.read(job.sig).ordering then
    return false
  end
  local line = keys.line(job.queue, job.task, job.sig)
  for _, member in ipairs(redis.call('ZRANGE', line, 1, BEHIND_MAX)) do
    local other = jobs.load(keys.ranked_id(member))
    if not overdue(other) then
      return gates.pass(turnstile, other) == nil
    end
  end
  return false
end

-- Whether one of these goes, in the order of a claim.
local function any_goes(members)
  table.sort(members, function(one, other)
    return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2])
  end)
  for _, ranked in ipairs(members) do
    if goes(jobs.load(keys.ranked_id(ranked[2]))) then
      return true
    end
  end
  return false
end

local function gather(members, key)
  local most = math.min(ASKED_MAX, HEADS_MAX - #members)
  local found = most > 0 and redis.call('ZRANGE', key, 0, most - 1, 'WITHSCORES') or {}
  for at = 1, #found, 2 do
    members[#members + 1] = {tonumber(found[at + 1]), found[at]}
  end
end

local function line_goes(queue)
  local members = {}
  for _, task in ipairs(tasks_of(':t:' .. queue)) do
    local groups = redis.call('ZRANGE', tag .. ':gr:' .. keys.pair(queue, task), 0, GROUPS_MAX - 1)
    for _, gate in ipairs(groups) do
      gather(members, keys.group(queue, task, gate))
    end
  end
  return any_goes(members)
end

local function suspect_goes(queue)
  local members = {}
  for _, task in ipairs(tasks_of(':sust:' .. queue)) do
    gather(members, tag .. ':sus:' .. keys.pair(queue, task))
  end
  return any_goes(members)
end

-- What a claim would make ready first.
local function due_goes(queue)
  local due = redis.call('ZRANGEBYSCORE', tag .. ':due:' .. queue,
    '-inf', keys.number(clock.now), 'LIMIT', 0, ASKED_MAX)
  for _, member in ipairs(due) do
    local job = jobs.load(keys.numbered_id(member))
    if (knows_all or known[job.task]) and not overdue(job) and goes(job) then
      return true
    end
  end
  return false
end

local function next_retry(queue, earliest)
  for _, task in ipairs(tasks_of(':rtt:' .. queue)) do
    local retries = redis.call('ZRANGE', tag .. ':rt:' .. keys.pair(queue, task), 0, BEHIND_MAX)
    for _, id in ipairs(retries) do
      local job = jobs.load(id)
      if not overdue(job) then
        earliest = math.min(earliest or job.due, job.due)
        break
      end
    end
  end
  return earliest
end

local function is_orphaned(serves)
  for _, worker in ipairs(redis.call('SMEMBERS', tag .. ':holders')) do
    local expires = tonumber(redis.call('ZSCORE', tag .. ':leases', worker) or 0)
    local held = expires <= clock.now
      and redis.call('ZRANGE', tag .. ':held:' .. worker, 0, ASKED_MAX - 1) or {}
    for _, id in ipairs(held) do
      local job = jobs.load(id)
      if serves[job.queue] and (knows_all or known[job.task]) then
        return true
      end
    end
  end
  return false
end

local ready, retry, serves = false, nil, {}
for _, queue in ipairs(asked_for) do
  local name = queue.name
  serves[name] = true
  ready = ready or line_goes(name) or suspect_goes(name) or due_goes(name)
  retry = next_retry(name, retry)
end
return {
  clock.now, ready and 1 or 0, retry or false, is_orphaned(serves) and 1 or 0,
  not ready and turnstile.reopens or false,
}
