-- SPDX-License-Identifier: MIT
-- Sets aside ready jobs that no live worker knows, lets go those one knows by now, and gives up
-- those set aside too long.
-- Arguments: after how long, how many of each at most.
-- Answer: the names of tasks newly set aside.
-- needs: keys clock wakes jobs queues sigs pending lines index places holders entering endings
local LOOKED_AT = 10000 -- ready jobs that one script looks at
local after, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local served, known = {}, {}
if limit == 0 then
  return {}
end

-- What live workers serve and know.
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', tag .. ':leases',
  '(' .. keys.number(clock.now), '+inf')) do
  local renewal = cjson.decode(cmsgpack.unpack(redis.call('HGET', tag .. ':workers', worker))[1])
  for _, queue in ipairs(renewal.queues) do
    served[queue] = true
    for _, task in ipairs(renewal.tasks) do
      known[keys.pair(queue, task)] = true
    end
  end
end

local function is_known(queue, task)
  return known[keys.pair(queue, task)] or known[keys.pair(queue, '*')]
end

local function by_sequence(found)
  table.sort(found, function(one, other) return one.seq < other.seq end)
  return found
end

-- The first parked jobs of the (queue, task)s that are wanted, in order of submission.
local function parked(wanted, until_us)
  local found = {}
  for _, pair in ipairs(redis.call('SMEMBERS', tag .. ':pkt')) do
    if wanted(keys.unpair(pair)) then
      for _, id in ipairs(redis.call('ZRANGE', tag .. ':pk:' .. pair, 0, limit - 1)) do
        local job = jobs.load(id)
        if not until_us or job.parked <= until_us then
          found[#found + 1] = job
        end
      end
    end
  end
  return by_sequence(found)
end

local function set_parked(job, since)
  index.leave(job)
  job.parked, job.updated = since, clock.now
  index.enter(job)
  jobs.save(job)
end

for at, job in ipairs(parked(is_known)) do
  if at > limit then
    break
  end
  set_parked(job, nil)
  wakes.queue(job.queue)
end
pending.flush()
local function unknown(queue, task)
  return not is_known(queue, task)
end
for at, job in ipairs(parked(unknown, clock.now - after)) do
  if at > limit then
    break
  end
  endings.finish_waiting(job, DEAD, 'unknown_task')
end
pending.flush()
lines.flush()

-- Ready jobs of one queue and task, at most `limit` of each of at most `limit` lines.
local function ready(queue, task, found)
  local pair = keys.pair(queue, task)
  local sources = {tag .. ':sus:' .. pair, tag .. ':late:' .. pair}
  for at, sig in ipairs(redis.call('HRANDFIELD', tag .. ':lm:' .. pair, limit)) do
    sources[at + 2] = keys.line(queue, task, sig)
  end
  for _, source in ipairs(sources) do
    local most = math.min(limit, LOOKED_AT - #found)
    for _, member in ipairs(most > 0 and redis.call('ZRANGE', source, 0, most - 1) or {}) do
      found[#found + 1] = jobs.load(keys.ranked_id(member))
    end
  end
end

local found, names = {}, {}
for queue in pairs(served) do
  for _, task in ipairs(redis.call('SUNION', tag .. ':t:' .. queue,
    tag .. ':sust:' .. queue, tag .. ':latet:' .. queue)) do
    if not is_known(queue, task) then
      ready(queue, task, found)
    end
  end
end
for at, job in ipairs(by_sequence(found)) do
  if at > limit then
    break
  end
  set_parked(job, clock.now)
  names[job.task] = true
end
index.flush()
local told = {}
for name in pairs(names) do
  told[#told + 1] = name
end
table.sort(told)
return told
