-- SPDX-License-Identifier: MIT
-- Removes finished jobs that a filter means, the oldest first, some of those there are at a time.
-- Arguments: limit, the sequence after which to look, then the filter as JSON text: queue, task,
-- statuses (codes, empty: all), tenant, tag, created_by, dead_reason, dead_letter.
-- Answer: how many were removed, and the sequence to go on after, or -1.
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings
local LOOKED_AT = 500 -- jobs that one script looks at
local TENANT, TAGS, CREATED_BY = 4, 5, 9 -- parts of a definition
local limit, after, chosen = tonumber(ARGV[2]), ARGV[3], cjson.decode(ARGV[4])
local statuses = {}
for _, status in ipairs(chosen.statuses) do
  statuses[status] = true
end

local function has(list, value)
  for _, each in ipairs(list) do
    if each == value then
      return true
    end
  end
  return false
end

-- Whether what the definition tells fits the filter.
local function meant_by_definition(job)
  if not (chosen.tenant or chosen.tag or chosen.created_by) then
    return true
  end
  local definition = jobs.definition(job.id)
  return (not chosen.tenant or definition[TENANT] == chosen.tenant)
    and (not chosen.tag or has(definition[TAGS], chosen.tag))
    and (not chosen.created_by or definition[CREATED_BY] == chosen.created_by)
end

local function meant(job)
  return TERMINAL[job.status]
    and (#chosen.statuses == 0 or statuses[job.status])
    and (not chosen.queue or chosen.queue == job.queue)
    and (not chosen.task or chosen.task == job.task)
    and (not chosen.dead_reason or chosen.dead_reason == job.dead_reason)
    and (not chosen.dead_letter or chosen.dead_letter == job.dead_letter)
    and meant_by_definition(job)
end

local set = (chosen.dead_reason or chosen.dead_letter) and ':dead' or ':all'
local found = redis.call('ZRANGEBYSCORE', tag .. set, '(' .. after, '+inf', 'WITHSCORES',
  'LIMIT', 0, LOOKED_AT)
local removed = 0
for at = 1, #found, 2 do
  if removed == limit then
    break
  end
  local job = jobs.load(found[at])
  if meant(job) then
    endings.forget(job)
    removed = removed + 1
  end
end
index.flush()
return {removed, #found == 2 * LOOKED_AT and found[#found] or -1}
