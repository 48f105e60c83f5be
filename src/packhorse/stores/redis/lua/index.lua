-- SPDX-License-Identifier: MIT
-- The indexes of a job, by its status: leave, change the job, enter, save; then flush once.
-- needs: lines
local index = {}

-- Whether a ready job is in KEY.since: no unconstrained line holds it in the order of its place.
local function apart(job)
  return job.signature ~= '' or job.pass_number ~= 0 or job.rank ~= job.priority or job.suspect
end

local function share(kind, job)
  return tag .. kind .. job.priority .. ':' .. job.queue
end

local function drop(key, _, member, registry, name)
  pending.drop(key, member, registry, name)
end

-- Change the indexes of a job that a claim found past its deadline; upkeep ends it later.
local function late(job, change)
  local pair = keys.pair(job.queue, job.task)
  change(tag .. KEY.since .. job.queue, job.place, job.id)
  change(tag .. KEY.overdue .. pair, job.rank, keys.ranked(job), KEY.overdue_tasks .. job.queue, job.task)
end

-- Index a job that the claim took out of its line because its deadline has passed.
function index.set_late(job)
  late(job, pending.put)
end

-- `pending.put` or `drop` in each index of a queued job.
local function queued(job, change)
  local pair = keys.pair(job.queue, job.task)
  if job.parked_us then
    change(tag .. KEY.parked .. pair, job.sequence, job.id, KEY.parked_pairs, pair)
    return
  end
  if job.deadline_us and change == drop then
    late(job, drop)
  elseif apart(job) then
    change(tag .. KEY.since .. job.queue, job.place, job.id)
  end
  if job.suspect then
    change(tag .. KEY.suspects .. pair, job.rank, keys.ranked(job), KEY.suspect_tasks .. job.queue, job.task)
    redis.call('SADD', tag .. KEY.suspect_queues .. job.task, job.queue)
    return
  end
  change(keys.line(job.queue, job.task, job.signature), job.rank, keys.ranked(job))
  lines.touch(job.queue, job.task, job.signature)
end

-- Whether a job waits in a step of its handler. `suspends`: it is about to be saved so.
local function is_suspended(job)
  if job.status ~= PENDING or (job.attempts or 0) == 0 then
    return false
  end
  return job.suspends or tonumber(redis.call('HGET', keys.job(job.id), FIELD.waits) or -1) == job.fence
end

local function follow(job, change)
  local status, queue = job.status, job.queue
  if status == QUEUED then
    queued(job, change)
  elseif status == PROCESSING then
    change(tag .. KEY.held .. job.worker, job.hold_until_us, job.id, KEY.holders, job.worker)
  elseif WAITING[status] then
    change(tag .. KEY.due .. queue, job.due_us, keys.numbered(job), KEY.due_queues, queue)
    if status ~= PENDING or job.place then
      change(tag .. KEY.retries .. keys.pair(queue, job.task), job.due_us, job.id, KEY.retry_tasks .. queue, job.task)
    end
  else
    if job.expires_us then
      change(tag .. KEY.expiring, job.expires_us, keys.numbered(job))
    end
    if status == DEAD then
      change(tag .. KEY.dead, job.sequence, job.id)
    end
  end
  if WAITING[status] then
    if job.deadline_us then
      change(tag .. KEY.deadlines, job.deadline_us, keys.numbered(job))
    end
    if queues.get(queue).sheds and (change == drop or not is_suspended(job)) then
      change(tag .. KEY.droppable .. queue, job.priority, keys.numbered(job))
    end
  end
end

local function follow_pass(job, change, status)
  if not queues.get(job.queue).tenanted then
    return
  end
  local kind
  if status == PROCESSING then
    kind = KEY.running_passes
  elseif status == QUEUED and not job.parked_us and not job.suspect and job.rank == job.priority then
    kind = KEY.passes
  end
  if kind then
    change(share(kind, job), job.pass_number, job.id)
  end
end

