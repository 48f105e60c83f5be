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
      if first == FIELD.value or first == FIELD.signal or first == FIELD.signals then
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
  job.updated_us = clock.now
  if definition ~= '' then
    redis.call('HSET', keys.job(job.id), FIELD.definition, definition)
  end
  jobs.save(job, FIELD.attached, number, FIELD.attached_bytes, bytes, ...)
end

-- What a job must be given before something is attached to it: a definition that says so.
function attachments.unmarked(id)
  return {'mark', redis.call('HGET', keys.job(id), FIELD.definition)}
end

-- script: attach
-- Keeps values with a job whose fence is current.
-- Arguments: job id, fence, most values and bytes, the definition that marks the job or "", then name
-- and value of each. Answer: "kept", "stale", "full", or "mark" and the definition to be marked.
-- needs: attachments
local FIRST = 7
local job = jobs.load(ARGV[2])
if not job or job.status ~= PROCESSING or job.fence ~= tonumber(ARGV[3]) then
  return {'stale'}
end
if #ARGV < FIRST then
  return {'kept'}
end
local number, bytes = attachments.size(job.id)
if not number and ARGV[6] == '' then
  return attachments.unmarked(job.id)
end
number, bytes = number or 0, bytes or 0
local fields = {}
for at = FIRST, #ARGV, 2 do
  local field = FIELD.value .. ARGV[at]
  if redis.call('HEXISTS', keys.job(job.id), field) == 0 then
    number = number + 1
  end
  bytes = bytes + #ARGV[at + 1] - redis.call('HSTRLEN', keys.job(job.id), field)
  fields[#fields + 1] = field
  fields[#fields + 1] = ARGV[at + 1]
end
if number > tonumber(ARGV[4]) or bytes > tonumber(ARGV[5]) then
  return {'full'}
end
attachments.keep(job, number, bytes, ARGV[6], unpack(fields))
return {'kept'}

-- script: deliver
-- Appends a signal to those of its name.
-- Arguments: job id; 1 if only a tenant's jobs are known to the caller, else 0; that tenant; most values
-- and bytes of a job, most signals of a name; the definition that marks the job or ""; name and value.
-- Answer: "delivered", "finished", "full", "unknown", or "mark" and the definition to be marked.
-- needs: attachments
local job = jobs.load(ARGV[2])
if not job or (ARGV[3] == '1' and signatures.read(job.signature).tenant ~= ARGV[4]) then
  return {'unknown'}
elseif TERMINAL[job.status] then
  return {'finished'}
end
local number, bytes = attachments.size(job.id)
if not number and ARGV[8] == '' then
  return attachments.unmarked(job.id)
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
attachments.keep(job, number, bytes, ARGV[8], FIELD.signals .. name, of_name, FIELD.delivered, delivered,
  FIELD.signal .. of_name .. ':' .. name, value)
index.flush()
return {'delivered'}

-- script: attachments
-- Arguments: as of `deliver` up to the tenant. Answer: the state and all fields of the job, or nothing.
-- needs: jobs
local job = jobs.load(ARGV[2])
if not job or (ARGV[3] == '1' and signatures.read(job.signature).tenant ~= ARGV[4]) then
  return false
end
return redis.call('HGETALL', keys.job(job.id))
