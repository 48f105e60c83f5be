-- SPDX-License-Identifier: MIT
-- Ends a worker's lease at once, and releases what it holds.
-- Arguments: worker. Answer: how many were released, 1 if there are more.
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings
local RELEASED_MAX = 1000 -- jobs that one script releases
local worker = ARGV[2]
redis.call('ZREM', tag .. ':leases', worker)
redis.call('HDEL', tag .. ':workers', worker)
local held = redis.call('ZRANGE', tag .. ':held:' .. worker, 0, RELEASED_MAX - 1)
for _, id in ipairs(held) do
  endings.release(jobs.load(id))
end
index.flush()
return {#held, #held == RELEASED_MAX and 1 or 0}
