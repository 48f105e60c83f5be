-- SPDX-License-Identifier: MIT
-- Making due jobs ready.
local promoting = {}

-- Make due jobs of a queue ready, in (due, sequence) order; says how many.
function promoting.promote(queue, limit)
  local due = redis.call('ZRANGEBYSCORE', tag .. ':due:' .. queue, '-inf',
    keys.number(clock.now), 'LIMIT', 0, limit)
  for _, member in ipairs(due) do
    local job = jobs.load(keys.numbered_id(member))
    index.leave(job)
    job.status, job.updated = QUEUED, clock.now
    if not job.place then
      places.take(job)
    end
    index.enter(job)
    jobs.save(job)
  end
  return #due
end

-- When the next waiting job of a queue is due, if any is.
function promoting.next_due(queue)
  local first = redis.call('ZRANGE', tag .. ':due:' .. queue, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2])
end
