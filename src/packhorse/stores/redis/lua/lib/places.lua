-- SPDX-License-Identifier: MIT
-- A place for a job that becomes ready, and its tenant's turn: ports of `policies.fairness` and
-- `policies.priority`.
local places = {}
local STRIDE = 1048576
local REDEALT_MAX = 10000
local PRIORITY_MAX = 4
local DEALT_AT_ONCE = 1000 -- ready jobs that one script deals passes to

-- The next numbers of the store, which count submits, places and lines alike; the first of them.
function places.numbers(count)
  return redis.call('INCRBY', tag .. ':n', count) - count + 1
end

-- Where the line of a (queue, priority) stands: its first ready job, or the highest ever given.
local function virtual_time(share)
  local first = redis.call('ZRANGE', tag .. ':pass:' .. share, 0, 0, 'WITHSCORES')[2]
  if not first then
    return tonumber(redis.call('HGET', tag .. ':high', share) or 0)
  end
  local running = redis.call('ZREVRANGE', tag .. ':run:' .. share, 0, 0, 'WITHSCORES')[2]
  return math.max(tonumber(first), tonumber(running or 0))
end

local function remember(share, tenant, given)
  redis.call('HSET', tag .. ':last:' .. share, tenant, given)
  if given > tonumber(redis.call('HGET', tag .. ':high', share) or -1) then
    redis.call('HSET', tag .. ':high', share, given)
  end
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
  local share, tenant = job.priority .. ':' .. job.queue, sigs.read(job.sig).tenant
  local given = virtual_time(share)
  local last = redis.call('HGET', tag .. ':last:' .. share, tenant)
  if last then
    local weight = queue.conf.weights and queue.conf.weights[tenant] or 1
    given = math.max(given, tonumber(last) + math.floor(STRIDE / weight))
  end
  remember(share, tenant, given)
  return given
end

-- Stand behind all that are ready already, or, in a fair queue, where one's tenant may.
-- `place` is a number that was drawn for it, if any.
function places.take(job, place)
  local ageing = queues.get(job.queue).conf.ageing_us
  job.place, job.ready = place or places.numbers(1), clock.now
  job.pass = next_pass(job)
  job.rank = ageing and job.ready + job.priority * ageing or job.priority
end

-- Where ready jobs with a place after `after` stand: {place, id}, the first `limit` by place, from
-- the plain lines and from `:since`, which has all others.
local function ready_after(queue, after, limit)
  local found = {}
  local since = redis.call('ZRANGEBYSCORE', tag .. ':since:' .. queue,
    '(' .. keys.number(after), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  for at = 1, #since, 2 do
    found[#found + 1] = {tonumber(since[at + 1]), since[at]}
  end
  for _, task in ipairs(redis.call('SMEMBERS', tag .. ':t:' .. queue)) do
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

-- Deal a pass to a job that was ready when its queue began to.
local function redeal(job, indexes)
  local share = job.priority .. ':' .. job.queue
  local at = indexes[share] or tonumber(redis.call('HGET', tag .. ':dealt', share) or 0)
  indexes[share] = at + 1
  local given = math.min(at, REDEALT_MAX) * STRIDE
  index.leave(job)
  job.pass = given
  index.enter(job)
  jobs.save(job)
  remember(share, '', given)
end

-- Go on dealing to what was ready when a queue began to, so many at a time; until all of it is
-- done the queue has a field `dealing`: the place after which to go on.
function places.deal_on(name)
  local queue, indexes = queues.get(name), {}
  local after = tonumber(redis.call('HGET', tag .. ':q:' .. name, 'dealing') or 0)
  local found = ready_after(name, after, DEALT_AT_ONCE)
  for at = 1, math.min(#found, DEALT_AT_ONCE) do
    local job = jobs.load(found[at][2])
    if not job.suspect and job.rank == job.priority and job.pass == 0 then
      if deals(queue) then
        redeal(job, indexes)
      else
        redis.call('ZADD', tag .. ':pass:' .. job.priority .. ':' .. name, job.pass, job.id)
      end
    end
  end
  for share, dealt in pairs(indexes) do
    redis.call('HSET', tag .. ':dealt', share, dealt)
  end
  if #found > DEALT_AT_ONCE then
    queues.note(name, 'dealing', found[DEALT_AT_ONCE][1])
  else
    redis.call('HDEL', tag .. ':q:' .. name, 'dealing')
    queues.forget(name)
  end
end

-- From the first job with a tenant on, a queue deals passes; what is ready gets them now, in the
-- order it has.
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
