-- SPDX-License-Identifier: MIT
-- Counts jobs per queue and status, and finds since when the first ready one of each priority of
-- each queue waits: queue, priority, instant.
-- needs: keys jobs
local counts = redis.call('HGETALL', tag .. ':counts')
local LEVELS = 5
local APART_MAX = 10000 -- jobs of a queue that stand in no plain line and are looked at

local function note(oldest, job)
  oldest[job.priority] = math.min(oldest[job.priority] or job.ready, job.ready)
end

-- Jobs of plain lines stand in the order of becoming ready.
local function look_at_lines(queue, oldest)
  for _, task in ipairs(redis.call('SMEMBERS', tag .. ':t:' .. queue)) do
    local line = keys.line(queue, task, '')
    for level = 0, LEVELS - 1 do
      local first = redis.call('ZRANGEBYSCORE', line, level, level, 'LIMIT', 0, 1)[1]
      if first then
        note(oldest, jobs.load(keys.ranked_id(first)))
      end
    end
  end
end

-- So do the others, in a set of their own, until there is one of each level.
local function look_apart(queue, oldest)
  local seen, levels = {}, 0
  local apart = redis.call('ZRANGE', tag .. ':since:' .. queue, 0, APART_MAX - 1)
  for _, id in ipairs(apart) do
    local job = jobs.load(id)
    if not seen[job.priority] then
      seen[job.priority] = true
      levels = levels + 1
      note(oldest, job)
    end
    if levels == LEVELS then
      return
    end
  end
end

local told = {}
for at = 1, #counts, 2 do
  local queue = string.match(counts[at], '^1:(.*)$')
  if queue then
    local oldest = {}
    look_at_lines(queue, oldest)
    look_apart(queue, oldest)
    for level, since in pairs(oldest) do
      told[#told + 1] = {queue, level, since}
    end
  end
end
return {counts, told}
