-- SPDX-License-Identifier: MIT
-- Whom a worker serves: its queues in their order, its tasks, and the suspects among their jobs.
local serving = {}
local SUSPECTS_MAX = 1000 -- suspects of one queue and task that are looked at

-- The queues that are not paused, each once, in the order in which they are served.
function serving.open_queues(names)
  local open, seen = {}, {}
  for at, name in ipairs(names) do
    if not seen[name] and not queues.get(name).paused then
      open[#open + 1] = {name = name, at = at, priority = queues.get(name).conf.priority or 0}
    end
    seen[name] = true
  end
  table.sort(open, function(one, other)
    if one.priority ~= other.priority then
      return one.priority < other.priority
    end
    return one.at < other.at
  end)
  local ordered = {}
  for at, queue in ipairs(open) do
    ordered[at] = queue.name
  end
  return ordered
end

-- The tasks a worker knows: all of them with "*" among the names.
function serving.tasks(names)
  local known = {}
  for _, name in ipairs(names) do
    known[name] = true
  end
  return known
end

-- Of the tasks a set names, those that are known.
function serving.known(set, tasks)
  local found = {}
  for _, task in ipairs(redis.call('SMEMBERS', set)) do
    if tasks['*'] or tasks[task] then
      found[#found + 1] = task
    end
  end
  return found
end

-- Which of two entries of lines comes first: {score, member}.
function serving.before(one, other)
  if one[1] ~= other[1] then
    return one[1] < other[1]
  end
  return one[2] < other[2]
end

-- The suspects of a queue and these tasks whose deadline has not passed, in the order of claiming.
function serving.suspects(queue, tasks)
  local entries = {}
  for _, task in ipairs(serving.known(tag .. ':sust:' .. queue, tasks)) do
    local found = redis.call('ZRANGE', tag .. ':sus:' .. keys.pair(queue, task), 0,
      SUSPECTS_MAX - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      entries[#entries + 1] = {tonumber(found[at + 1]), found[at]}
    end
  end
  table.sort(entries, serving.before)
  local found = {}
  for _, entry in ipairs(entries) do
    local job = jobs.load(keys.ranked_id(entry[2]))
    if not (job.deadline and job.deadline <= clock.now) then
      found[#found + 1] = job
    end
  end
  return found
end
