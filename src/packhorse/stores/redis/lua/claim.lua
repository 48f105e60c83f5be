-- SPDX-License-Identifier: MIT
-- Claim, the general route; lua/fast.lua has the fast one.

-- script: claim
-- Hands ready jobs to one worker alone.
-- Arguments: worker, limit, default timeout, 1 for a quarantine claim else 0, how long after the claim
-- jobs with a rate limit may start, tenants and levels of queues as msgpack or '' for all, the number of
-- queues, the queues, the tasks. To the tenants and levels a text that the script before answered is joined.
-- Answer: clock, next due or -1, 1 if a suspect waits, 1 if the lease is lost, 1 or such a text if there may be
-- more to look at, the ids that a rate limit let go, then id, state, definition and payload of each job.
-- needs: candidates places limits
local PROMOTED_MAX = 1000
local REFUSED_MAX = 1000 -- lines that are found held back, and jobs found expired, in one script
local SUSPECTS_MAX = 1000 -- suspects of one queue and task that a claim of suspects looks at
local SUSPECTS_SEEN_MAX = 50 -- those that every other claim looks at
local worker, limit, default_timeout = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local quarantine, queues_given = ARGV[5] == '1', tonumber(ARGV[8])
candidates.scope(ARGV[7])
local answer, given, refusals, opens = {clock.now, -1, 0, 0, 0, {}}, 0, 0, nil
local turnstile = gates.turnstile(tonumber(ARGV[6]))

local lease = redis.call('ZSCORE', tag .. KEY.leases, worker)
if not lease or tonumber(lease) <= clock.now then
  answer[4] = 1
  return answer
end

local function earlier(instant)
  if instant and (answer[2] == -1 or instant < answer[2]) then
    answer[2] = instant
  end
end

local function hand_over(job, definition, payload)
  if job.status ~= PROCESSING then
    candidates.hold(job, worker, default_timeout)
    job.alone = quarantine or nil
    job.text = pack_state(job)
  end
  index.enter(job)
  redis.call('HSET', keys.job(job.id), FIELD.state, job.text)
  if queues.get(job.queue).conf.max_depth then
    wakes.add('room:' .. job.queue)
  end
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = job.id, job.text, definition, payload
  given = given + 1
end

-- Where the line of a blocked job waits, and from when on it is worth a look.
local function waiting_group(blocked, weight)
  if blocked.heavy or blocked.never then
    return '#' .. weight .. ':' .. blocked.gate.name, blocked.never and 'inf' or 0
  end
  return blocked.gate.name, gates.opens(blocked.gate)
end

-- Whether a block holds for all jobs of the queue.
local function whole_queue(blocked)
  local kind = string.sub(blocked.gate.name, 1, 1)
  return blocked.closes and (kind == GATE.queue_concurrency or kind == GATE.queue_rate)
end

local states = {} -- jobs by the text of their states: those that share it become the same

-- The job of an entry of a line, with its definition and payload; it is good until the next one is read. The
-- entry tells rank and pass, so that few need their own state.
local function job_of(queue, entry)
  local id = keys.ranked_id(entry[2])
  local found = redis.call('HMGET', keys.job(id), FIELD.state, FIELD.definition, FIELD.payload)
  local job = states[found[1]] or unpack_state(found[1])
  states[found[1]] = job
  if job.deadline_us or queues.get(queue).sheds then
    add_own(job, redis.call('HGET', keys.job(id), FIELD.own))
  end
  job.id, job.rank, job.pass_number = id, entry[1], keys.ranked_pass(entry[2])
  return job, found[2], found[3]
end

-- Give out a job that stands in a line. Returns what blocks it; else it has left the line.
local function serve(job, definition, payload)
  if job.deadline_us and job.deadline_us <= clock.now then
    refusals = refusals + 1 -- upkeep ends it; until then it is out of the way
    index.set_late(job)
    return
  end
  local blocked = gates.pass(turnstile, job)
  if not blocked then
    index.unready(job)
    hand_over(job, definition, payload)
  end
  return blocked
end

-- The entry of a line behind those that have left it, read with as many as may follow.
local function entry_behind(line, read, left, bound)
  if #read < 2 * left + 2 then
    local more = redis.call('ZRANGE', line, left, left + (bound and left or limit - given + 1) - 1, 'WITHSCORES')
    for at = 1, #more do
      read[2 * left + at] = more[at]
    end
  end
  return read[2 * left + 1] and {tonumber(read[2 * left + 2]), read[2 * left + 1]}
end

