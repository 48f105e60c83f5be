-- SPDX-License-Identifier: MIT
-- Keeping the settings of queues: an operator's beat what was declared.
local settings = {}

-- What was declared and set, as maps of queue to settings.
function settings.all()
  local configured = {}
  for _, key in ipairs({':declared', ':overrides'}) do
    local found = redis.call('HGETALL', tag .. key)
    for at = 1, #found, 2 do
      configured[found[at]] = cjson.decode(found[at + 1])
    end
  end
  return configured
end

-- The queue and its shelf that is a queue as well, if there is one.
function settings.clash(configured)
  for queue, conf in pairs(configured) do
    if conf.dead_letter and configured[conf.dead_letter] then
      return {'clash', queue, conf.dead_letter}
    end
  end
end

-- The text of the settings that hold, or nothing.
function settings.text(queue)
  return redis.call('HGET', tag .. ':overrides', queue)
    or redis.call('HGET', tag .. ':declared', queue)
end

-- Settings that hold have changed: they may let jobs go, or let some in.
local function changed(queue)
  for _, task in ipairs(redis.call('SMEMBERS', tag .. ':t:' .. queue)) do
    lines.open_all(keys.pair(queue, task))
  end
  wakes.queue(queue)
  wakes.add('room:' .. queue)
end

-- Write down what holds for a queue by now. `before` is the text that held, `plain` the text of a
-- queue with nothing set.
function settings.hold(queue, before, plain)
  local text, shelf = settings.text(queue), queues.get(queue).conf.dead_letter
  if shelf then
    redis.call('SREM', tag .. ':shelf:' .. shelf, queue)
  end
  if text then
    local conf = cjson.decode(text)
    queues.note(queue, 'conf', cmsgpack.pack(conf), 'priority', conf.priority or 0)
    if conf.concurrency or conf.rate or conf.tenant_rate or conf.max_depth or conf.ageing_us then
      queues.note(queue, 'hard', '1')
    else
      redis.call('HDEL', tag .. ':q:' .. queue, 'hard')
    end
    if conf.dead_letter then
      redis.call('SADD', tag .. ':shelf:' .. conf.dead_letter, queue)
    end
  else
    redis.call('HDEL', tag .. ':q:' .. queue, 'conf', 'hard', 'priority')
    queues.forget(queue)
  end
  if (text or plain) ~= (before or plain) then
    changed(queue)
  end
end

-- The longest window of a rate limit there is.
function settings.longest_window()
  local longest = 0
  local function look(rule)
    longest = math.max(longest, type(rule) == 'table' and rule.window_us or 0)
  end
  for _, conf in pairs(settings.all()) do
    look(conf.rate)
    look(conf.tenant_rate)
  end
  for _, text in ipairs(redis.call('HVALS', tag .. ':tasks')) do
    look(cjson.decode(text).rate)
  end
  return longest
end
