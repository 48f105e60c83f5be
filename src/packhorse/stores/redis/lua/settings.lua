-- SPDX-License-Identifier: MIT
-- Settings of queues and tasks; those of an operator override declarations.
-- needs: index journal
local settings = {}

-- What was declared and set, as maps of queue to settings.
function settings.all()
  local configured = {}
  for _, key in ipairs({KEY.declared, KEY.overrides}) do
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

-- The text of the settings in force, or nothing.
function settings.text(queue)
  return redis.call('HGET', tag .. KEY.overrides, queue)
    or redis.call('HGET', tag .. KEY.declared, queue)
end

-- Wake workers and producers after a change of settings: jobs may start, or fit in.
local function changed(queue)
  for _, task in ipairs(redis.call('SMEMBERS', tag .. KEY.ready_tasks .. queue)) do
    lines.open_all(keys.pair(queue, task))
  end
  wakes.queue(queue)
  wakes.add('room:' .. queue)
end

-- Whether settings constrain a queue: `constraints.queue_constraints`.
function settings.constrain(conf)
  for _, name in ipairs(CONSTRAINING) do
    if conf[name] then
      return true
    end
  end
  return false
end

-- Write the settings in force for a queue. `before` is the text that was in force, `plain` that of a
-- queue without settings.
function settings.hold(queue, before, plain)
  local text, shelf = settings.text(queue), queues.get(queue).conf.dead_letter
  if shelf then
    redis.call('SREM', tag .. KEY.shelf .. shelf, queue)
  end
  if text then
    local conf = cjson.decode(text)
    queues.note(queue, 'conf', cmsgpack.pack(conf), 'priority', conf.priority or 0)
    if conf.max_bytes then
      journal.begin(POLICY.SCHEMA)
    else
      redis.call('HDEL', tag .. KEY.queue .. queue, 'weighed')
    end
    if settings.constrain(conf) then -- see `queues.get`
      queues.note(queue, 'hard', '1')
    else
      redis.call('HDEL', tag .. KEY.queue .. queue, 'hard')
    end
    if conf.dead_letter then
      redis.call('SADD', tag .. KEY.shelf .. conf.dead_letter, queue)
    end
  else
    redis.call('HDEL', tag .. KEY.queue .. queue, 'conf', 'hard', 'priority', 'weighed')
    queues.forget(queue)
  end
  if (text or plain) ~= (before or plain) then
    changed(queue)
  end
end

-- The refusal of a bound by bytes while a worker lives that would end jobs without counting them.
function settings.too_early(text)
  local older = cjson.decode(text).max_bytes and journal.older_worker(POLICY.SCHEMA)
  return older and {'older', older}
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
  for _, text in ipairs(redis.call('HVALS', tag .. KEY.tasks)) do
    look(cjson.decode(text).rate)
  end
  return longest
end

-- script: declare
-- Keeps declarations of queues.
-- Arguments: for each queue its name, its settings as JSON text, and that text for a queue with
-- nothing set. Answer: "ok", then for each the text it replaced where that differed, or ""; or
-- "clash" queue shelf, or "older" and a worker.
-- needs: settings
local configured = settings.all()
for at = 2, #ARGV, 3 do
  local early = settings.too_early(ARGV[at + 1])
  if early then
    return early
  end
  if redis.call('HEXISTS', tag .. KEY.overrides, ARGV[at]) == 0 then
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
  local before, held = redis.call('HGET', tag .. KEY.declared, queue), settings.text(queue)
  redis.call('HSET', tag .. KEY.declared, queue, text)
  settings.hold(queue, held, plain)
  answer[#answer + 1] = before and before ~= text and before or ''
end
index.flush()
return answer

-- script: declare_tasks
-- Keeps the limits of tasks.
-- Arguments: for each task its name, and its limits as JSON text, "" for none.
-- Answer: for each the text it replaced where that differed, or "".
-- needs: index
local answer = {}
for at = 2, #ARGV, 2 do
  local task, text = ARGV[at], ARGV[at + 1]
  local before = redis.call('HGET', tag .. KEY.tasks, task) or ''
  if text == '' then
    redis.call('HDEL', tag .. KEY.tasks, task)
  else
    redis.call('HSET', tag .. KEY.tasks, task, text)
  end
  if before ~= text then
    for _, queue in ipairs(redis.call('SMEMBERS', tag .. KEY.task_queues .. task)) do
      lines.open_all(keys.pair(queue, task))
    end
    wakes.task(task)
  end
  answer[#answer + 1] = before ~= text and before or ''
end
index.flush()
return answer

-- script: override
-- Lets an operator's settings hold instead of every declaration, or ends that.
-- Arguments: queue, settings as JSON text or "", that text for a queue with nothing set.
-- Answer: "ok" and 1 if that changed anything, else 0; or "clash" queue shelf, or "older" and a worker.
-- needs: settings
local queue, text, plain = ARGV[2], ARGV[3], ARGV[4]
local before, held = redis.call('HGET', tag .. KEY.overrides, queue) or '', settings.text(queue)
if text == '' then
  redis.call('HDEL', tag .. KEY.overrides, queue)
else
  local configured = settings.all()
  configured[queue] = cjson.decode(text)
  local clash = settings.too_early(text) or settings.clash(configured)
  if clash then
    return clash
  end
  redis.call('HSET', tag .. KEY.overrides, queue, text)
end
settings.hold(queue, held, plain)
index.flush()
return {'ok', before ~= text and 1 or 0}

-- script: reopen
-- Goes on opening groups of lines after a change of settings, where there are very many.
-- Answer: 1 if there are more, else 0.
-- needs: lines
local pair = redis.call('SRANDMEMBER', tag .. KEY.reopen)
if pair then
  lines.open_all(pair)
  wakes.queue((keys.unpair(pair)))
  wakes.flush()
end
return redis.call('EXISTS', tag .. KEY.reopen)

-- script: look_at_waiting
-- Does for the jobs of a queue, some at a time, what a change of its settings needs: enters those that
-- wait into the index of a queue that drops, or counts the bytes of those that have not ended; of all
-- jobs if the queue has no name. For jobs that come meanwhile that is done as they come.
-- Arguments: "sheds" or "weighed", queue, the sequence after which to look. Answer: the sequence to go on
-- after, or "".
-- needs: index
local LOOKED_AT = 500 -- jobs that one script looks at
local flag, queue, after = ARGV[2], ARGV[3], ARGV[4]
local sheds = flag == 'sheds'
if after == '0' then
  if redis.call('HEXISTS', tag .. KEY.queue .. queue, flag) == 1 then
    return ''
  elseif sheds then -- from now on those that come are entered
    queues.note(queue, flag, '1')
    if queues.depth(queue) == 0 then
      return ''
    end
  end
end
local found = redis.call('ZRANGEBYSCORE', tag .. KEY.all, '(' .. after, '+inf', 'WITHSCORES',
  'LIMIT', 0, LOOKED_AT)
for at = 1, #found, 2 do
  local job = jobs.load(found[at])
  if not sheds and (queue == '' or job.queue == queue) then
    index.weigh(job)
  elseif sheds and job.queue == queue and WAITING[job.status] then
    pending.put(tag .. KEY.droppable .. queue, job.priority, keys.numbered(job))
  end
end
pending.flush()
if #found == 2 * LOOKED_AT then
  return found[#found]
elseif not sheds then
  queues.note(queue, flag, '1')
end
return ''
