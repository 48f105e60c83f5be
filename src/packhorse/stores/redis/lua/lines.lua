-- SPDX-License-Identifier: MIT
-- Lines of ready jobs, and groups of lines by the gate that holds them back.
--
-- Jobs that share all their gates stand in one line, in the order of claiming. Of each line only
-- the head stands in a group: the one of the gate that refused it last, or the group "" of lines
-- nothing is known against. KEY.heads says for each line where its head stands, KEY.groups when
-- time opens the groups of a queue and task. So a claim never looks at what is behind a head
-- that is held back, nor at heads behind a gate that is closed.
-- needs: queues
local lines = {}
local REOPENED_MAX = 1000 -- groups that are opened at once
local touched = {}

-- The head of a line with an ordering key: the head of that key's line, if it is a ready one here.
local function head_in_order(queue, task, signature, line)
  local id = redis.call('ZRANGE', signatures.order(queue, signature), 0, 0)[1]
  local job = id and jobs.load(id)
  if not job or job.status ~= QUEUED or job.task ~= task or job.signature ~= signature then
    return
  end
  local member = keys.ranked(job)
  local score = redis.call('ZSCORE', line, member)
  if score then
    return score, member
  end
end

local function head_of(queue, task, signature, line)
  if signatures.read(signature).ordering then
    return head_in_order(queue, task, signature, line)
  end
  local first = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
  return first[2], first[1]
end

-- Add a group that is open from an instant on; '' is open always.
function lines.open_group(queue, task, gate, from)
  local pair = keys.pair(queue, task)
  redis.call('ZADD', tag .. KEY.groups .. pair, from, gate)
  if gate ~= '' then
    redis.call('SADD', tag .. KEY.gate_pairs .. gate, pair)
  end
end

local function leave_group(queue, task, gate, member)
  local group = keys.group(queue, task, gate)
  redis.call('ZREM', group, member)
  if redis.call('EXISTS', group) == 0 then
    local pair = keys.pair(queue, task)
    redis.call('ZREM', tag .. KEY.groups .. pair, gate)
    if gate ~= '' then
      redis.call('SREM', tag .. KEY.gate_pairs .. gate, pair)
    end
  end
end

local function forget_line(queue, task, signature)
  local pair = keys.pair(queue, task)
  redis.call('HDEL', tag .. KEY.heads .. pair, signature)
  if redis.call('EXISTS', tag .. KEY.heads .. pair) == 0 then
    redis.call('SREM', tag .. KEY.ready_tasks .. queue, task)
    redis.call('SREM', tag .. KEY.task_queues .. task, queue)
  end
end

-- Write which job heads a line, or that none does: in the group it is in, or in that of `gate` from
-- now on. Returns whether the line has a head.
function lines.place(queue, task, signature, line, score, member, gate, from)
  local pair = keys.pair(queue, task)
  local text = redis.call('HGET', tag .. KEY.heads .. pair, signature)
  local old_gate, old_member
  if text then
    old_gate, old_member = cmsgpack.unpack(text)
  end
  local group = gate or old_gate or ''
  if member and member == old_member and group == old_gate then
    return true
  end
  if old_member then
    leave_group(queue, task, old_gate, old_member)
  end
  if member then
    redis.call('ZADD', keys.group(queue, task, group), score, member)
    -- The head has changed, so the gate must be asked again.
    lines.open_group(queue, task, group, from or 0)
    redis.call('HSET', tag .. KEY.heads .. pair, signature, cmsgpack.pack(group, member))
  elseif redis.call('EXISTS', line) == 1 then
    redis.call('HSET', tag .. KEY.heads .. pair, signature, cmsgpack.pack(false, false))
  elseif text then
    forget_line(queue, task, signature)
    return false
  end
  if not text then
    redis.call('SADD', tag .. KEY.ready_tasks .. queue, task)
    redis.call('SADD', tag .. KEY.task_queues .. task, queue)
  end
  return member ~= nil
end

-- Find the head of a line, and place it.
function lines.place_head(queue, task, signature, gate, from)
  local line = keys.line(queue, task, signature)
  local score, member = head_of(queue, task, signature, line)
  return lines.place(queue, task, signature, line, score, member, gate, from)
end

-- Update the head of a job's line at the next flush.
function lines.touch(job)
  touched[keys.line(job.queue, job.task, job.signature)] = job
end

-- Let claims look at the lines that a gate held back.
function lines.open_gate(gate)
  for _, pair in ipairs(redis.call('SMEMBERS', tag .. KEY.gate_pairs .. gate)) do
    redis.call('ZADD', tag .. KEY.groups .. pair, 'XX', 0, gate)
  end
end

-- Let claims look at every line of a queue and task, so many groups at a time. KEY.reopen names the
-- pairs that have more; the script `reopen` goes on with them.
function lines.open_all(pair)
  local key = tag .. KEY.groups .. pair
  local closed = redis.call('ZRANGEBYSCORE', key, '(0', '+inf', 'LIMIT', 0, REOPENED_MAX)
  for _, gate in ipairs(closed) do
    redis.call('ZADD', key, 'XX', 0, gate)
  end
  redis.call(#closed == REOPENED_MAX and 'SADD' or 'SREM', tag .. KEY.reopen, pair)
end

-- Update the heads of the lines that were touched.
function lines.flush()
  for key, job in pairs(touched) do
    touched[key] = nil
    lines.place_head(job.queue, job.task, job.signature)
  end
end
