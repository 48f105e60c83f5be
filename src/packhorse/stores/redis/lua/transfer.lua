-- SPDX-License-Identifier: MIT
-- Jobs carried to and from another store.

-- script: copied
-- Reads that the jobs of this store were carried to another one; writes it before, or forgets it.
-- Arguments: "get"; "set" and a text; or "del". Answer: the text, or nothing.
-- needs: keys
local key = tag .. KEY.copied
if ARGV[2] == 'set' then
  redis.call('SET', key, ARGV[3])
elseif ARGV[2] == 'del' then
  redis.call('DEL', key)
end
return redis.call('GET', key)

-- script: carry_out
-- Shows jobs that wait or are dead, and finished members of groups that are there, with all that is known
-- of them.
-- Arguments: "after", a sequence number, how many are wanted, how many are looked at; or "ids" and
-- the ids. Answer: the instant, the number of the last one looked at (none: there are no more), and
-- for each its id, number, whether it took its keys last, who is stashed behind it, and its hash.
-- needs: uniqueness journal

-- Whether a job is carried.
local function is_carried(job)
  return WAITING[job.status] or job.status == DEAD or (TERMINAL[job.status] and journal.group_until(job))
end

-- Whether a key was taken last by this job.
local function took(kind, identity, id)
  return identity and redis.call('HGET', tag .. kind, identity) == id and 1 or 0
end

local function shown(id, job)
  local unique, idempotency, stashed = nil, nil, false
  if job.keyed then
    unique, idempotency = uniqueness.identities(jobs.definition(id), job.task)
    stashed = unique and redis.call('HGET', tag .. KEY.stash, unique)
  end
  return {
    id, keys.number(job.sequence), took(KEY.unique, unique, id), took(KEY.idempotency, idempotency, id),
    stashed and cmsgpack.unpack(stashed) or false, redis.call('HGETALL', keys.job(id)),
  }
end

local found, reached, wanted = {}, false, #ARGV
if ARGV[2] == 'ids' then
  for at = 3, #ARGV do
    found[#found + 1] = ARGV[at]
  end
else
  wanted = tonumber(ARGV[4])
  found = redis.call('ZRANGEBYSCORE', tag .. KEY.all, '(' .. ARGV[3], '+inf', 'LIMIT', 0, ARGV[5])
  reached = #found == tonumber(ARGV[5])
end
local page, last = {}, false
for _, id in ipairs(found) do
  local job = jobs.load(id)
  if job and is_carried(job) then
    if #page == wanted then
      return {clock.now, last, page}
    end
    page[#page + 1] = shown(id, job)
  end
  last = job and keys.number(job.sequence) or last
end
return {clock.now, reached and last, page}

-- script: exchange
-- Puts other texts in the place of those that the values of a job have.
-- Arguments: its id, then each text and the one that comes in its place. Answer: 1, or 0: no such job.
-- needs: index
local key = keys.job(ARGV[2])

local function exchanged(text)
  for at = 3, #ARGV, 2 do
    local first, last = string.find(text, ARGV[at], 1, true)
    if first then
      text = string.sub(text, 1, first - 1) .. ARGV[at + 1] .. string.sub(text, last + 1)
    end
  end
  return text
end

local hash = redis.call('HGETALL', key)
for at = 1, #hash, 2 do
  local field, value = hash[at], hash[at + 1]
  local kind, other = string.sub(field, 1, 1), value
  if kind == FIELD.attempt then
    local line = cmsgpack.unpack(value)
    local last = line[#line]
    if type(last) == 'string' and exchanged(last) ~= last then
      line[#line] = exchanged(last)
      other = cmsgpack.pack(line)
    end
  elseif kind == FIELD.value or kind == FIELD.signal then
    other = exchanged(value)
    redis.call('HINCRBY', key, FIELD.attached_bytes, #other - #value)
  elseif field == FIELD.payload or field == FIELD.result or field == FIELD.error then
    other = exchanged(value)
  end
  if other ~= value then
    redis.call('HSET', key, field, other)
  end
end
if #hash > 0 then
  index.weigh(jobs.load(ARGV[2]))
  index.flush()
end
return #hash > 0 and 1 or 0

-- script: carry_in
-- Stores jobs that come from another store, as they were there.
-- Arguments: the highest place or line number among them; then for each job its id, definition,
-- payload, state by name, three flags (took its unique key, its idempotency key; its queue deals
-- passes), how many fields follow, those as name and value, how many parts of a stashed job follow
-- (see NEW), and those.
-- Answer: for each "carried", "known" or "conflict".
-- needs: new_jobs
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

-- The queue deals passes, and goes on behind this one.
local function deal(job)
  if not queues.get(job.queue).tenanted then
    queues.note(job.queue, 'tenanted', '1')
  end
  if job.place and job.rank == job.priority then
    local share = job.priority .. ':' .. job.queue
    places.raise(tag .. KEY.last_pass .. share, signatures.read(job.signature).tenant, job.pass_number)
    places.raise(tag .. KEY.highest_pass, share, job.pass_number)
  end
end

local function take_over(id, definition, payload, state, flags, fields, stashed)
  if redis.call('EXISTS', keys.job(id)) == 1 then
    return 'known'
  end
  local job = cmsgpack.unpack(state)
  local unique, idempotency = uniqueness.identities(cmsgpack.unpack(definition), job.task)
  unique = flag(flags, 1) and unique
  idempotency = flag(flags, 2) and idempotency
  if (unique and uniqueness.unique(unique)) or (idempotency and uniqueness.idempotency(idempotency)) then
    return 'conflict'
  end
  job.id, job.sequence = id, places.numbers(1)
  job.line_number = job.line_number or job.sequence
  if flag(flags, 3) then
    deal(job)
  end
  jobs.save(job, FIELD.definition, definition, FIELD.payload, payload, unpack(fields))
  pending.put(tag .. KEY.all, job.sequence, id)
  index.enter(job)
  uniqueness.take(job, unique, idempotency)
  if journal.member(job) then
    journal.begin(POLICY.SCHEMA_OF_GROUPS)
  end
  if unique and #stashed > 0 then
    redis.call('HSET', tag .. KEY.stash, unique, cmsgpack.pack(stashed))
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
if tonumber(ARGV[2]) > tonumber(redis.call('GET', tag .. KEY.numbers) or 0) then
  redis.call('SET', tag .. KEY.numbers, ARGV[2])
end
index.flush()
return answers
