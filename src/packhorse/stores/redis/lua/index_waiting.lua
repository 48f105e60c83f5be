-- SPDX-License-Identifier: MIT
-- Enters the waiting jobs of a queue into the index of a queue that drops, some at a time; the
-- jobs that come meanwhile are entered as they come.
-- Arguments: queue, the sequence after which to look. Answer: the sequence to go on after, or "".
-- needs: keys clock jobs queues pending
local LOOKED_AT = 500 -- jobs that one script looks at
local queue, after = ARGV[2], ARGV[3]
if after == '0' then
  if queues.get(queue).sheds then
    return ''
  end
  queues.note(queue, 'sheds', '1')
  if queues.depth(queue) == 0 then
    return ''
  end
end
local found = redis.call('ZRANGEBYSCORE', tag .. ':all', '(' .. after, '+inf', 'WITHSCORES',
  'LIMIT', 0, LOOKED_AT)
for at = 1, #found, 2 do
  local job = jobs.load(found[at])
  if job.queue == queue and WAITING[job.status] then
    pending.put(tag .. ':shed:' .. queue, job.priority, keys.numbered(job))
  end
end
pending.flush()
return #found == 2 * LOOKED_AT and found[#found] or ''
