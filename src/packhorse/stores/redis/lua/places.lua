-- SPDX-License-Identifier: MIT
-- Places and passes of jobs that become ready: ports of `policies.fairness`.
-- needs: index
local places = {}
local PRIORITY_MAX = 4
local DEALT_AT_ONCE = 1000 -- ready jobs that one script deals passes to

-- Draw numbers for sequences, places or lines; returns the first of them.
function places.numbers(count)
  return redis.call('INCRBY', tag .. KEY.numbers, count) - count + 1
end

-- The virtual time of a share: the pass of its first ready job, or the highest ever given.
local function virtual_time(share)
  pending.write(tag .. KEY.passes .. share)
  pending.write(tag .. KEY.running_passes .. share)
  local first = redis.call('ZRANGE', tag .. KEY.passes .. share, 0, 0, 'WITHSCORES')[2]
  if not first then
    return tonumber(redis.call('HGET', tag .. KEY.highest_pass, share) or 0)
  end
  local running = redis.call('ZREVRANGE', tag .. KEY.running_passes .. share, 0, 0, 'WITHSCORES')[2]
  return math.max(tonumber(first), tonumber(running or 0))
end

-- Write a number to a field of a hash, unless a higher one is there.
function places.raise(key, field, value)
  if value > tonumber(redis.call('HGET', key, field) or -1) then
    redis.call('HSET', key, field, keys.number(value))
  end
end

local function remember(share, tenant, given)
  redis.call('HSET', tag .. KEY.last_pass .. share, tenant, given)
  places.raise(tag .. KEY.highest_pass, share, given)
end

-- Whether a queue deals passes.
local function deals(queue)
  local conf = queue.conf
  return conf.fair ~= false and not conf.ageing_us
end

local function next_pass(job)
  local queue = queues.get(job.queue)
  if not queue.tenanted or not deals(queue) then
    return 0
  end
  local share, tenant = job.priority .. ':' .. job.queue, signatures.read(job.signature).tenant
  local given = virtual_time(share)
  local last = redis.call('HGET', tag .. KEY.last_pass .. share, tenant)
  if last then
    local weight = queue.conf.weights and queue.conf.weights[tenant] or 1
    given = math.max(given, tonumber(last) + math.floor(POLICY.STRIDE / weight))
  end
  remember(share, tenant, given)
  return given
end

-- Give a ready job its place behind all others, and in a fair queue its tenant's next pass.
-- `place` is a number that was drawn for it, if any.
function places.take(job, place)
  local ageing = queues.get(job.queue).conf.ageing_us
  job.place, job.ready_us = place or places.numbers(1), clock.now
  job.pass_number = next_pass(job)
  job.rank = ageing and job.ready_us + job.priority * ageing or job.priority
end

-- Where ready jobs with a place after `after` stand: {place, id}, the first `limit` by place, from
-- the unconstrained lines and from KEY.since, which has all others.
local function ready_after(queue, after, limit)
  local found = {}
  local since = redis.call('ZRANGEBYSCORE', tag .. KEY.since .. queue,
    '(' .. keys.number(after), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  for at = 1, #since, 2 do
    found[#found + 1] = {tonumber(since[at + 1]), since[at]}
  end
  for _, task in ipairs(redis.call('SMEMBERS', tag .. KEY.ready_tasks .. queue)) do
    for priority = 0, PRIORITY_MAX do
      -- The first that was dealt a pass has pass 0 like those to come.
      local members = redis.call('ZRANGEBYSCORE', keys.line(queue, task, ''), priority, priority,
        'LIMIT', 0, limit + 1)
      for _, member in ipairs(members) do
        local place = keys.ranked_place(member)
        if string.sub(member, 1, 2) == 'a0' and place > after then
          found[#found + 1] = {place, keys.ranked_id(member)}
        end
      end
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  return found
end

-- Deal a pass to a job that was ready before its queue had tenants.
local function redeal(job, indexes)
  local share = job.priority .. ':' .. job.queue
  local at = indexes[share] or tonumber(redis.call('HGET', tag .. KEY.dealt, share) or 0)
  indexes[share] = at + 1
  local given = math.min(at, POLICY.REDEALT_MAX) * POLICY.STRIDE
  index.leave(job)
  job.pass_number = given
  index.enter(job)
  jobs.save(job)
  remember(share, '', given)
end

-- Deal passes to some of the jobs that were ready before the queue had tenants. Until all have one, the
-- queue has a field `dealing`: the place after which to go on.
function places.deal_on(name)
  local queue, indexes = queues.get(name), {}
  local after = tonumber(redis.call('HGET', tag .. KEY.queue .. name, 'dealing') or 0)
  local found = ready_after(name, after, DEALT_AT_ONCE)
  for at = 1, math.min(#found, DEALT_AT_ONCE) do
    local job = jobs.load(found[at][2])
    if not job.suspect and job.rank == job.priority and job.pass_number == 0 then
      if deals(queue) then
        redeal(job, indexes)
      else
        redis.call('ZADD', tag .. KEY.passes .. job.priority .. ':' .. name, job.pass_number, job.id)
      end
    end
  end
  for share, dealt in pairs(indexes) do
    redis.call('HSET', tag .. KEY.dealt, share, dealt)
  end
  if #found > DEALT_AT_ONCE then
    queues.note(name, 'dealing', found[DEALT_AT_ONCE][1])
  else
    redis.call('HDEL', tag .. KEY.queue .. name, 'dealing')
    queues.forget(name)
  end
end

-- Begin to deal passes in a queue, with its first job with a tenant. Ready jobs get them now, in their
-- order.
function places.begin_to_deal(name)
  if not queues.get(name).tenanted then
    pending.flush()
    lines.flush()
    queues.note(name, 'tenanted', '1')
    places.deal_on(name)
  end
end

-- Whether more is ready in a queue that begins to deal than one script deals to.
function places.much_to_deal(name)
  local queue = queues.get(name)
  return queue.dealing or (not queue.tenanted and queues.count(name, QUEUED) > DEALT_AT_ONCE)
end

-- Make due jobs of a queue ready, in (due, sequence) order; says how many.
function places.promote(queue, limit)
  local due = redis.call('ZRANGEBYSCORE', tag .. KEY.due .. queue, '-inf',
    keys.number(clock.now), 'LIMIT', 0, limit)
  for _, member in ipairs(due) do
    local job = jobs.load(keys.numbered_id(member))
    index.leave(job)
    job.status, job.updated_us = QUEUED, clock.now
    if not job.place then
      places.take(job)
    end
    index.enter(job)
    jobs.save(job)
  end
  return #due
end

-- script: deal
-- Deals passes to jobs of a queue that were ready when its first job with a tenant came, so many
-- at a time.
-- Arguments: queue. Answer: 1 if there are more, else 0.
-- needs: places
local queue = ARGV[2]
if queues.get(queue).dealing then
  places.deal_on(queue)
else
  places.begin_to_deal(queue)
end
index.flush()
return queues.get(queue).dealing and 1 or 0

-- script: promote
-- Makes due jobs ready, in every queue that has some.
-- Arguments: how many in all; each queue gets its share of them. Answer: how many.
-- needs: places
local due = {}
for _, queue in ipairs(redis.call('SMEMBERS', tag .. KEY.due_queues)) do
  if queues.next_due(queue) <= clock.now then
    due[#due + 1] = queue
  end
end
local promoted = 0
for _, queue in ipairs(due) do
  promoted = promoted + places.promote(queue, math.max(1, math.floor(ARGV[2] / #due)))
  wakes.queue(queue)
end
index.flush()
return promoted
