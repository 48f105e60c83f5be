-- SPDX-License-Identifier: MIT
-- Refuses or takes new jobs for a queue.
-- Arguments: queue, 1 to close or 0 to open. Answer: 1 if that changed anything, else 0.
-- needs: keys clock queues
local queue, closed = ARGV[2], ARGV[3] == '1'
if queues.get(queue).closed == closed then
  return 0
elseif closed then
  queues.note(queue, 'closed', '1')
else
  redis.call('HDEL', tag .. ':q:' .. queue, 'closed')
end
return 1
