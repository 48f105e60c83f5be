-- SPDX-License-Identifier: MIT
-- How a ready job stands among others, for those who want to know why it waits. Reads only.
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
    for _, task in ipairs(redis.call('SMEMBERS', tag .. ':sust:' .. job.queue)) do
      ahead = ahead + before(tag .. ':sus:' .. keys.pair(job.queue, task), score, member)
    end
    return ahead
  end
  for _, task in ipairs(redis.call('SMEMBERS', tag .. ':latet:' .. job.queue)) do
    ahead = ahead + before(tag .. ':late:' .. keys.pair(job.queue, task), score, member)
  end
  for _, task in ipairs(redis.call('SMEMBERS', tag .. ':t:' .. job.queue)) do
    local pair = keys.pair(job.queue, task)
    for _, sig in ipairs(redis.call('HRANDFIELD', tag .. ':lm:' .. pair, LINES_MAX)) do
      ahead = ahead + before(keys.line(job.queue, task, sig), score, member)
    end
  end
  return ahead
end

local function has_gate(gate, job, other)
  if string.sub(gate.name, 1, 1) == 'Q' then
    return other.queue == job.queue
  end
  return sigs.concurrency_gate(other.task, other.sig) == gate.name
end

-- Those who run, in the order they were submitted.
local function running(gate, job, tenant)
  local found, looked_at = {}, 0
  for _, worker in ipairs(redis.call('SMEMBERS', tag .. ':holders')) do
    local most = RUNNING_MAX - looked_at
    local held = most > 0 and redis.call('ZRANGE', tag .. ':held:' .. worker, 0, most - 1) or {}
    looked_at = looked_at + #held
    for _, id in ipairs(held) do
      local other = jobs.load(id)
      if has_gate(gate, job, other) and (not tenant or sigs.read(other.sig).tenant == tenant) then
        found[#found + 1] = other
      end
    end
  end
  table.sort(found, function(one, other) return one.seq < other.seq end)
  local names = {}
  for at = 1, math.min(#found, NAMED_MAX) do
    names[at] = found[at].id
  end
  return names
end

-- The head of the line, or those who run; a tenant is not told of other tenants' jobs.
function standings.in_the_way(gate, job, tenant)
  if gate.head then
    return {gate.head}
  elseif gate.limit then
    return running(gate, job, tenant)
  end
  return {}
end
