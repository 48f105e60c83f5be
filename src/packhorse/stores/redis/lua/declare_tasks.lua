-- SPDX-License-Identifier: MIT
-- Keeps the limits of tasks.
-- Arguments: for each task its name, and its limits as JSON text, "" for none.
-- Answer: for each the text it replaced where that differed, or "".
-- needs: keys clock wakes jobs queues sigs pending lines index
local answer = {}
for at = 2, #ARGV, 2 do
  local task, text = ARGV[at], ARGV[at + 1]
  local before = redis.call('HGET', tag .. ':tasks', task) or ''
  if text == '' then
    redis.call('HDEL', tag .. ':tasks', task)
  else
    redis.call('HSET', tag .. ':tasks', task, text)
  end
  if before ~= text then
    for _, queue in ipairs(redis.call('SMEMBERS', tag .. ':tq:' .. task)) do
      lines.open_all(keys.pair(queue, task))
    end
    wakes.task(task)
  end
  answer[#answer + 1] = before ~= text and before or ''
end
index.flush()
return answer
