-- SPDX-License-Identifier: MIT
-- Stops or goes on giving out a queue's jobs, or those of one of its keys or tenants.
-- Arguments: queue, 1 to pause or 0 to go on, and "" or the gate of the key or tenant.
-- Answer: 1 if that changed anything, else 0.
-- needs: keys clock wakes jobs queues sigs pending lines index
local queue, paused, gate = ARGV[2], ARGV[3] == '1', ARGV[4]
local changed
if gate == '' then
  changed = queues.get(queue).paused ~= paused
  if changed and paused then
    queues.note(queue, 'paused', '1')
  elseif changed then
    redis.call('HDEL', tag .. ':q:' .. queue, 'paused')
  end
else
  changed = (redis.call('HEXISTS', tag .. ':shut', gate) == 1) ~= paused
  if changed and paused then
    redis.call('HSET', tag .. ':shut', gate, '')
    redis.call('SADD', tag .. ':pauses', gate)
    redis.call('SADD', tag .. ':queues', queue)
  elseif changed then
    redis.call('HDEL', tag .. ':shut', gate)
    redis.call('SREM', tag .. ':pauses', gate)
    lines.open_gate(gate)
  end
end
if changed and not paused then
  wakes.queue(queue)
end
index.flush()
return changed and 1 or 0
