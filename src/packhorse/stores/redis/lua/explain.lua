-- SPDX-License-Identifier: MIT
-- Why a job does not run, and what a worker could still run. Reads only.
-- needs: limits
local standings = {}
local LINES_MAX = 10000 -- of a queue and task, that are counted
local RUNNING_MAX = 10000 -- jobs that run, that are looked at
local NAMED_MAX = 10

-- How many members of a line rank before this one.
local function before(line, score, member)
  local lower = redis.call('ZCOUNT', line, '-inf', '(' .. score)
  local first, last = 0, redis.call('ZCOUNT', line, score, score)
  while first < last do
    local middle = math.floor((first + last) / 2)
    local found = redis.call('ZRANGE', line, lower + middle, lower + middle)[1]
    if found < member then
      first = middle + 1
    else
      last = middle
    end
  end
  return lower + first
end

-- How many ready jobs of its queue rank before a job; of a suspect, how many suspects.
function standings.ahead(job)
  local score, member, ahead = keys.number(job.rank), keys.ranked(job), 0
  if job.suspect then
    for _, task in ipairs(redis.call('SMEMBERS', tag .. KEY.suspect_tasks .. job.queue)) do
      ahead = ahead + before(tag .. KEY.suspects .. keys.pair(job.queue, task), score, member)
    end
    return ahead
  end
  for _, task in ipairs(redis.call('SMEMBERS', tag .. KEY.overdue_tasks .. job.queue)) do
    ahead = ahead + before(tag .. KEY.overdue .. keys.pair(job.queue, task), score, member)
  end
  for _, task in ipairs(redis.call('SMEMBERS', tag .. KEY.ready_tasks .. job.queue)) do
    local pair = keys.pair(job.queue, task)
    for _, sig in ipairs(redis.call('HRANDFIELD', tag .. KEY.heads .. pair, LINES_MAX)) do
      ahead = ahead + before(keys.line(job.queue, task, sig), score, member)
    end
  end
  return ahead
end

local function has_gate(gate, job, other)
  if string.sub(gate.name, 1, 1) == GATE.queue_concurrency then
    return other.queue == job.queue
  end
  return signatures.concurrency_gate(other.task, other.signature) == gate.name
end

