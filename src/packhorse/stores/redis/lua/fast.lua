-- SPDX-License-Identifier: MIT
-- Fast routes of submit and claim, for jobs without keys in queues without constraints (see `queues.get`), and of
-- settle, for completions that let no other job start. A fast route runs before the general route of its script.
-- It decides about all jobs before it writes anything, and writes nothing if one of them needs the general route.

-- fast: submit
-- needs: keys
-- It is flat, and takes a library only where it uses it: with every function that a script defines, each
-- submit takes longer.
local like, queue, task, priority, timeout, definition = unpack(ARGV, 2, 7)
local settings, AT_ONCE = tag .. KEY.queue .. queue, 1000 -- jobs that go in one command
local count = like == '' and 0 or (#ARGV - 7) / 2
local known = count > 0 and redis.call('EXISTS', settings, tag .. KEY.shelf .. queue, tag .. KEY.copied,
  tag .. KEY.queue) -- KEY.queue alone: settings of the store itself
if known == 1 and redis.call('EXISTS', settings) == 1 then
  local found = redis.call('HMGET', settings, 'closed', 'tenanted', 'sheds', 'hard')
  known = (found[1] == '1' or found[2] or found[3] or found[4]) and known or 0
end
for from = 1, like == 'new' and 0 or count, AT_ONCE do
  local names = {}
  for at = from, math.min(from + AT_ONCE - 1, count) do
    names[#names + 1] = keys.job(ARGV[2 * at + 6])
  end
  known = known + redis.call('EXISTS', unpack(names))
end
if known == 0 then
  local pack = cmsgpack.pack
  local now, rank = pack(clock.now), pack(tonumber(priority))
  local state = new_state(now, pack(tonumber(timeout)), pack(queue), pack(task), rank)
  local line, first = keys.line(queue, task, ''), nil
  local number = redis.call('INCRBY', tag .. KEY.numbers, count) - count
  for from = 1, count, AT_ONCE do
    local all, places = {}, {}
    for at = from, math.min(from + AT_ONCE - 1, count) do
      local id, digits = ARGV[2 * at + 6], keys.number(number + at)
      redis.call('HSET', keys.job(id), FIELD.state, state, FIELD.own, new_own(pack(number + at), now, rank),
        FIELD.definition, definition, FIELD.payload, ARGV[2 * at + 7])
      local place = #all
      all[place + 1], all[place + 2] = digits, id
      places[place + 1], places[place + 2] = priority, 'a0' .. keys.sorting(digits) .. id -- pass 0
    end
    redis.call('ZADD', tag .. KEY.all, unpack(all))
    redis.call('ZADD', line, unpack(places))
    first = first or places[2]
  end
  redis.call('HINCRBY', tag .. KEY.counts, keys.count(queue, QUEUED), count)
  if redis.call('ZRANK', line, first) == 0 then -- else its head is the same as before
    -- needs: lines
    lines.place(queue, task, '', {priority, first})
    lines.flush()
  end
  redis.call('PUBLISH', tag .. KEY.wake .. 'queue:' .. queue, 'queue:' .. queue)
  return 'ok'
end

-- fast: claim
-- needs: candidates
local worker, limit, default_timeout = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local RANK_MAX, READ_MAX = 1000, 1000 -- a higher rank is one by age; entries of a line that are read at once

-- The unconstrained lines of a queue, or nil when there are others.
local function lines_of(queue, tasks)
  local found = {}
  for _, task in ipairs(candidates.known(tag .. KEY.ready_tasks .. queue, tasks)) do
    local heads = tag .. KEY.heads .. keys.pair(queue, task)
    if queues.task(task) or redis.call('HLEN', heads) > 1
      or redis.call('HEXISTS', heads, '') == 0 then
      return nil
    end
    found[#found + 1] = {
      queue = queue, task = task, key = keys.line(queue, task, ''), taken = 0, at = 1, entries = {},
    }
  end
  return found
end

-- The lines of every open queue, and when the next job is due; nil when there is something else.
local function all_lines()
  local last_queue = 8 + tonumber(ARGV[8])
  local open = candidates.queue_order({unpack(ARGV, 9, last_queue)})
  local tasks, found, next_due = candidates.tasks({unpack(ARGV, last_queue + 1)}), {}, nil
  for at, queue in ipairs(open) do
    local due = queues.next_due(queue)
    found[at] = not queues.get(queue).constrained and lines_of(queue, tasks)
    if not found[at] or (due and due <= clock.now)
      or redis.call('EXISTS', tag .. KEY.suspect_tasks .. queue) == 1 then
      return nil
    end
    next_due = due and math.min(next_due or due, due) or next_due
  end
  return found, next_due
end

-- The line of a queue whose next entry comes first, and that entry.
local function first_of(queue_lines, wanted)
  local best, first
  for _, line in ipairs(queue_lines) do
    if line.at > #line.entries and not line.ended then
      local last = line.taken + math.min(wanted, READ_MAX) - 1
      line.entries = redis.call('ZRANGE', line.key, line.taken, last, 'WITHSCORES')
      line.at, line.ended = 1, #line.entries == 0
    end
    local member = line.entries[line.at]
    local entry = member and {tonumber(line.entries[line.at + 1]), member}
    if entry and (not best or candidates.before(entry, first)) then
      best, first = line, entry
    end
  end
  return best, first
end

-- Choose jobs of a queue; false when one of them needs the general route.
local function choose(queue_lines, chosen, states)
  while #chosen < limit do
    local line, entry = first_of(queue_lines, limit - #chosen)
    if not line then
      return true
    end
    local id = keys.ranked_id(entry[2])
    local found = redis.call('HMGET', keys.job(id), FIELD.state, FIELD.definition, FIELD.payload)
    local job = states[found[1]]
    if not job then
      job = unpack_state(found[1])
      candidates.hold(job, worker, default_timeout)
      job.text = pack_state(job)
      states[found[1]] = job
    end
    if entry[1] > RANK_MAX or (job.deadline_us and job.deadline_us <= clock.now) then
      return false
    end
    line.taken, line.at = line.taken + 1, line.at + 2
    chosen[#chosen + 1] = {id = id, job = job, definition = found[2], payload = found[3]}
  end
  return true
end

-- Write that a chosen job is held.
local function hand_over(one)
  local job = one.job
  redis.call('HSET', keys.job(one.id), FIELD.state, job.text)
  pending.put(tag .. KEY.held .. worker, job.hold_until_us, one.id, KEY.holders, worker)
  if job.deadline_us then
    add_own(one, redis.call('HGET', keys.job(one.id), FIELD.own))
    pending.drop(tag .. KEY.deadlines, keys.numbered(one))
  end
end

-- Remove claimed jobs from their line, and make the next one its head.
local function advance(line)
  pending.count(line.queue, QUEUED, -line.taken)
  pending.count(line.queue, PROCESSING, line.taken)
  pending.run(signatures.concurrency_gate(line.task, ''), line.taken)
  redis.call('ZREMRANGEBYRANK', line.key, 0, line.taken - 1)
  lines.touch(line.queue, line.task, '')
end

local function claim_fast()
  local found, next_due = all_lines()
  local chosen, states = {}, {}
  for _, queue_lines in ipairs(found or {}) do
    if not choose(queue_lines, chosen, states) then
      return nil
    end
  end
  local answer = found and {clock.now, next_due or -1, 0, 0, 0, {}}
  for _, one in ipairs(chosen) do
    hand_over(one)
    local at = #answer
    answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = one.id, one.job.text, one.definition, one.payload
  end
  for _, queue_lines in ipairs(found or {}) do
    for _, line in ipairs(queue_lines) do
      if line.taken > 0 then
        advance(line)
      end
    end
  end
  pending.flush()
  lines.flush()
  return answer
end

local lease = redis.call('ZSCORE', tag .. KEY.leases, worker)
local answer = lease and tonumber(lease) > clock.now and ARGV[5] ~= '1' and ARGV[7] == '' -- no quarantine, no scope
  and redis.call('EXISTS', tag .. KEY.closed_gates) == 0 and claim_fast()
if answer then
  return answer
end

-- fast: settle
-- needs: queues
local settlements, outcomes, kinds = {}, {}, {} -- kinds: the outcomes as a list

-- Whether a settlement is a completion without errors, counters or delays.
local function completes(settled)
  return settled.kind == KIND.COMPLETED and settled.ended and not settled.error
    and settled.failures + settled.crashes + settled.snoozes + settled.releases == 0
end

-- Change a running job to a completed one. General: its end lets others start, or removes a line of history.
local function completed(job, settled)
  local now = clock.now
  job.general = job.cancel_requested or job.keyed or job.attempts >= 2 * POLICY.HISTORY_EACH_END
    or signatures.read(job.signature).ordering or queues.get(job.queue).conf.concurrency
    or (queues.task(job.task) or {}).concurrency
  job.was_awaited, job.retried = job.awaited, job.attempts > 0
  job.status, job.updated_us, job.finished_us, job.attempts = COMPLETED, now, now, job.attempts + 1
  job.settled_fence, job.settled_kind, job.suspect, job.awaited = job.fence, settled.kind, nil, nil
  job.keep_us, job.result_keep_us = settled.keep_us, settled.result_keep_us
  job.has_result = settled.has_result or nil
  job.expires_us = jobs.first_expiry_us(job)
  job.text, job.attempt = pack_state(job), jobs.attempt_line(job, COMPLETED, false)
end

-- The outcome of all jobs with this state and this settlement.
local function outcome(state, settlement)
  local known = table_in(outcomes, settlement)
  local job = known[state]
  if not job then
    job = unpack_state(state)
    job.ended, job.current = 0, job.status == PROCESSING and job.fence
    job.last_fence, job.last_kind = job.settled_fence, job.settled_kind
    if job.current then
      completed(job, settlements[settlement])
    end
    known[state], kinds[#kinds + 1] = job, job
  end
  return job
end

-- The verdict about one job, and its outcome if it ends now; no verdict: the general route must decide.
local function decide(id, fence, settlement, ended)
  local found = redis.call('HMGET', keys.job(id), FIELD.state, FIELD.own, FIELD.bytes)
  local job = found[1] and outcome(found[1], settlement)
  if not job then
    return VERDICT.STALE
  elseif ended[id] then
    return ended[id] == fence and VERDICT.APPLIED or VERDICT.STALE
  elseif job.current == fence then
    ended[id] = fence
    return not job.general and not found[3] and VERDICT.APPLIED or nil, {id = id, job = job, own = found[2]}
  end
  return job.last_fence == fence and job.last_kind == KIND.COMPLETED and VERDICT.APPLIED or VERDICT.STALE
end

local function write(one, result)
  local job = one.job
  redis.call('HSET', keys.job(one.id), FIELD.state, job.text, FIELD.attempt .. job.attempts,
    job.attempt, unpack(job.has_result and {FIELD.result, result} or {}))
  if job.retried then
    redis.call('HDEL', keys.job(one.id), FIELD.error)
  end
  if job.expires_us then
    one.sequence = select(2, cmsgpack.unpack_limit(one.own, 1, 1)) -- the first field
    pending.put(tag .. KEY.expiring, job.expires_us, keys.numbered(one))
  end
  if job.was_awaited then
    wakes.add('job:' .. one.id)
  end
  pending.drop(tag .. KEY.held .. job.worker, one.id, KEY.holders, job.worker)
  if queues.get(job.queue).tenanted then
    pending.drop(tag .. KEY.running_passes .. job.priority .. ':' .. job.queue, one.id)
  end
  job.ended = job.ended + 1
end

local function settle_fast()
  local verdicts, ending, ended = {}, {}, {}
  for at = 2, #ARGV, 4 do
    local settlement, verdict, one = ARGV[at + 3], nil, nil
    settlements[settlement] = settlements[settlement] or unpack_settlement(settlement)
    if completes(settlements[settlement]) then
      verdict, one = decide(ARGV[at], tonumber(ARGV[at + 1]), settlement, ended)
    end
    if not verdict then
      return nil
    end
    verdicts[#verdicts + 1], ending[at] = verdict, one
  end
  for at = 2, #ARGV, 4 do
    if ending[at] then
      write(ending[at], ARGV[at + 2])
    end
  end
  for _, job in ipairs(kinds) do
    pending.count(job.queue, PROCESSING, -job.ended)
    pending.count(job.queue, COMPLETED, job.ended)
    pending.run(signatures.concurrency_gate(job.task, job.signature), -job.ended)
  end
  pending.flush()
  wakes.flush()
  return verdicts
end

local answer = settle_fast()
if answer then
  return answer
end
