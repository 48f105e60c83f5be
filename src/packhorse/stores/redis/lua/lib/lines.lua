-- SPDX-License-Identifier: MIT
-- Lines of ready jobs, and groups of lines by the gate that holds them back.
--
-- Jobs that share all their gates stand in one line, in the order of claiming. Of each line only
-- the head stands in a group: the one of the gate that refused it last, or the group "" of lines
-- nothing is known against. `:lm:<pair>` says for each line where its head stands; `:gr:<pair>`
-- when time opens the groups of a queue and task. So a claim never looks at what is behind a head
-- that is held back, nor at heads behind a gate that is closed.
local lines = {}
local REOPENED_MAX = 1000 -- groups that are opened at once
local touched = {}

-- The head of a line with an ordering key: the head of that key's line, if it is a ready one here.
local function head_in_order(queue, task, sig, line)
  local id = redis.call('ZRANGE', sigs.order(queue, sig), 0, 0)[1]
  local job = id and jobs.load(id)
  if not job or job.status ~= QUEUED or job.task ~= task or job.sig ~= sig then
    return
  end
  local member = keys.ranked(job)
  local score = redis.call('ZSCORE', line, member)
  if score then
    return score, member
  end
end

local function head_of(queue, task, sig, line)
  if sigs.read(sig).ordering then
    return head_in_order(queue, task, sig, line)
  end
  local first = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
  return first[2], first[1]
end

-- Say that a group is there, and from when on it is open; '' is open always.
function lines.open_group(queue, task, gate, from)
  local pair = keys.pair(queue, task)
  redis.call('ZADD', tag .. ':gr:' .. pair, from, gate)
  if gate ~= '' then
    redis.call('SADD', tag .. ':gq:' .. gate, pair)
  end
end

local function leave_group(queue, task, gate, member)
  local group = keys.group(queue, task, gate)
  redis.call('ZREM', group, member)
  if redis.call('EXISTS', group) == 0 then
    local pair = keys.pair(queue, task)
    redis.call('ZREM', tag .. ':gr:' .. pair, gate)
    if gate ~= '' then
      redis.call('SREM', tag .. ':gq:' .. gate, pair)
    end
  end
end

local function forget_line(queue, task, sig)
  local pair = keys.pair(queue, task)
  redis.call('HDEL', tag .. ':lm:' .. pair, sig)
  if redis.call('EXISTS', tag .. ':lm:' .. pair) == 0 then
    redis.call('SREM', tag .. ':t:' .. queue, task)
    redis.call('SREM', tag .. ':tq:' .. task, queue)
  end
end

-- Let the head of a line stand where it belongs: in the group it is in, or in `gate` from now on.
-- Returns whether the line has a head.
function lines.place_head(queue, task, sig, gate, from)
  local line, pair = keys.line(queue, task, sig), keys.pair(queue, task)
  local text = redis.call('HGET', tag .. ':lm:' .. pair, sig)
  local old_gate, old_member
  if text then
    old_gate, old_member = cmsgpack.unpack(text)
  end
  local score, member = head_of(queue, task, sig, line)
  local group = gate or old_gate or ''
  if member and member == old_member and group == old_gate then
    return true
  end
  if old_member then
    leave_group(queue, task, old_gate, old_member)
  end
  if member then
    redis.call('ZADD', keys.group(queue, task, group), score, member)
    -- Who comes first has changed, so that what the gate said before may not hold any more.
    lines.open_group(queue, task, group, from or 0)
    redis.call('HSET', tag .. ':lm:' .. pair, sig, cmsgpack.pack(group, member))
  elseif redis.call('EXISTS', line) == 1 then
    redis.call('HSET', tag .. ':lm:' .. pair, sig, cmsgpack.pack(false, false))
  elseif text then
    forget_line(queue, task, sig)
    return false
  end
  if not text then
    redis.call('SADD', tag .. ':t:' .. queue, task)
    redis.call('SADD', tag .. ':tq:' .. task, queue)
  end
  return member ~= nil
end

-- Look at the head of a line again when all has been written.
function lines.touch(job)
  touched[keys.line(job.queue, job.task, job.sig)] = job
end

-- A gate opened: groups of lines it holds back are looked at again.
function lines.open_gate(gate)
  for _, pair in ipairs(redis.call('SMEMBERS', tag .. ':gq:' .. gate)) do
    redis.call('ZADD', tag .. ':gr:' .. pair, 'XX', 0, gate)
  end
end

-- Any gate may have opened: groups of a queue and task are looked at again, so many at a time.
-- `:reopen` names those that have more; `reopen` goes on with them.
function lines.open_all(pair)
  local key = tag .. ':gr:' .. pair
  local closed = redis.call('ZRANGEBYSCORE', key, '(0', '+inf', 'LIMIT', 0, REOPENED_MAX)
  for _, gate in ipairs(closed) do
    redis.call('ZADD', key, 'XX', 0, gate)
  end
  redis.call(#closed == REOPENED_MAX and 'SADD' or 'SREM', tag .. ':reopen', pair)
end

-- Write what follows from the lines that were touched.
function lines.flush()
  for key, job in pairs(touched) do
    touched[key] = nil
    lines.place_head(job.queue, job.task, job.sig)
  end
end
