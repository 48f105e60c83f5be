-- SPDX-License-Identifier: MIT
-- Writes completions of jobs without keys, in queues without limits. The short way of `settle`.
-- Arguments: the lifetimes of record and result that all share, each -1 for ever; then job id,
-- fence, and the result behind a "+", or "-" for none, of each.
-- Answer: for each 0 applied or 3 stale; or nothing: nothing was written, and `settle` must decide.
-- needs: clock
local tag, call, unpack_limit, pack = KEYS[1], redis.call, cmsgpack.unpack_limit, cmsgpack.pack
local FIRST, PARTS = 4, 3
local CHUNK = 1000 -- entries that go in one command
local HEADER, HEADER_BYTES = '\220\000\030', 3 -- see lib/jobs
local CHANGED, READ = 20, 4 -- parts of the state that are written, and those read behind them
local PROCESSING, COMPLETED, KIND = 2, 3, 1
local APPLIED, STALE = 0, 3
local HISTORY_MAX = 50 -- from there on a line of history goes for each that comes
local now = clock.now
local keep, result_keep = tonumber(ARGV[2]), tonumber(ARGV[3])
keep, result_keep = keep >= 0 and keep or nil, result_keep >= 0 and result_keep or nil
local expires_bare = keep and now + keep
local expires_result = expires_bare
if result_keep then
  expires_result = math.min(expires_bare or math.huge, now + result_keep)
end
local plain = {}

-- Whether jobs of this queue and task concern nobody else when they end.
local function is_plain(queue, task)
  local name = #queue .. ':' .. queue .. task
  if plain[name] == nil then
    local known = call('HMGET', tag .. ':q:' .. queue, 'hard', 'tenanted')
    plain[name] = not known[1] and not known[2] and call('HEXISTS', tag .. ':tasks', task) == 0
  end
  return plain[name]
end

-- What becomes of all jobs that have this state: nothing if `settle` must decide.
local function outcome(text)
  local rest, status, fence, _, worker, started, hold, alone, timeout, deadline, cancel, awaited,
    attempts, _, settled_fence, settled_kind = unpack_limit(text, CHANGED, HEADER_BYTES)
  local known = {status = status, fence = fence, settled_fence = settled_fence,
    settled_kind = settled_kind}
  if status ~= PROCESSING then
    return known
  end
  local _, queue, task, sig, keyed = unpack_limit(text, READ, rest)
  known.careful = cancel or keyed or sig ~= '' or attempts >= HISTORY_MAX
    or not is_plain(queue, task)
  known.worker, known.queue, known.task, known.awaited = worker, queue, task, awaited
  known.retried, known.line = attempts > 0, 'a' .. attempts + 1
  known.history = '\151' .. pack(attempts + 1, COMPLETED, started or 0, now, worker, false, nil)
  local function ended(expires, has_result)
    return HEADER .. pack(COMPLETED, fence, now, worker, started, hold, alone, timeout, deadline,
      nil, nil, attempts + 1, nil, fence, KIND, now, keep, result_keep, expires, has_result)
      .. string.sub(text, rest + 1)
  end
  known.bare, known.with_result = ended(expires_bare, nil), ended(expires_result, true)
  return known
end

-- Whether a settlement applies to a job that has this state: now, or already.
local function applies(known, fence, ended)
  if ended then
    return ended == fence and 'already'
  elseif known.status == PROCESSING and known.fence == fence then
    return 'now'
  end
  return known.settled_fence == fence and known.settled_kind == KIND and 'already'
end

-- First decide about all of them, then write.
local verdicts, outcomes, known, owns, ended = {}, {}, {}, {}, {}
for at = FIRST, #ARGV, PARTS do
  local id, verdict = ARGV[at], STALE
  local texts = call('HMGET', tag .. ':j:' .. id, 's', 'b')
  local text = texts[1]
  if text then
    local own = outcomes[text]
    if not own then
      own = outcome(text)
      outcomes[text] = own
    end
    local fence = tonumber(ARGV[at + 1])
    local applied = applies(own, fence, ended[id])
    if applied then
      verdict = APPLIED
    end
    if applied == 'now' then
      if own.careful then
        return false
      end
      known[at], ended[id] = own, fence
      owns[at] = texts[2]
    end
  end
  verdicts[#verdicts + 1] = verdict
end

local held, queues, gates, expiring = {}, {}, {}, {}

local function write(id, result, own, texts)
  local key, expires = tag .. ':j:' .. id, nil
  if string.sub(result, 1, 1) == '+' then
    expires = expires_result
    call('HSET', key, 's', own.with_result, 'r', string.sub(result, 2), own.line, own.history)
  else
    expires = expires_bare
    call('HSET', key, 's', own.bare, own.line, own.history)
  end
  if own.retried then
    call('HDEL', key, 'e')
  end
  if expires then
    local _, seq = unpack_limit(texts, 1, 1)
    local digits = string.format('%.0f', seq)
    expiring[#expiring + 1] = expires
    expiring[#expiring + 1] = string.char(96 + #digits) .. digits .. id
  end
  if own.awaited then
    call('PUBLISH', tag .. ':wake:job', 'job:' .. id)
  end
  local ids = held[own.worker]
  if not ids then
    ids = {}
    held[own.worker] = ids
  end
  ids[#ids + 1] = id
  queues[own.queue] = (queues[own.queue] or 0) + 1
  gates[own.task] = (gates[own.task] or 0) + 1
end

for at = FIRST, #ARGV, PARTS do
  if known[at] then
    write(ARGV[at], ARGV[at + 2], known[at], owns[at])
  end
end

local function many(command, key, entries)
  for from = 1, #entries, CHUNK do
    call(command, key, unpack(entries, from, math.min(from + CHUNK - 1, #entries)))
  end
end

local function count(key, field, by)
  if call('HINCRBY', key, field, by) <= 0 then
    call('HDEL', key, field)
  end
end

many('ZADD', tag .. ':exp', expiring)
for worker, ids in pairs(held) do
  many('ZREM', tag .. ':held:' .. worker, ids)
  if call('EXISTS', tag .. ':held:' .. worker) == 0 then
    call('SREM', tag .. ':holders', worker)
  end
end
for queue, ended_now in pairs(queues) do
  count(tag .. ':counts', PROCESSING .. ':' .. queue, -ended_now)
  count(tag .. ':counts', COMPLETED .. ':' .. queue, ended_now)
end
for task, ended_now in pairs(gates) do
  count(tag .. ':busy', 'C' .. task, -ended_now)
end
return verdicts
