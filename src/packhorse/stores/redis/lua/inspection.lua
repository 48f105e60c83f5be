-- SPDX-License-Identifier: MIT
-- Reading jobs and counts. A filter fits a job when every part of it that is given does.
-- needs: jobs
local filters = {}

local function has(list, value)
  for _, each in ipairs(list) do
    if each == value then
      return true
    end
  end
  return false
end

-- Whether the definition fits a filter; it is read only if the filter needs it.
local function fits_definition(chosen, job)
  if not (chosen.tenant or chosen.tag or chosen.created_by) then
    return true
  end
  local definition = jobs.definition(job.id)
  return (not chosen.tenant or definition[DEFINITION.tenant] == chosen.tenant)
    and (not chosen.tag or has(definition[DEFINITION.tags], chosen.tag))
    and (not chosen.created_by or definition[DEFINITION.created_by] == chosen.created_by)
end

local function fits_id(part, id)
  return string.sub(id, 1, #part) == part or string.sub(id, -#part) == part
end

-- The filter from its JSON text: the parts of `JobFilter` that are given, statuses as codes.
function filters.read(text)
  local chosen = cjson.decode(text)
  chosen.only_dead = chosen.dead_reason or chosen.dead_letter
    or (chosen.statuses and #chosen.statuses == 1 and chosen.statuses[1] == DEAD)
  return chosen
end

function filters.fits(chosen, job)
  return (not chosen.statuses or has(chosen.statuses, job.status))
    and (not chosen.queue or chosen.queue == job.queue)
    and (not chosen.task or chosen.task == job.task)
    and (not chosen.dead_reason or chosen.dead_reason == job.dead_reason)
    and (not chosen.dead_letter or chosen.dead_letter == job.dead_letter)
    and (not chosen.created_before_us or job.created_us < chosen.created_before_us)
    and (not chosen.id_part or fits_id(chosen.id_part, job.id))
    and fits_definition(chosen, job)
end

-- Jobs that run, or are not due yet, may be few and old: then all of them are found by their sets.
local FEW = 2000
local WAITS = {[PENDING] = true, [FAILED] = true, [TIMEOUT] = true}

-- The sets that have all jobs of these statuses, or nil; of a member, the id.
local function sets_of(statuses)
  local found = {}
  for _, status in ipairs(statuses or {}) do
    if status == PROCESSING then
      for _, worker in ipairs(redis.call('SMEMBERS', tag .. KEY.holders)) do
        found[tag .. KEY.held .. worker] = function(member) return member end
      end
    elseif WAITS[status] then
      for _, queue in ipairs(redis.call('SMEMBERS', tag .. KEY.due_queues)) do
        found[tag .. KEY.due .. queue] = keys.numbered_id
      end
    else
      return nil
    end
  end
  return statuses and found
end

-- The newest `most` jobs below a number that these sets have: id, number, ...; nil: they are many.
local function newest_of(sets, below, most)
  local count, found = 0, {}
  for set in pairs(sets) do
    count = count + redis.call('ZCARD', set)
  end
  if count > FEW then
    return nil
  end
  for set, id_of in pairs(sets) do
    for _, member in ipairs(redis.call('ZRANGE', set, 0, FEW - 1)) do
      local number = tonumber(redis.call('ZSCORE', tag .. KEY.all, id_of(member)))
      if number and (below == '' or number < tonumber(below)) then
        found[#found + 1] = {id_of(member), number}
      end
    end
  end
  table.sort(found, function(one, other) return one[2] > other[2] end)
  local flat = {}
  for at = 1, math.min(#found, most) do
    flat[2 * at - 1], flat[2 * at] = found[at][1], keys.number(found[at][2])
  end
  return flat
end

-- The jobs that a search looks at next, newest first: id, number, ...
function filters.newest(chosen, below, most)
  local sets = sets_of(chosen.statuses)
  return sets and newest_of(sets, below, most)
    or redis.call('ZREVRANGEBYSCORE', tag .. (chosen.only_dead and KEY.dead or KEY.all),
      below == '' and '+inf' or '(' .. below, '-inf', 'WITHSCORES', 'LIMIT', 0, most)
end

-- script: job
-- Reads one job: the instant, and the fields asked for.
-- needs: keys
return {clock.now, redis.call('HMGET', keys.job(ARGV[2]), unpack(ARGV, 3))}

-- script: history
-- Reads the lines of a job's history that are kept: the first ones and the last ones.
-- needs: jobs
local id, each_end = ARGV[2], tonumber(ARGV[3])
local job = jobs.load(id)
if not job or job.attempts == 0 then
  return {}
end
local names = {}
for attempt = 1, math.min(job.attempts, each_end) do
  names[#names + 1] = FIELD.attempt .. attempt
end
for attempt = math.max(each_end, job.attempts - each_end) + 1, job.attempts do
  names[#names + 1] = FIELD.attempt .. keys.number(attempt)
end
return redis.call('HMGET', keys.job(id), unpack(names))

-- script: search
-- Looks at some jobs, newest first, and shows those a filter means: the instant, the number of the
-- last one looked at (none: there are no more), and the jobs.
-- needs: inspection
local chosen, below = filters.read(ARGV[2]), ARGV[3]
local wanted, looked_at = tonumber(ARGV[4]), tonumber(ARGV[5])
local found = filters.newest(chosen, below, looked_at)
local shown = {}
for at = 1, #found, 2 do
  local id = found[at]
  local job = jobs.load(id)
  if job and filters.fits(chosen, job) then
    shown[#shown + 1] = {id, found[at + 1], redis.call('HMGET', keys.job(id), unpack(ARGV, 6))}
    if #shown == wanted then
      return {clock.now, found[at + 1], shown}
    end
  end
end
return {clock.now, #found == 2 * looked_at and found[#found] or false, shown}

-- script: counts
-- Counts jobs per queue and status, and finds since when the first ready one of each priority of
-- each queue waits: queue, priority, instant; then how many of each queue wait in a step.
-- needs: jobs
local counts = redis.call('HGETALL', tag .. KEY.counts)
local LEVELS = 5
local APART_MAX = 10000 -- jobs of a queue that stand in no plain line and are looked at

local function note(oldest, job)
  oldest[job.priority] = math.min(oldest[job.priority] or job.ready_us, job.ready_us)
end

-- Jobs of plain lines stand in the order of becoming ready.
local function look_at_lines(queue, oldest)
  for _, task in ipairs(redis.call('SMEMBERS', tag .. KEY.ready_tasks .. queue)) do
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
  local apart = redis.call('ZRANGE', tag .. KEY.since .. queue, 0, APART_MAX - 1)
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

local waiting = {}
for at = 1, #counts, 2 do
  local queue = string.match(counts[at], '^' .. keys.count('(.*)', QUEUED) .. '$')
  if queue then
    local oldest = {}
    look_at_lines(queue, oldest)
    look_apart(queue, oldest)
    for level, since in pairs(oldest) do
      waiting[#waiting + 1] = {queue, level, since}
    end
  end
end
return {counts, waiting, redis.call('HGETALL', tag .. KEY.suspended)}
