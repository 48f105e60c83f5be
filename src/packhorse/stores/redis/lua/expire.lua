-- SPDX-License-Identifier: MIT
-- Gives up waiting jobs whose deadline has passed.
-- Arguments: how many at most. Answer: how many.
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings
local overdue = redis.call('ZRANGEBYSCORE', tag .. ':dl', '-inf', keys.number(clock.now),
  'LIMIT', 0, ARGV[2])
for _, member in ipairs(overdue) do
  endings.finish_waiting(jobs.load(keys.numbered_id(member)), DEAD, 'expired')
end
index.flush()
return #overdue
