-- SPDX-License-Identifier: MIT
-- Makes due jobs ready, in every queue that has some.
-- Arguments: how many of each queue at most. Answer: how many.
-- needs: keys clock wakes jobs queues sigs pending lines index places promoting
local promoted = 0
for _, queue in ipairs(redis.call('SMEMBERS', tag .. ':dueq')) do
  local count = promoting.promote(queue, tonumber(ARGV[2]))
  promoted = promoted + count
  if count > 0 then
    wakes.queue(queue)
  end
end
index.flush()
return promoted
