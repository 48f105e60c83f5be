-- SPDX-License-Identifier: MIT
-- Keeps declarations of queues.
-- Arguments: for each queue its name, its settings as JSON text, and that text for a queue with
-- nothing set. Answer: "ok", then for each the text it replaced where that differed, or ""; or
-- "clash" queue shelf.
-- needs: keys clock wakes jobs queues sigs pending lines index settings
local configured = settings.all()
for at = 2, #ARGV, 3 do
  if redis.call('HEXISTS', tag .. ':overrides', ARGV[at]) == 0 then
    configured[ARGV[at]] = cjson.decode(ARGV[at + 1])
  end
end
local clash = settings.clash(configured)
if clash then
  return clash
end
local answer = {'ok'}
for at = 2, #ARGV, 3 do
  local queue, text, plain = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local before, held = redis.call('HGET', tag .. ':declared', queue), settings.text(queue)
  redis.call('HSET', tag .. ':declared', queue, text)
  settings.hold(queue, held, plain)
  answer[#answer + 1] = before and before ~= text and before or ''
end
index.flush()
return answer
