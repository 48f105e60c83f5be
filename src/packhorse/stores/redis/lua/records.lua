-- SPDX-License-Identifier: MIT
-- Records: see `policies.records`, which decides about them in Python. A script writes what was decided
-- if nothing has changed since it was read.
-- needs: jobs
local records = {}

function records.key(name)
  return tag .. KEY.record .. name
end

-- The instant, the highest version of a record that is gone, and these records.
function records.read(names)
  local found = {keys.number(clock.now), redis.call('GET', tag .. KEY.removed_records) or '0'}
  for _, name in ipairs(names) do
    found[#found + 1] = redis.call('GET', records.key(name))
  end
  return found
end

-- Write or remove a record. `order` and `before` are its entries in the order of its kind.
function records.write(name, value, expires, kind, before, order)
  if before ~= '' and before ~= order then
    redis.call('ZREM', tag .. KEY.records_in_order .. kind, before)
  end
  if value == '' then
    redis.call('DEL', records.key(name))
    redis.call('ZREM', tag .. KEY.records, name)
    redis.call('ZREM', tag .. KEY.records_expiring, name)
    return
  end
  redis.call('SET', records.key(name), value)
  redis.call('ZADD', tag .. KEY.records, 0, name)
  if order ~= '' then
    redis.call('ZADD', tag .. KEY.records_in_order .. kind, 0, order)
  end
  if expires ~= '' then
    redis.call('ZADD', tag .. KEY.records_expiring, expires, name)
  else
    redis.call('ZREM', tag .. KEY.records_expiring, name)
  end
end

-- Remove some records that have expired.
function records.forget(limit)
  local gone = redis.call('ZRANGEBYSCORE', tag .. KEY.records_expiring, '-inf', keys.number(clock.now),
    'LIMIT', 0, limit)
  local highest = tonumber(redis.call('GET', tag .. KEY.removed_records) or '0')
  for _, name in ipairs(gone) do
    local _, version, order, kind = cmsgpack.unpack_limit(redis.call('GET', records.key(name)), 3, 1)
    highest = math.max(highest, version)
    records.write(name, '', '', kind, order, '')
  end
  if #gone > 0 then
    redis.call('SET', tag .. KEY.removed_records, keys.number(highest))
  end
end

-- script: records_read
-- Arguments: names of records.
-- Answer: the instant, the highest version of a record that is gone, and each record or nothing.
-- needs: records
return records.read({unpack(ARGV, 2)})

-- script: records_page
-- Arguments: the kind whose order is meant, or "": all by name; after which entry, before which; how many.
-- Answer: the instant, then each entry and its record.
-- needs: records
local set = ARGV[2] == '' and KEY.records or KEY.records_in_order .. ARGV[2]
local found = {keys.number(clock.now)}
for _, entry in ipairs(redis.call('ZRANGEBYLEX', tag .. set, '(' .. ARGV[3], '(' .. ARGV[4],
  'LIMIT', 0, ARGV[5])) do
  found[#found + 1] = entry
  found[#found + 1] = redis.call('GET', records.key(ARGV[2] == '' and entry or string.sub(entry, 22)))
end
return found

-- script: change_records
-- Writes records and stores jobs, if the records are as they were read.
-- Arguments: the highest version of a record that is gone, as it was and as it will be; how many records;
-- a group, the lines of it that are folded and those that are appended, packed, or ""; for each record its name, the digest of what was read or "", what is to be written or "", and the other
-- arguments of `records.write`; then the parts of each job: see NEW; last, those that are kept as dead letters.
-- Answer: "copied" and the mark if the store was copied to another one; "again" if the records are not
-- as they were read, "gone" and lines that are not there, "deal" queue: run `deal` first; "refused" and members
-- of groups that were refused, each with its number and why: send them as dead letters; else as of `submit`.
-- needs: records submit
local PARTS = 7

local function refused_members(given)
  local reply = {'refused'}
  for at, answer in ipairs(answers) do
    local rules = answer.refused and new_jobs.rules(given[at])
    if rules and rules.member then
      reply[#reply + 1] = {at, answer.refused}
    end
  end
  return #reply > 1 and reply or nil
end

-- Store a refused member as a dead letter; `due` is "!" and the error.
local function reject(new)
  if redis.call('EXISTS', keys.job(new[NEW.id])) == 1 then
    return -- its id belongs to another job
  end
  local error = string.sub(new[NEW.due], 2)
  new[NEW.due] = '+0'
  local job = new_jobs.enter(new, places.numbers(1), nil, false)
  settle.finish_waiting(job, DEAD, DEAD_REASON.REJECTED)
  jobs.save(job, FIELD.error, error)
end

local copied = redis.call('GET', tag .. KEY.copied)
if copied then
  return {'copied', copied}
end
local count = tonumber(ARGV[4])
local folded = ARGV[5] ~= '' and cmsgpack.unpack(ARGV[5])
local gone = folded and journal.gone(folded[1], folded[2]) or {}
if #gone > 0 then
  return {'gone', unpack(gone)}
end
if (redis.call('GET', tag .. KEY.removed_records) or '0') ~= ARGV[2] then
  return {'again'}
end
for at = 6, 5 + count * PARTS, PARTS do
  local value = redis.call('GET', records.key(ARGV[at]))
  if (value and redis.sha1hex(value) or '') ~= ARGV[at + 1] then
    return {'again'}
  end
end
local given, rejected = {}, {}
for first = 6 + count * PARTS, #ARGV, NEW_PARTS do
  local new = {unpack(ARGV, first, first + NEW_PARTS - 1)}
  local list = string.sub(new[NEW.due], 1, 1) == '!' and rejected or given
  list[#list + 1] = new
end
local first = decide_each(given) or refused_members(given)
if first then
  return first
end
if folded then
  journal.fold(unpack(folded))
end
for at = 6, 5 + count * PARTS, PARTS do
  records.write(ARGV[at], unpack(ARGV, at + 2, at + PARTS - 1))
  wakes.add('record:' .. ARGV[at + 4])
end
if ARGV[3] ~= ARGV[2] then
  redis.call('SET', tag .. KEY.removed_records, ARGV[3])
end
local reply = submit_reply(store())
for _, new in ipairs(rejected) do
  reject(new)
end
index.flush()
return reply
