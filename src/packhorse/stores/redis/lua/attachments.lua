-- SPDX-License-Identifier: MIT
-- What is kept with jobs, in fields of their hashes: values, signals, and how much there is.
-- needs: index
local attachments = {}

-- Forget all that is attached to a job.
function attachments.forget(id)
  if redis.call('HEXISTS', keys.job(id), FIELD.attached) == 1 then
    local gone = {FIELD.attached, FIELD.attached_bytes, FIELD.delivered, FIELD.waits}
    for _, field in ipairs(redis.call('HKEYS', keys.job(id))) do
      local first = string.sub(field, 1, 1)
      if first == FIELD.value or first == FIELD.signal or first == FIELD.signals or first == FIELD.delivery then
        gone[#gone + 1] = field
      end
    end
    pending.many('HDEL', keys.job(id), gone)
  end
end

-- Forget the value and the signals of one name. (Lua writes a negated nothing as -0.)
function attachments.drop(id, name)
  local signals = tonumber(redis.call('HGET', keys.job(id), FIELD.signals .. name) or 0)
  local gone = {FIELD.value .. name}
  for number = 1, signals do
    gone[#gone + 1] = FIELD.signal .. number .. ':' .. name
  end
  local bytes = 0
  for _, field in ipairs(gone) do
    bytes = bytes + redis.call('HSTRLEN', keys.job(id), field)
  end
  local number = redis.call('HDEL', keys.job(id), unpack(gone))
  if number > 0 then
    redis.call('HDEL', keys.job(id), FIELD.signals .. name)
    redis.call('HINCRBY', keys.job(id), FIELD.attached, 0 - number)
    redis.call('HINCRBY', keys.job(id), FIELD.attached_bytes, 0 - bytes)
    redis.call('HINCRBY', keys.job(id), FIELD.delivered, 0 - signals)
  end
end

-- How many values and signals a job has, and their bytes; nothing: it is not marked yet.
function attachments.size(id)
  local size = redis.call('HMGET', keys.job(id), FIELD.attached, FIELD.attached_bytes)
  return tonumber(size[1]), tonumber(size[2])
end

-- Keep fields of which a job will have so many, with so many bytes; it is marked by its definition.
function attachments.keep(job, number, bytes, definition, ...)
  if definition ~= '' then
    redis.call('HSET', keys.job(job.id), FIELD.definition, definition)
  end
  jobs.save(job, FIELD.attached, number, FIELD.attached_bytes, bytes, ...)
end

-- Read the values to attach to a job from the arguments: id, fence, the definition that marks it or
-- "", how many values, and each; where the next one begins comes second. Without a job: it is stale.
function attachments.given(at)
  local given = {id = ARGV[at], definition = ARGV[at + 2], fields = {}, number = 0, bytes = 0}
  local first, after = at + 4, at + 4 + 2 * tonumber(ARGV[at + 3])
  local job = jobs.load(given.id)
  if not job or job.status ~= PROCESSING or job.fence ~= tonumber(ARGV[at + 1]) then
    return given, after
  end
  given.job = job
  local number, bytes = attachments.size(job.id)
  given.unmarked = not number and given.definition == '' and after > first
  given.number, given.bytes = number or 0, bytes or 0
  for value = first, after - 1, 2 do
    local field = FIELD.value .. ARGV[value]
    if redis.call('HEXISTS', keys.job(job.id), field) == 0 then
      given.number = given.number + 1
    end
    given.bytes = given.bytes + #ARGV[value + 1] - redis.call('HSTRLEN', keys.job(job.id), field)
    given.fields[#given.fields + 1] = field
    given.fields[#given.fields + 1] = ARGV[value + 1]
  end
  return given, after
end

-- script: attach
-- Keeps values with jobs whose fences are current.
-- Arguments: most values and bytes, then what `attachments.given` reads, of each job. Answer: "kept" and
-- 1 or, if it is stale, 0 for each; "full" and the first job that has too much; or "mark", and of each
-- job that must be marked id and definition. Unless it is kept, nothing was written.
-- needs: attachments
local all, marks, at = {}, {'mark'}, 4
while at <= #ARGV do
  local given
  given, at = attachments.given(at)
  if given.number > tonumber(ARGV[2]) or given.bytes > tonumber(ARGV[3]) then
    return {'full', given.id}
  elseif given.unmarked then
    marks[#marks + 1] = given.id
    marks[#marks + 1] = redis.call('HGET', keys.job(given.id), FIELD.definition)
  end
  all[#all + 1] = given
end
if #marks > 1 then
  return marks
end
local kept = {'kept'}
for _, given in ipairs(all) do
  if #given.fields > 0 then
    attachments.keep(given.job, given.number, given.bytes, given.definition, unpack(given.fields))
  end
  kept[#kept + 1] = given.job and '1' or '0'
end
return kept

-- script: deliver
-- Appends a signal to those of its name.
-- Arguments: job id; 1 if only a tenant's jobs are known to the caller, else 0; that tenant; most values
-- and bytes of a job, most signals of a name; the definition that marks the job or ""; name and value;
-- the sender's number or "".
-- Answer: "delivered", "finished", "full", "unknown", or "mark" and the definition to be marked.
-- needs: attachments
local job = jobs.seen(ARGV[2], ARGV[3], ARGV[4])
if not job then
  return {'unknown'}
elseif ARGV[11] ~= '' and redis.call('HEXISTS', keys.job(job.id), FIELD.delivery .. ARGV[11]) == 1 then
  return {'delivered'}
elseif TERMINAL[job.status] then
  return {'finished'}
end
local number, bytes = attachments.size(job.id)
if not number and ARGV[8] == '' then
  return {'mark', redis.call('HGET', keys.job(job.id), FIELD.definition)}
end
local name, value = ARGV[9], ARGV[10]
local known = redis.call('HMGET', keys.job(job.id), FIELD.signals .. name, FIELD.delivered, FIELD.waits)
local of_name, delivered = tonumber(known[1] or 0) + 1, tonumber(known[2] or 0) + 1
number, bytes = (number or 0) + 1, (bytes or 0) + #value
if of_name > tonumber(ARGV[7]) or number > tonumber(ARGV[5]) or bytes > tonumber(ARGV[6]) then
  return {'full'}
end
if job.status == PENDING and tonumber(known[3]) == job.fence then
  index.leave(job)
  job.due_us = clock.now
  index.enter(job)
  wakes.queue(job.queue)
end
job.updated_us = clock.now
attachments.keep(job, number, bytes, ARGV[8], FIELD.signals .. name, of_name, FIELD.delivered, delivered,
  FIELD.signal .. of_name .. ':' .. name, value)
if ARGV[11] ~= '' then
  redis.call('HSET', keys.job(job.id), FIELD.delivery .. ARGV[11], 1)
end
index.flush()
return {'delivered'}

-- script: attachments
-- Arguments: as of `deliver` up to the tenant. Answer: the state and all fields of the job, or nothing.
-- needs: jobs
local job = jobs.seen(ARGV[2], ARGV[3], ARGV[4])
return job and redis.call('HGETALL', keys.job(job.id)) or false
