-- SPDX-License-Identifier: MIT
-- Where a claim finds the first ready job of a queue: the open groups of lines, merged.
local sources = {}
local GROUPS_MAX = 1000 -- groups of one queue and task that a claim looks at
local MOVED_MAX = 4 -- lines of a group that go back among those nothing is known against

local function read(source)
  local found = redis.call('ZRANGE', keys.group(source.queue, source.task, source.gate), 0, 1,
    'WITHSCORES')
  source.first = found[1] and {tonumber(found[2]), found[1]}
  source.second = found[3] and {tonumber(found[4]), found[3]}
end
sources.read = read

-- Lines of a gate that opened stand among the others again, unless they are many: then the group
-- is looked at by itself.
local function move_back(queue, task, gate)
  local members = redis.call('ZRANGE', keys.group(queue, task, gate), 0, MOVED_MAX)
  if string.sub(gate, 1, 1) == '#' or #members > MOVED_MAX then
    return false
  end
  for _, member in ipairs(members) do
    local job = jobs.load(keys.ranked_id(member))
    lines.place_head(queue, task, job.sig, '', 0)
  end
  return true
end

-- The latest instant until which a rate limit of a queue and task may hold back a job.
local function horizon(queue, task)
  local conf, limits, longest = queues.get(queue).conf, queues.task(task) or {}, 0
  for _, rule in ipairs({conf.rate or false, conf.tenant_rate or false, limits.rate or false}) do
    longest = math.max(longest, rule and rule.window_us or 0)
  end
  return clock.now + 2 * longest
end

-- The open groups of a queue and task, and when time opens the next. One that is to open later
-- than a limit may say was closed before the clock was set back, and is looked at.
local function groups(queue, task)
  local found = redis.call('ZRANGE', tag .. ':gr:' .. keys.pair(queue, task), 0, GROUPS_MAX - 1,
    'WITHSCORES')
  local open, opens = {}, nil
  for at = 1, #found, 2 do
    local from = tonumber(found[at + 1])
    if from <= clock.now or (from < math.huge and from > horizon(queue, task)) then
      open[#open + 1] = found[at]
    elseif from < math.huge then
      opens = math.min(opens or from, from)
    end
  end
  return open, opens
end

-- All sources of a queue for these tasks, and when time opens a group that is closed.
function sources.of(queue, tasks)
  local found, opens = {}, nil
  for _, task in ipairs(tasks) do
    local open, later = groups(queue, task)
    local own = {}
    for _, gate in ipairs(open) do
      if gate == '' or not move_back(queue, task, gate) then
        own[gate] = true
      else
        own[''] = true
      end
    end
    for gate in pairs(own) do
      local source = {queue = queue, task = task, gate = gate}
      read(source)
      found[#found + 1] = source
    end
    opens = later and math.min(opens or later, later) or opens
  end
  return found, opens
end

-- The source whose head comes first, and the entry before which its line may be served.
function sources.best(all)
  local best, bound
  for _, source in ipairs(all) do
    if source.first and not source.spent then
      if not best or serving.before(source.first, best.first) then
        bound = best and best.first
        best = source
      elseif not bound or serving.before(source.first, bound) then
        bound = source.first
      end
    end
  end
  if best and best.second and (not bound or serving.before(best.second, bound)) then
    bound = best.second
  end
  return best, bound
end
