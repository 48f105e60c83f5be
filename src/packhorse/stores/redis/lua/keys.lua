-- SPDX-License-Identifier: MIT
-- The clock, names of keys, texts that sort as their values do, and signatures of lines.
-- needs: layout
-- The server's time, or the one a test gives: the same throughout a script.
if redis.replicate_commands then
  redis.replicate_commands() -- before Redis 7 a script that reads the time may write only so
end
local clock = {given = ARGV[1] ~= ''}
if clock.given then
  clock.now = tonumber(ARGV[1])
else
  local time = redis.call('TIME')
  clock.now = time[1] * 1000000 + time[2]
end

-- The table of this name in a table of tables.
local function table_in(tables, name)
  local found = tables[name]
  if not found then
    found = {}
    tables[name] = found
  end
  return found
end

local tag = KEYS[1] -- the hash tag that every key begins with
local keys = {}

-- A whole number as text; `tostring` and `..` would round it above 10^14.
function keys.number(value)
  return string.format('%.0f', value)
end

-- Digits behind a letter that says how many: a text that sorts as the number does.
function keys.sorting(digits)
  return string.char(96 + #digits) .. digits
end

function keys.enc(value)
  return keys.sorting(keys.number(value))
end

-- A part of a name, with its length before it: it may hold any character.
function keys.len(text)
  return #text .. ':' .. text
end

-- A queue and a task as one name.
function keys.pair(queue, task)
  return #queue .. ':' .. queue .. task
end

function keys.unpair(pair)
  local length, rest = string.match(pair, '^(%d+):(.*)$')
  return string.sub(rest, 1, tonumber(length)), string.sub(rest, tonumber(length) + 1)
end

function keys.job(id)
  return tag .. KEY.job .. id
end

function keys.line(queue, task, signature)
  return tag .. KEY.line .. #queue .. ':' .. queue .. #task .. ':' .. task .. signature
end

function keys.group(queue, task, gate)
  return tag .. KEY.group .. #queue .. ':' .. queue .. #task .. ':' .. task .. gate
end

-- A field of the hash of counts.
function keys.count(queue, status)
  return status .. ':' .. queue
end

-- The member of a job in its line: it sorts by pass, then place, and ends with the id.
function keys.ranked(job)
  return keys.enc(job.pass_number) .. keys.enc(job.place) .. job.id
end

function keys.ranked_id(member)
  local at = string.byte(member, 1) - 94
  return string.sub(member, at + string.byte(member, at) - 95)
end

function keys.ranked_pass(member)
  return tonumber(string.sub(member, 2, string.byte(member, 1) - 95))
end

function keys.ranked_place(member)
  local at = string.byte(member, 1) - 94
  return tonumber(string.sub(member, at + 1, at + string.byte(member, at) - 96))
end

-- The member of a job in other sorted sets: equal scores sort by sequence.
function keys.numbered(job)
  return keys.enc(job.sequence) .. job.id
end

function keys.numbered_id(member)
  return string.sub(member, string.byte(member, 1) - 94)
end

-- The signature is what jobs of a line share besides queue and task, "" for most: tenant, weight and
-- the three keys, each with its length before it, "-" for a key that is not set.
local signatures = {}
local read = {[''] = {tenant = '', weight = 1}}

local function part(text, at)
  if string.byte(text, at) == 45 then
    return nil, at + 1
  end
  local colon = string.find(text, ':', at, true)
  local last = colon + tonumber(string.sub(text, at, colon - 1))
  return string.sub(text, colon + 1, last), last + 1
end

-- The parts by name: tenant, weight, ordering, concurrency, rate.
function signatures.read(signature)
  local known = read[signature]
  if not known then
    local tenant, at = part(signature, 1)
    local weight, ordering, concurrency, rate
    weight, at = part(signature, at)
    ordering, at = part(signature, at)
    concurrency, at = part(signature, at)
    rate, at = part(signature, at)
    known = {tenant = tenant, weight = tonumber(weight), ordering = ordering, concurrency = concurrency, rate = rate}
    read[signature] = known
  end
  return known
end

-- The name of the gate that bounds how many jobs of a task run; see `policies.gates`.
function signatures.concurrency_gate(task, signature)
  local key = signatures.read(signature).concurrency
  return key and GATE.task_concurrency_key .. keys.len(task) .. key or GATE.task_concurrency .. task
end

-- The name of the gate that bounds how many jobs of a task start.
function signatures.rate_gate(task, signature)
  local key = signatures.read(signature).rate
  return key and GATE.task_rate_key .. keys.len(task) .. key or GATE.task_rate .. task
end

-- The key of the line of an ordering key.
function signatures.order(queue, signature)
  local parts = signatures.read(signature)
  return tag .. KEY.order .. keys.len(queue) .. keys.len(parts.tenant) .. parts.ordering
end
