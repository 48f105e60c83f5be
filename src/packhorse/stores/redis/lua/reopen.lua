-- SPDX-License-Identifier: MIT
-- Goes on opening groups of lines after a change of settings, where there are very many.
-- Answer: 1 if there are more, else 0.
-- needs: keys clock wakes jobs queues sigs pending lines
local pair = redis.call('SRANDMEMBER', tag .. ':reopen')
if pair then
  lines.open_all(pair)
  wakes.queue((keys.unpair(pair)))
  wakes.flush()
end
return redis.call('EXISTS', tag .. ':reopen')