-- The ids of running jobs that count for a gate, in the order they were submitted.
local function running(gate, job, tenant)
  local found, looked_at = {}, 0
  for _, worker in ipairs(redis.call('SMEMBERS', tag .. KEY.holders)) do
    local most = RUNNING_MAX - looked_at
    local held = most > 0 and redis.call('ZRANGE', tag .. KEY.held .. worker, 0, most - 1) or {}
    looked_at = looked_at + #held
    for _, id in ipairs(held) do
      local other = jobs.load(id)
      if has_gate(gate, job, other) and (not tenant or signatures.read(other.signature).tenant == tenant) then
        found[#found + 1] = other
      end
    end
  end
  table.sort(found, function(one, other) return one.sequence < other.sequence end)
  local names = {}
  for at = 1, math.min(#found, NAMED_MAX) do
    names[at] = found[at].id
  end
  return names
end

-- The jobs that keep a gate closed: the head of the line, or running jobs; of a tenant, only its own.
function standings.in_the_way(gate, job, tenant)
  if gate.head then
    return {gate.head}
  elseif gate.limit then
    return running(gate, job, tenant)
  end
  return {}
end

-- script: explain
-- Reads what explains why a job does not run: the instant, its
-- fields, whether it is a suspect and its queue paused, its gates that are closed, how many
-- ready jobs rank before it, its hold limit, the workers, and whether its queue gives background
-- jobs only while nothing else waits.
-- needs: explain
local id, asked_by_tenant, tenant = ARGV[2], ARGV[3] == '1', ARGV[4]
local fields = redis.call('HMGET', keys.job(id), unpack(ARGV, 5))
if not fields[1] then
  return false
end
local job = jobs.load(id)
local parts = signatures.read(job.signature)
local turnstile, closed = gates.turnstile(), {}
local asked = gates.asked(turnstile, job.queue, job.task, job.signature)
for at, blocked in ipairs(gates.closed(asked, id, parts.weight)) do
  local gate = blocked.gate
  closed[at] = {
    gate.name,
    blocked.reopens or false,
    gate.limit or false,
    gate.running or 0,
    gate.rule and cjson.encode(gate.rule) or false,
    standings.in_the_way(gate, job, asked_by_tenant and tenant),
  }
end
local ahead = 0
if job.status == QUEUED and not job.parked_us then
  ahead = standings.ahead(job)
end
return {
  clock.now, fields, job.suspect and 1 or 0, queues.get(job.queue).paused and 1 or 0, closed,
  ahead, job.hold_until_us and keys.number(job.hold_until_us) or false, redis.call('HVALS', tag .. KEY.workers),
  queues.get(job.queue).conf.background_only and 1 or 0,
}

-- script: outlook
-- Looks for what queues still hold for a worker: the instant, whether it could run something now,
-- when its next retry is due, whether jobs are held by workers that are gone, and when time opens
-- the first gate that holds a job back. Queues come before tasks; their number is the first thing.
-- needs: limits candidates
local ASKED_MAX, BEHIND_MAX = 1000, 100
local GROUPS_MAX = 1000 -- groups of lines of one queue and task, those that are open first
local HEADS_MAX = 10000 -- heads of lines of one queue
local last_queue = tonumber(ARGV[2]) + 2
local open = candidates.queue_order({unpack(ARGV, 3, last_queue)})
local tasks = candidates.tasks({unpack(ARGV, last_queue + 1)})

local function knows(task)
  return tasks['*'] or tasks[task]
end

local function overdue(job)
  return job.deadline_us and job.deadline_us <= clock.now
end

local turnstile = gates.turnstile()

-- Whether the gates pass a job; if the head of its line is past its deadline, the first after that.
local function goes(job)
  if not overdue(job) then
    return gates.pass(turnstile, job) == nil
  end
  if job.suspect or job.status ~= QUEUED or signatures.read(job.signature).ordering then
    return false
  end
  local line = keys.line(job.queue, job.task, job.signature)
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
  table.sort(members, candidates.before)
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
  for _, task in ipairs(candidates.known(tag .. KEY.ready_tasks .. queue, tasks)) do
    local groups = redis.call('ZRANGE', tag .. KEY.groups .. keys.pair(queue, task), 0, GROUPS_MAX - 1)
    for _, gate in ipairs(groups) do
      gather(members, keys.group(queue, task, gate))
    end
  end
  return any_goes(members)
end

local function suspect_goes(queue)
  local members = {}
  for _, task in ipairs(candidates.known(tag .. KEY.suspect_tasks .. queue, tasks)) do
    gather(members, tag .. KEY.suspects .. keys.pair(queue, task))
  end
  return any_goes(members)
end

-- What a claim would make ready first.
local function due_goes(queue)
  local due = redis.call('ZRANGEBYSCORE', tag .. KEY.due .. queue,
    '-inf', keys.number(clock.now), 'LIMIT', 0, ASKED_MAX)
  for _, member in ipairs(due) do
    local job = jobs.load(keys.numbered_id(member))
    if knows(job.task) and not overdue(job) and goes(job) then
      return true
    end
  end
  return false
end

local function next_retry(queue, earliest)
  for _, task in ipairs(candidates.known(tag .. KEY.retry_tasks .. queue, tasks)) do
    local retries = redis.call('ZRANGE', tag .. KEY.retries .. keys.pair(queue, task), 0, BEHIND_MAX)
    for _, id in ipairs(retries) do
      local job = jobs.load(id)
      if not overdue(job) then
        earliest = math.min(earliest or job.due_us, job.due_us)
        break
      end
    end
  end
  return earliest
end

local function is_orphaned(serves)
  for _, worker in ipairs(redis.call('SMEMBERS', tag .. KEY.holders)) do
    local expires = tonumber(redis.call('ZSCORE', tag .. KEY.leases, worker) or 0)
    local held = expires <= clock.now
      and redis.call('ZRANGE', tag .. KEY.held .. worker, 0, ASKED_MAX - 1) or {}
    for _, id in ipairs(held) do
      local job = jobs.load(id)
      if serves[job.queue] and knows(job.task) then
        return true
      end
    end
  end
  return false
end

local ready, retry, serves = false, nil, {}
for _, name in ipairs(open) do
  serves[name] = true
  ready = ready or line_goes(name) or suspect_goes(name) or due_goes(name)
  retry = next_retry(name, retry)
end
return {
  clock.now, ready and 1 or 0, retry or false, is_orphaned(serves) and 1 or 0,
  not ready and turnstile.reopens or false,
}
