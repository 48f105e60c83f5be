-- SPDX-License-Identifier: MIT
-- Reads all that is known of queues: flags of those that have some, declarations, an operator's
-- settings, the statuses that jobs stand in, and the gates that somebody paused.
-- needs: keys
local flags = {}
for _, queue in ipairs(redis.call('SMEMBERS', tag .. ':queues')) do
  local found = redis.call('HMGET', tag .. ':q:' .. queue, 'paused', 'closed')
  flags[#flags + 1] = {queue, found[1], found[2]}
end
return {
  flags,
  redis.call('HGETALL', tag .. ':declared'),
  redis.call('HGETALL', tag .. ':overrides'),
  redis.call('HKEYS', tag .. ':counts'),
  redis.call('SMEMBERS', tag .. ':pauses'),
}
