-- SPDX-License-Identifier: MIT
-- Lets an operator's settings hold instead of every declaration, or ends that.
-- Arguments: queue, settings as JSON text or "", that text for a queue with nothing set.
-- Answer: "ok" and 1 if that changed anything, else 0; or "clash" queue shelf.
-- needs: keys clock wakes jobs queues sigs pending lines index settings
local queue, text, plain = ARGV[2], ARGV[3], ARGV[4]
local before, held = redis.call('HGET', tag .. ':overrides', queue) or '', settings.text(queue)
if text == '' then
  redis.call('HDEL', tag .. ':overrides', queue)
else
  local configured = settings.all()
  configured[queue] = cjson.decode(text)
  local clash = settings.clash(configured)
  if clash then
    return clash
  end
  redis.call('HSET', tag .. ':overrides', queue, text)
end
settings.hold(queue, held, plain)
index.flush()
return {'ok', before ~= text and 1 or 0}
