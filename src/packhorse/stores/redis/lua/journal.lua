-- SPDX-License-Identifier: MIT
-- The journal: lines of groups, by their numbers. A member is `keyed`, so that its definition is read
-- when it ends; others are not looked at.
-- needs: jobs
local journal = {}
local NODE_OF = 'workflow\1' -- how the groups begin whose members wait for each other

-- The text of a job's group and its name there, or nil.
function journal.member(job)
  local options = job.keyed and jobs.definition(job.id)[DEFINITION.options]
  if options and string.find(options, '"member":[', 1, true) then
    return cjson.decode(options).member
  end
end

-- When the record of a job's group expires, math.huge: never; nil: it is not there. The record of a group
-- that has not ended does not expire.
function journal.group_until(job)
  local member = journal.member(job)
  if member and redis.call('EXISTS', tag .. KEY.record .. member[1]) == 1 then
    local expires = redis.call('ZSCORE', tag .. KEY.records_expiring, member[1])
    local ends = expires and tonumber(expires) or math.huge
    return ends > clock.now and ends or nil
  end
end

-- Whether a job has completed and does not run again: nodes of its workflow have its result.
function journal.ran_once(job)
  local member = job.status == COMPLETED and journal.member(job)
  return member and string.sub(member[1], 1, #NODE_OF) == NODE_OF
end

-- A live worker of a release that does not know a layout, until it is needed for the first time; from
-- then on such workers are refused. Of groups: it would end members without a line.
function journal.older_worker(needed)
  if tonumber(redis.call('GET', tag .. KEY.schema) or 0) >= needed then
    return
  end
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', tag .. KEY.leases,
    '(' .. keys.number(clock.now), '+inf')) do
    if (cmsgpack.unpack(redis.call('HGET', tag .. KEY.workers, worker))[7] or 1) < needed then
      return worker
    end
  end
end

-- Note that a layout is needed from now on.
function journal.begin(needed)
  if tonumber(redis.call('GET', tag .. KEY.schema) or 0) < needed then
    redis.call('SET', tag .. KEY.schema, needed)
  end
end

-- Append a line: job, node, status, what it was, items, failed.
function journal.append(group, ...)
  local id = redis.call('INCR', tag .. KEY.journal_numbers)
  redis.call('ZADD', tag .. KEY.journal_lines .. group, keys.number(id), cmsgpack.pack({id, ...}))
  redis.call('ZADD', tag .. KEY.journal, 'NX', keys.number(id), group)
  wakes.add('journal')
end

-- A member ends; it keeps its result as long as its record.
function journal.ended(job, member, was, counted)
  local items, failed = counted and counted[1] or 0, counted and counted[2] or 0
  if counted then
    redis.call('HSET', keys.job(job.id), FIELD.counted, keys.number(items) .. ' ' .. keys.number(failed))
  end
  job.result_keep_us = nil
  journal.append(member[1], job.id, member[2], job.status, was, items, failed)
end

-- A member that had ended goes on; what was counted is taken back.
function journal.resumed(job, member, was)
  local counted = redis.call('HGET', keys.job(job.id), FIELD.counted) or '0 0'
  local items, failed = string.match(counted, '(%d+) (%d+)')
  redis.call('HDEL', keys.job(job.id), FIELD.counted)
  journal.append(member[1], job.id, member[2], job.status, was, tonumber(items), tonumber(failed))
end

-- Which of these lines of a group are not there.
function journal.gone(group, ids)
  local found = {}
  for _, id in ipairs(ids) do
    if redis.call('ZCOUNT', tag .. KEY.journal_lines .. group, id, id) == 0 then
      found[#found + 1] = id
    end
  end
  return found
end

-- Remove lines that are there, and append others.
function journal.fold(group, ids, lines)
  local set = tag .. KEY.journal_lines .. group
  for _, id in ipairs(ids) do
    redis.call('ZREMRANGEBYSCORE', set, id, id)
  end
  local oldest = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
  if oldest then
    redis.call('ZADD', tag .. KEY.journal, oldest, group)
  else
    redis.call('ZREM', tag .. KEY.journal, group)
  end
  for _, line in ipairs(lines) do
    journal.append(group, unpack(line))
  end
end

-- script: journal_groups
-- Arguments: how many at most. Answer: groups with lines, that of the oldest first.
-- needs: keys
return tonumber(ARGV[2]) > 0 and redis.call('ZRANGE', tag .. KEY.journal, 0, ARGV[2] - 1) or {}

-- script: journal
-- Arguments: a group, how many at most. Answer: its oldest lines.
-- needs: keys
return tonumber(ARGV[3]) > 0
  and redis.call('ZRANGE', tag .. KEY.journal_lines .. ARGV[2], 0, ARGV[3] - 1) or {}

-- script: journal_gone
-- Arguments: a group, numbers of lines. Answer: those that are not there.
-- needs: journal
return journal.gone(ARGV[2], {unpack(ARGV, 3)})
