-- SPDX-License-Identifier: MIT
-- Candidates of a claim: queues in order, known tasks, and open groups of lines.
-- needs: lines
local candidates = {}
local LOOKS_MAX = 2000 -- heads of other tenants that one script of a claim for some looks at
local HEADS_PAGE = 100 -- heads that such a claim reads at once

-- The queues that are not paused, each once, in the order in which they are served.
function candidates.queue_order(names)
  local open, place = {}, {}
  for at, name in ipairs(names) do
    if not place[name] and not queues.get(name).paused then
      open[#open + 1] = name
    end
    place[name] = place[name] or at
  end
  table.sort(open, function(one, other)
    local mine, theirs = queues.get(one).conf.priority or 0, queues.get(other).conf.priority or 0
    return mine < theirs or (mine == theirs and place[one] < place[other])
  end)
  return open
end

-- A set of names; "*" in it means all tasks.
function candidates.tasks(names)
  local known = {}
  for _, name in ipairs(names) do
    known[name] = true
  end
  return known
end

-- Of the tasks a set names, those that are known.
function candidates.known(set, tasks)
  local found = {}
  for _, task in ipairs(redis.call('SMEMBERS', set)) do
    if tasks['*'] or tasks[task] then
      found[#found + 1] = task
    end
  end
  return found
end

-- Look at jobs of these tenants only, and of queues at these levels of priority, given as msgpack;
-- '' is all. What the script before has passed by may follow: see `candidates.passed`.
local wanted
local levels, passed_by = {}, {}
function candidates.scope(packed)
  if packed ~= '' then
    local scope, passed = cmsgpack.unpack(packed)
    wanted = #scope[1] > 0 and candidates.tasks(scope[1]) or nil
    levels, passed_by = scope[2], passed or {}
  end
end

-- Whether an entry of a line is less urgent than a claim wants; ranks by age are beyond every level.
function candidates.beyond(queue, score)
  local level = levels[queue]
  return level and score > level
end

-- Whether a job belongs to a tenant of the claim.
function candidates.is_wanted(job)
  return not wanted or wanted[signatures.read(job.signature).tenant]
end

-- Which of two entries of lines comes first: {score, member}.
function candidates.before(one, other)
  if one[1] ~= other[1] then
    return one[1] < other[1]
  end
  return one[2] < other[2]
end

local PAGE_MAX = 1000 -- heads that any other claim reads at once
local GROUPS_MAX = 1000 -- groups of one queue and task that a claim looks at
local MOVED_MAX = 4 -- lines of a group that go back among those nothing is known against

-- Which heads belong to the tenants of the claim. A head is looked at once, however often a line
-- before it is served; if `looks` are used up, another script goes on.
local looks, looked, missed = LOOKS_MAX, {}, false
local function is_looked_for(member)
  if looked[member] == nil and looks > 0 then
    looked[member] = candidates.is_wanted(jobs.load(keys.ranked_id(member))) or false
    looks = looked[member] and looks or looks - 1 -- so that each script comes further than the one before
  end
  return looked[member]
end

-- The first head of a group from a rank on that is looked for, and the last entry before it, both as
-- {score, member, score as text}; or false if it was not found for want of looks. Those from `bound`
-- on do not matter.
local function next_wanted(source, rank, bound)
  local last
  while true do
    local found = redis.call('ZRANGE', source.group, rank, rank + HEADS_PAGE - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      local entry = {tonumber(found[at + 1]), found[at], found[at + 1]}
      if candidates.beyond(source.queue, entry[1]) or (bound and not candidates.before(entry, bound)) then
        return nil, last
      end
      local ours = is_looked_for(entry[2])
      if ours == nil then
        return false, last
      elseif ours then
        return entry, last
      end
      last = entry
    end
    if #found < 2 * HEADS_PAGE then
      return nil, last
    end
    rank = rank + HEADS_PAGE
  end
end

-- The rank behind a head that was passed by, which may have left its group since.
local function rank_behind(group, score, member)
  local rank = redis.call('ZRANK', group, member)
  if rank then
    return rank + 1
  end
  redis.call('ZADD', group, score, member)
  rank = redis.call('ZRANK', group, member)
  redis.call('ZREM', group, member)
  return rank
end

-- Read the first head that is looked for; note how far none was.
local function read_wanted(source)
  lines.flush()
  local from = passed_by[source.group]
  local rank = from and rank_behind(source.group, from[1], from[2]) or 0
  local first, last = next_wanted(source, rank)
  if last then
    passed_by[source.group] = {last[3], last[2]}
  end
  source.first, source.blind = first or nil, first == false
  missed = missed or source.blind
end

-- Read the first heads of a source again, as many as may be served. `whole`: there is no other.
local function read_page(source)
  lines.flush()
  local found = redis.call('ZRANGE', source.group, 0, source.page - 1, 'WITHSCORES')
  source.heads, source.at, source.whole = {}, 1, #found < 2 * source.page
  for at = 1, #found, 2 do
    source.heads[(at + 1) / 2] = {tonumber(found[at + 1]), found[at]}
  end
end

-- The head of this number that is left, unless it is less urgent than wanted.
local function head_left(source, number)
  local head = source.heads[source.at + number - 1]
  return head and not candidates.beyond(source.queue, head[1]) and head or nil
end

-- Have the first two heads of a source, which is a group of lines; or the first that is looked for.
local function look(source)
  if wanted then
    return read_wanted(source)
  elseif source.at >= #source.heads and not source.whole then
    read_page(source)
  end
  source.first, source.second = head_left(source, 1), head_left(source, 2)
end

-- Go on behind the first head of a source; its line has another now that is in the group too, or none.
function candidates.go_on(source, head)
  local heads, at = source.heads, #source.heads
  source.at = source.at + 1
  if head and (source.whole or (heads[at] and candidates.before(head, heads[at]))) then
    while at >= source.at and candidates.before(head, heads[at]) do
      heads[at + 1], at = heads[at], at - 1
    end
    heads[at + 1] = head
  end
  look(source)
end

-- What the next script must know if this one has not looked at everything, or nil.
function candidates.passed()
  return missed and cmsgpack.pack(passed_by) or nil
end

-- Move the lines of a gate that opened back to the open group, unless they are many: then the group
-- is a source of its own.
local function move_back(queue, task, gate)
  local members = redis.call('ZRANGE', keys.group(queue, task, gate), 0, MOVED_MAX, 'WITHSCORES')
  if string.sub(gate, 1, 1) == '#' or #members > 2 * MOVED_MAX then
    return false
  end
  for at = 1, #members, 2 do
    local job = jobs.load(keys.ranked_id(members[at]))
    lines.place(queue, task, job.signature, {members[at + 1], members[at]}, '', {gate, members[at]})
  end
  return true
end

-- The latest instant until which a rate limit of a queue and task may hold back a job.
local function horizon(queue, task)
  local conf, limits, longest = queues.get(queue).conf, queues.task(task) or {}, 0
  for _, rule in ipairs({conf.rate or false, conf.tenant_rate or false, limits.rate or false}) do
    longest = math.max(longest, rule and rule.window_us or 0)
  end
  return clock.now + 2 * longest + POLICY.ALLOWANCE_US_MAX
end

-- The open groups of a queue and task, and when time opens the next. One that is to open later
-- than a limit may say was closed before the clock was set back, and is looked at.
local function groups(queue, task)
  local found = redis.call('ZRANGE', tag .. KEY.groups .. keys.pair(queue, task), 0, GROUPS_MAX - 1,
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

-- All sources of a queue for these tasks, to claim so many jobs, and when time opens a group that is closed.
function candidates.sources(queue, tasks, most)
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
      local source = {
        queue = queue, task = task, gate = gate, group = keys.group(queue, task, gate),
        heads = {}, at = 1, page = math.min(most + 2, PAGE_MAX),
      }
      look(source)
      found[#found + 1] = source
    end
    opens = later and math.min(opens or later, later) or opens
  end
  return found, opens
end

-- The second head of a source that matters before `bound`; if it is not known, the last one that is.
local function second_of(source, bound)
  if not wanted then
    return source.second
  end
  local rank = redis.call('ZRANK', source.group, source.first[2]) + 1
  local second, last = next_wanted(source, rank, bound)
  missed = missed or second == false
  return second or (second == false and (last or source.first)) or nil
end

-- The source whose head comes first, and the entry before which its line may be served. None if
-- there is one whose head is not known.
function candidates.best(all)
  local best, bound
  for _, source in ipairs(all) do
    if source.blind and not source.spent then
      return
    elseif source.first and not source.spent then
      if not best or candidates.before(source.first, best.first) then
        bound = best and best.first
        best = source
      elseif not bound or candidates.before(source.first, bound) then
        bound = source.first
      end
    end
  end
  local second = best and second_of(best, bound)
  if second and (not bound or candidates.before(second, bound)) then
    bound = second
  end
  return best, bound
end

-- The clock makes fences unique even when the last commits were lost; see `lifecycle.next_fence`.
local function next_fence(fence)
  return clock.given and fence + 1 or math.max(fence + 1, clock.now)
end

local function hold_until_us(timeout, deadline)
  return math.min(clock.now + timeout, deadline or math.huge) + POLICY.HOLD_GRACE_US
end

-- Change a job to one that a worker holds.
function candidates.hold(job, worker, default_timeout)
  job.status, job.updated_us, job.started_us, job.worker = PROCESSING, clock.now, clock.now, worker
  job.fence, job.alone = next_fence(job.fence), nil
  job.hold_until_us = hold_until_us(job.timeout_us or default_timeout, job.deadline_us)
end
