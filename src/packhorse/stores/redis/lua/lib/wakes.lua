-- SPDX-License-Identifier: MIT
-- Whom to wake, each once, when the script is done.
local wakes = {}
local woken, topics = {}, {}

function wakes.add(topic)
  if not woken[topic] then
    woken[topic] = true
    topics[#topics + 1] = topic
  end
end

function wakes.queue(queue)
  wakes.add('queue:' .. queue)
end

-- The workers of every queue in which a job of this task is ready, as far as it is known.
function wakes.task(task)
  for _, queue in ipairs(redis.call('SUNION', tag .. ':tq:' .. task, tag .. ':susq:' .. task)) do
    wakes.queue(queue)
  end
end

-- Whoever waits for jobs or for cancels listens to one channel, however many they are.
local function channel(topic)
  if string.sub(topic, 1, 4) == 'job:' then
    return ':wake:job'
  elseif string.sub(topic, 1, 7) == 'cancel:' then
    return ':wake:cancel'
  end
  return ':wake:' .. topic
end

function wakes.flush()
  for _, topic in ipairs(topics) do
    redis.call('PUBLISH', tag .. channel(topic), topic)
  end
end
