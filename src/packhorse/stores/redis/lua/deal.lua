-- SPDX-License-Identifier: MIT
-- Deals passes to jobs of a queue that were ready when its first job with a tenant came, so many
-- at a time.
-- Arguments: queue. Answer: 1 if there are more, else 0.
-- needs: keys clock wakes jobs queues sigs pending lines index places
local queue = ARGV[2]
if queues.get(queue).dealing then
  places.deal_on(queue)
else
  places.begin_to_deal(queue)
end
index.flush()
return queues.get(queue).dealing and 1 or 0
