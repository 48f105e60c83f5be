-- SPDX-License-Identifier: MIT
-- Settings of queues and tasks, each read once a script; pausing and closing queues.
-- needs: jobs
local queues = {}
local known_queues, known_tasks = {}, {}

-- The settings and flags of a queue. It is constrained when its jobs need the general routes: it has
-- limits or ageing, deals passes to tenants, or keeps an index of what it may drop.
function queues.get(queue)
  local known = known_queues[queue]
  if not known then
    local found = redis.call('HMGET', tag .. KEY.queue .. queue,
      'conf', 'paused', 'closed', 'tenanted', 'sheds', 'dealing', 'hard')
    known = {
      conf = found[1] and cmsgpack.unpack(found[1]) or {},
      paused = found[2] == '1',
      closed = found[3] == '1',
      tenanted = found[4] == '1',
      sheds = found[5] == '1',
      dealing = found[6] and true or false,
      constrained = (found[4] or found[5] or found[7]) and true or false,
    }
    known_queues[queue] = known
  end
  return known
end

-- The bytes that jobs of a queue may have, or of the store, which is the queue without a name.
function queues.bounds_bytes(queue)
  return queues.get(queue).conf.max_bytes or queues.get('').conf.max_bytes
end

-- The bytes that jobs of a queue or of the store have.
function queues.held_bytes(queue)
  return tonumber(redis.call('HGET', tag .. KEY.bytes, queue) or 0)
end

-- Forget what was read, since it was changed.
function queues.forget(queue)
  known_queues[queue] = nil
end

-- The limits of a task, or false.
function queues.task(task)
  local known = known_tasks[task]
  if known == nil then
    local text = redis.call('HGET', tag .. KEY.tasks, task)
    known = text and cjson.decode(text) or false
    known_tasks[task] = known
  end
  return known
end

-- Write fields of a queue, and let lists of queues name it.
function queues.note(queue, ...)
  redis.call('HSET', tag .. KEY.queue .. queue, ...)
  redis.call('SADD', tag .. KEY.queues, queue)
  known_queues[queue] = nil
end

-- How many jobs of a queue are in one status.
function queues.count(queue, status)
  return tonumber(redis.call('HGET', tag .. KEY.counts, keys.count(queue, status)) or 0)
end

-- How many jobs wait in a queue, without those that wait in a step of their handler.
function queues.depth(queue)
  local depth = 0 - tonumber(redis.call('HGET', tag .. KEY.suspended, queue) or 0)
  for status in pairs(WAITING) do
    depth = depth + queues.count(queue, status)
  end
  return depth
end

-- When the next waiting job of a queue is due, if any is.
function queues.next_due(queue)
  local first = redis.call('ZRANGE', tag .. KEY.due .. queue, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2])
end

-- script: pause
-- Pauses or resumes a queue, or one of its keys or tenants.
-- Arguments: queue, 1 to pause or 0 to resume, and "" or the gate of the key or tenant.
-- Answer: 1 if that changed anything, else 0.
-- needs: index
local queue, paused, gate = ARGV[2], ARGV[3] == '1', ARGV[4]
local changed
if gate == '' then
  changed = queues.get(queue).paused ~= paused
  if changed and paused then
    queues.note(queue, 'paused', '1')
  elseif changed then
    redis.call('HDEL', tag .. KEY.queue .. queue, 'paused')
  end
else
  changed = (redis.call('HEXISTS', tag .. KEY.closed_gates, gate) == 1) ~= paused
  if changed and paused then
    redis.call('HSET', tag .. KEY.closed_gates, gate, '')
    redis.call('SADD', tag .. KEY.pauses, gate)
    redis.call('SADD', tag .. KEY.queues, queue)
  elseif changed then
    redis.call('HDEL', tag .. KEY.closed_gates, gate)
    redis.call('SREM', tag .. KEY.pauses, gate)
    lines.open_gate(gate)
  end
end
if changed and not paused then
  wakes.queue(queue)
end
index.flush()
return changed and 1 or 0

-- script: close_queue
-- Refuses or takes new jobs for a queue.
-- Arguments: queue, 1 to close or 0 to open. Answer: 1 if that changed anything, else 0.
-- needs: queues
local queue, closed = ARGV[2], ARGV[3] == '1'
if queues.get(queue).closed == closed then
  return 0
elseif closed then
  queues.note(queue, 'closed', '1')
else
  redis.call('HDEL', tag .. KEY.queue .. queue, 'closed')
end
return 1

-- script: depth
-- Counts the jobs that wait in a queue.
-- needs: queues
return queues.depth(ARGV[2])

-- script: queues
-- Reads all that is known of queues: flags of those that have some, declarations, an operator's
-- settings, the statuses of their jobs, paused gates, and bytes.
-- needs: keys
local flags = {}
for _, queue in ipairs(redis.call('SMEMBERS', tag .. KEY.queues)) do
  local found = redis.call('HMGET', tag .. KEY.queue .. queue, 'paused', 'closed')
  flags[#flags + 1] = {queue, found[1], found[2]}
end
return {
  flags,
  redis.call('HGETALL', tag .. KEY.declared),
  redis.call('HGETALL', tag .. KEY.overrides),
  redis.call('HKEYS', tag .. KEY.counts),
  redis.call('SMEMBERS', tag .. KEY.pauses),
  redis.call('HGETALL', tag .. KEY.bytes),
}

-- script: tasks
-- Reads the limits of every task that has some.
-- needs: keys
return redis.call('HGETALL', tag .. KEY.tasks)
