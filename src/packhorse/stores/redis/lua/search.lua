-- SPDX-License-Identifier: MIT
-- Looks at some jobs, newest first, and shows those a filter means: the instant, the number of the
-- last one looked at (none: there are no more), and the jobs.
-- needs: keys clock jobs
local chosen, below = cjson.decode(ARGV[2]), ARGV[3]
local wanted, looked_at = tonumber(ARGV[4]), tonumber(ARGV[5])
local statuses, only_dead = nil, false
if chosen.statuses then
  statuses, only_dead = {}, true
  for _, status in ipairs(chosen.statuses) do
    statuses[status] = true
    only_dead = only_dead and status == DEAD
  end
end

local function has_tag(definition)
  for _, known in ipairs(definition[5]) do
    if known == chosen.tag then
      return true
    end
  end
  return false
end

local function is_meant(job, definition)
  return (not statuses or statuses[job.status])
    and (not chosen.queue or chosen.queue == job.queue)
    and (not chosen.task or chosen.task == job.task)
    and (not chosen.dead_reason or chosen.dead_reason == job.dead_reason)
    and (not chosen.dead_letter or chosen.dead_letter == job.dead_letter)
    and (not chosen.tenant or chosen.tenant == definition[4])
    and (not chosen.created_by or chosen.created_by == definition[9])
    and (not chosen.tag or has_tag(definition))
end

local found = redis.call('ZREVRANGEBYSCORE', tag .. (only_dead and ':dead' or ':all'),
  below == '' and '+inf' or '(' .. below, '-inf', 'WITHSCORES', 'LIMIT', 0, looked_at)
local shown = {}
for at = 1, #found, 2 do
  local id = found[at]
  local job = jobs.load(id)
  if job and is_meant(job, jobs.definition(id)) then
    shown[#shown + 1] = {id, found[at + 1], redis.call('HMGET', keys.job(id), unpack(ARGV, 6))}
    if #shown == wanted then
      return {clock.now, found[at + 1], shown}
    end
  end
end
return {clock.now, #found == 2 * looked_at and found[#found] or false, shown}