-- Give out the head of a line and those behind it that come before `bound`. Returns its signature, the head
-- that it has then, and what blocked that.
local function serve_line(source, bound)
  local entry, left, blocked = source.first, {}, nil
  local read = {entry[2], entry[1]}
  local job, definition, payload = job_of(source.queue, entry)
  local signature = job.signature
  local line = keys.line(source.queue, source.task, signature)
  while true do
    blocked = serve(job, definition, payload)
    if blocked then
      break
    end
    left[#left + 1] = entry[2]
    -- The head of an ordering key stays first in its order until it ends.
    entry = not signatures.read(signature).ordering and entry_behind(line, read, #left, bound)
    if not entry or given >= limit or refusals >= REFUSED_MAX or candidates.beyond(source.queue, entry[1])
      or (bound and not candidates.before(entry, bound)) then
      break
    end
    job, definition, payload = job_of(source.queue, entry)
  end
  pending.many('ZREM', line, left)
  return signature, entry, blocked
end

-- Serve one line of the source that comes first. Returns false when the queue has no more.
local function serve_first(all)
  local source, bound = candidates.best(all)
  if not source then
    return false
  end
  local stands = {source.gate, source.first[2]}
  local signature, head, blocked = serve_line(source, bound)
  if not blocked or whole_queue(blocked) then
    lines.place(source.queue, source.task, signature, head, nil, stands)
    candidates.go_on(source, head)
    return not blocked
  end
  local group, from = waiting_group(blocked, signatures.read(signature).weight)
  lines.place(source.queue, source.task, signature, head, group, stands)
  lines.open_group(source.queue, source.task, group, from)
  refusals = refusals + 1
  for _, other in ipairs(all) do
    other.spent = other.spent or (other.task == source.task and other.gate == group)
  end
  candidates.go_on(source)
  return true
end

local function serve_ready(queue, tasks)
  local all, later = candidates.sources(queue, candidates.known(tag .. KEY.ready_tasks .. queue, tasks), limit - given)
  opens = later and math.min(opens or later, later) or opens
  while given < limit and refusals < REFUSED_MAX and serve_first(all) do
    -- one line after the other
  end
end

-- Go through the suspects of a queue and these tasks whose deadline has not passed: at most `most` of
-- each task, in the order of claiming. Each is read when it comes to it. `in_turn`: if there are
-- more, begin somewhere among them, each time elsewhere.
local function each_suspect(queue, tasks, most, in_turn)
  local entries = {}
  for _, task in ipairs(candidates.known(tag .. KEY.suspect_tasks .. queue, tasks)) do
    local key = tag .. KEY.suspects .. keys.pair(queue, task)
    local count = in_turn and redis.call('ZCARD', key) or 0
    local first = count > most and clock.now % count or 0
    local found = redis.call('ZRANGE', key, first, first + most - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
      entries[#entries + 1] = {tonumber(found[at + 1]), found[at]}
    end
  end
  table.sort(entries, candidates.before)
  local at = 0
  return function()
    while at < #entries do
      at = at + 1
      local job = jobs.load(keys.ranked_id(entries[at][2]))
      if candidates.is_wanted(job) and not (job.deadline_us and job.deadline_us <= clock.now) then
        return job
      end
    end
  end
end

local function serve_suspects(queue, tasks)
  for job in each_suspect(queue, tasks, SUSPECTS_MAX, false) do
    if not gates.pass(turnstile, job) then
      local found = redis.call('HMGET', keys.job(job.id), FIELD.definition, FIELD.payload)
      index.leave(job)
      hand_over(job, found[1], found[2])
      if given >= limit then
        return
      end
    end
  end
end

-- Whether a suspect of these queues could go; if time opens the gate of one, when.
local function suspects_wait(open, tasks)
  local alone = gates.turnstile()
  for _, queue in ipairs(open) do
    for job in each_suspect(queue, tasks, SUSPECTS_SEEN_MAX, true) do
      if not gates.pass(alone, job) then
        return true
      end
    end
  end
  earlier(alone.reopens)
  return false
end

local open = candidates.queue_order({unpack(ARGV, 9, 8 + queues_given)})
local tasks = candidates.tasks({unpack(ARGV, 9 + queues_given)})
for _, queue in ipairs(open) do
  local due = queues.next_due(queue)
  if due and due <= clock.now then
    places.promote(queue, PROMOTED_MAX)
    pending.flush()
    lines.flush()
    due = queues.next_due(queue)
  end
  earlier(due)
end
local serve = quarantine and serve_suspects or serve_ready
for _, queue in ipairs(open) do
  if given < limit and refusals < REFUSED_MAX then
    serve(queue, tasks)
  end
end
gates.write_logs(turnstile)
pending.flush()
lines.flush()
if given < limit then
  earlier(turnstile.reopens)
  earlier(opens)
end
answer[3] = suspects_wait(open, tasks) and 1 or 0
answer[5] = given < limit and (candidates.passed() or (refusals >= REFUSED_MAX and 1)) or 0
answer[6] = turnstile.rated
wakes.flush()
return answer