-- Count the bytes of an unfinished job, if its queue or the store has a bound in bytes; a job that is `gone`
-- counts nothing. The counted bytes are stored with the job, so that exactly those are subtracted later.
function index.weigh(job, gone)
  local key, bytes = keys.job(job.id), 0
  local counted = job.bytes or tonumber(redis.call('HGET', key, FIELD.bytes) or 0)
  if not gone and not TERMINAL[job.status] and (counted > 0 or queues.bounds_bytes(job.queue)) then
    bytes = redis.call('HSTRLEN', key, FIELD.payload)
  end
  if bytes ~= counted then
    pending.weigh(job.queue, bytes - counted)
    job.bytes = job.bytes and bytes
    if bytes > 0 then
      redis.call('HSET', key, FIELD.bytes, bytes)
    else
      redis.call('HDEL', key, FIELD.bytes)
    end
  end
end

-- Remove a job from every index, before it is changed.
function index.leave(job)
  pending.count(job.queue, job.status, -1)
  if is_suspended(job) then
    pending.suspend(job.queue, -1)
  end
  if job.status == PROCESSING then
    pending.run(signatures.concurrency_gate(job.task, job.signature), -1)
  end
  follow(job, drop)
  follow_pass(job, drop, job.status)
end

-- Remove a claimed job from every index but its line, which the claim changes itself. It was ready, whatever
-- its status says: jobs of one state are one table, which says PROCESSING from the first of them on.
function index.unready(job)
  pending.count(job.queue, QUEUED, -1)
  if apart(job) or job.deadline_us then
    pending.drop(tag .. KEY.since .. job.queue, job.id)
  end
  if job.deadline_us then
    pending.drop(tag .. KEY.deadlines, keys.numbered(job))
  end
  if queues.get(job.queue).sheds then
    pending.drop(tag .. KEY.droppable .. job.queue, keys.numbered(job))
  end
  follow_pass(job, drop, QUEUED)
end

-- Add a job to the indexes of its status, after it was changed. One that starts keeps its place in the order of its key.
function index.enter(job)
  pending.count(job.queue, job.status, 1)
  if is_suspended(job) then
    pending.suspend(job.queue, 1)
  end
  if job.status == PROCESSING then
    pending.run(signatures.concurrency_gate(job.task, job.signature), 1)
  end
  follow(job, pending.put)
  follow_pass(job, pending.put, job.status)
  if TERMINAL[job.status] or queues.bounds_bytes(job.queue) then
    index.weigh(job)
  end
  if job.status ~= PROCESSING and signatures.read(job.signature).ordering then
    index.follow_order(job)
  end
end

local function holds_line(job)
  return not TERMINAL[job.status] or (job.status == DEAD and job.holds_line)
end

-- Place a job that heads the order of its ordering key now, if it is ready.
local function place_in_order(id)
  local job = jobs.load(id)
  if not job or job.status ~= QUEUED then
    return
  elseif job.parked_us or job.suspect or job.deadline_us then -- perhaps it is not in its line
    lines.touch(job.queue, job.task, job.signature)
  else
    lines.place(job.queue, job.task, job.signature, {job.rank, keys.ranked(job)})
  end
end

-- Add a job to the order of its ordering key, or remove it when it has ended; place the new head.
function index.follow_order(job)
  local order = signatures.order(job.queue, job.signature)
  local before, after = unpack(redis.call('ZRANGE', order, 0, 1))
  if holds_line(job) then
    redis.call('ZADD', order, job.line_number, job.id)
    after = redis.call('ZRANGE', order, 0, 0)[1]
  else
    redis.call('ZREM', order, job.id)
    after = before == job.id and after or before
  end
  if after and after ~= before and after ~= job.id then
    place_in_order(after)
  end
end

-- Remove a deleted job from the line of its ordering key.
function index.forget_order(job)
  if signatures.read(job.signature).ordering and job.holds_line then
    job.holds_line = nil
    index.follow_order(job)
  end
end

-- Write all pending changes and publish the wake-ups. Scripts end with it.
function index.flush()
  pending.flush()
  lines.flush()
  wakes.flush()
end
