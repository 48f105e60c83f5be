-- SPDX-License-Identifier: MIT
-- Stores jobs that come from another store, as they were there.
-- Arguments: the highest place or line number among them; then for each job its id, definition,
-- payload, state by name, three flags (took its unique key, its idempotency key; its queue deals
-- passes), how many fields follow, those as name and value, how many parts of a stashed job follow
-- (lib/entering), and those.
-- Answer: for each "carried", "known" or "conflict".
-- needs: keys clock wakes jobs queues sigs pending lines index places holders
local at = 3

local function next_arguments(count)
  local given = {}
  for offset = 0, count - 1 do
    given[offset + 1] = ARGV[at + offset]
  end
  at = at + count
  return given
end

local function flag(flags, position)
  return string.sub(flags, position, position) == '1'
end

local function raise(key, field, value)
  if value > tonumber(redis.call('HGET', key, field) or -1) then
    redis.call('HSET', key, field, keys.number(value))
  end
end

-- The queue deals passes, and goes on behind this one.
local function deal(job)
  if not queues.get(job.queue).tenanted then
    queues.note(job.queue, 'tenanted', '1')
  end
  if job.place and job.rank == job.priority then
    local share = job.priority .. ':' .. job.queue
    raise(tag .. ':last:' .. share, sigs.read(job.sig).tenant, job.pass)
    raise(tag .. ':high', share, job.pass)
  end
end

local function take_over(id, definition, payload, state, flags, fields, stashed)
  if redis.call('EXISTS', keys.job(id)) == 1 then
    return 'known'
  end
  local job = cmsgpack.unpack(state)
  local unique, idempotency = holders.identities(cmsgpack.unpack(definition), job.task)
  unique = flag(flags, 1) and unique
  idempotency = flag(flags, 2) and idempotency
  if (unique and holders.unique(unique)) or (idempotency and holders.idempotency(idempotency)) then
    return 'conflict'
  end
  job.id, job.seq = id, places.numbers(1)
  job.line = job.line or job.seq
  if flag(flags, 3) then
    deal(job)
  end
  jobs.save(job, 'd', definition, 'p', payload, unpack(fields))
  pending.put(tag .. ':all', job.seq, id)
  index.enter(job)
  holders.take(job, unique, idempotency)
  if unique and #stashed > 0 then
    redis.call('HSET', tag .. ':stash', unique, cmsgpack.pack(stashed))
  end
  wakes.queue(job.queue)
  return 'carried'
end

local answers = {}
while at <= #ARGV do
  local id, definition, payload, state, flags = unpack(next_arguments(5))
  local fields = next_arguments(tonumber(next_arguments(1)[1]))
  local stashed = next_arguments(tonumber(next_arguments(1)[1]))
  answers[#answers + 1] = take_over(id, definition, payload, state, flags, fields, stashed)
end
if tonumber(ARGV[2]) > tonumber(redis.call('GET', tag .. ':n') or 0) then
  redis.call('SET', tag .. ':n', ARGV[2])
end
index.flush()
return answers
