-- SPDX-License-Identifier: MIT
-- What queues and tasks are set to, each read once a script.
local queues = {}
local known_queues, known_tasks = {}, {}

-- The settings that hold for a queue, and how it stands.
function queues.get(queue)
  local known = known_queues[queue]
  if not known then
    local found = redis.call('HMGET', tag .. ':q:' .. queue,
      'conf', 'paused', 'closed', 'tenanted', 'sheds', 'dealing')
    known = {
      conf = found[1] and cmsgpack.unpack(found[1]) or {},
      paused = found[2] == '1',
      closed = found[3] == '1',
      tenanted = found[4] == '1',
      sheds = found[5] == '1',
      dealing = found[6] and true or false,
    }
    known_queues[queue] = known
  end
  return known
end

-- Forget what was read, since it was changed.
function queues.forget(queue)
  known_queues[queue] = nil
end

-- The limits of a task, or false.
function queues.task(task)
  local known = known_tasks[task]
  if known == nil then
    local text = redis.call('HGET', tag .. ':tasks', task)
    known = text and cjson.decode(text) or false
    known_tasks[task] = known
  end
  return known
end

-- Say that something is known of a queue, so that lists of queues name it.
function queues.note(queue, ...)
  redis.call('HSET', tag .. ':q:' .. queue, ...)
  redis.call('SADD', tag .. ':queues', queue)
  known_queues[queue] = nil
end

-- How many jobs of a queue stand in one status.
function queues.count(queue, status)
  return tonumber(redis.call('HGET', tag .. ':counts', status .. ':' .. queue) or 0)
end

-- How many jobs wait in a queue.
function queues.depth(queue)
  local found = redis.call('HMGET', tag .. ':counts', '0:' .. queue, '1:' .. queue,
    '4:' .. queue, '6:' .. queue)
  return (found[1] or 0) + (found[2] or 0) + (found[3] or 0) + (found[4] or 0)
end
