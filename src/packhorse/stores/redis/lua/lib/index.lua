-- SPDX-License-Identifier: MIT
-- Where a job is to be found, as it stands: leave, change the job, enter, save; then flush once.
local index = {}

-- Whether a ready job is one that its line alone does not show in the order of its place.
local function apart(job)
  return job.sig ~= '' or job.pass ~= 0 or job.rank ~= job.priority or job.suspect
end

local function share(kind, job)
  return tag .. kind .. job.priority .. ':' .. job.queue
end

local function drop(key, _, member, registry, name)
  pending.drop(key, member, registry, name)
end

-- A job that a claim found past its deadline stands apart until upkeep gives it up.
local function late(job, change)
  local pair = keys.pair(job.queue, job.task)
  change(tag .. ':since:' .. job.queue, job.place, job.id)
  change(tag .. ':late:' .. pair, job.rank, keys.ranked(job), ':latet:' .. job.queue, job.task)
end

-- Set a job aside that the claim took out of its line.
function index.set_late(job)
  late(job, pending.put)
end

-- `pending.put` or `drop` in each index of a queued job.
local function queued(job, change)
  local pair = keys.pair(job.queue, job.task)
  if job.parked then
    change(tag .. ':pk:' .. pair, job.seq, job.id, ':pkt', pair)
    return
  end
  if job.deadline and change == drop then
    late(job, drop)
  elseif apart(job) then
    change(tag .. ':since:' .. job.queue, job.place, job.id)
  end
  if job.suspect then
    change(tag .. ':sus:' .. pair, job.rank, keys.ranked(job), ':sust:' .. job.queue, job.task)
    redis.call('SADD', tag .. ':susq:' .. job.task, job.queue)
    return
  end
  change(keys.line(job.queue, job.task, job.sig), job.rank, keys.ranked(job))
  lines.touch(job)
end

local function follow(job, change)
  local status, queue = job.status, job.queue
  if status == QUEUED then
    queued(job, change)
  elseif status == PROCESSING then
    change(tag .. ':held:' .. job.worker, job.hold, job.id, ':holders', job.worker)
  elseif WAITING[status] then
    change(tag .. ':due:' .. queue, job.due, keys.numbered(job), ':dueq', queue)
    if status ~= PENDING or job.place then
      change(tag .. ':rt:' .. keys.pair(queue, job.task), job.due, job.id, ':rtt:' .. queue, job.task)
    end
  else
    if job.expires then
      change(tag .. ':exp', job.expires, keys.numbered(job))
    end
    if status == DEAD then
      change(tag .. ':dead', job.seq, job.id)
    end
  end
  if WAITING[status] then
    if job.deadline then
      change(tag .. ':dl', job.deadline, keys.numbered(job))
    end
    if queues.get(queue).sheds then
      change(tag .. ':shed:' .. queue, job.priority, keys.numbered(job))
    end
  end
end

-- Passes are read while a script goes on, so they are written at once.
local function follow_pass(job, there)
  if not queues.get(job.queue).tenanted then
    return
  end
  local kind
  if job.status == PROCESSING then
    kind = ':run:'
  elseif job.status == QUEUED and not job.parked and not job.suspect and job.rank == job.priority then
    kind = ':pass:'
  end
  if kind and there then
    redis.call('ZADD', share(kind, job), job.pass, job.id)
  elseif kind then
    redis.call('ZREM', share(kind, job), job.id)
  end
end

-- Take a job out of every index, as it stands.
function index.leave(job)
  pending.count(job.queue, job.status, -1)
  if job.status == PROCESSING then
    pending.run(sigs.concurrency_gate(job.task, job.sig), -1)
  end
  follow(job, drop)
  follow_pass(job, false)
end

-- Take a job that is claimed from its line out of all else; the claim sees to the line.
function index.unready(job)
  pending.count(job.queue, QUEUED, -1)
  if apart(job) or job.deadline then
    pending.drop(tag .. ':since:' .. job.queue, job.id)
  end
  if job.deadline then
    pending.drop(tag .. ':dl', keys.numbered(job))
  end
  if queues.get(job.queue).sheds then
    pending.drop(tag .. ':shed:' .. job.queue, keys.numbered(job))
  end
  follow_pass(job, false)
end

-- Put a job into every index it belongs to, as it stands.
function index.enter(job)
  pending.count(job.queue, job.status, 1)
  if job.status == PROCESSING then
    pending.run(sigs.concurrency_gate(job.task, job.sig), 1)
  end
  follow(job, pending.put)
  follow_pass(job, true)
  if sigs.read(job.sig).ordering then
    index.follow_order(job)
  end
end

-- Stand in the line of one's ordering key, or no longer; the new head may be let go.
function index.follow_order(job)
  local order = sigs.order(job.queue, job.sig)
  local before = redis.call('ZRANGE', order, 0, 0)[1]
  if not TERMINAL[job.status] or (job.status == DEAD and job.holds_line) then
    redis.call('ZADD', order, job.line, job.id)
  else
    redis.call('ZREM', order, job.id)
  end
  local after = redis.call('ZRANGE', order, 0, 0)[1]
  if after and after ~= before and after ~= job.id then
    local head = jobs.load(after)
    if head and head.status == QUEUED then
      lines.touch(head)
    end
  end
end

-- Take a job that is removed out of the line of its ordering key.
function index.forget_order(job)
  if sigs.read(job.sig).ordering and job.holds_line then
    job.holds_line = nil
    index.follow_order(job)
  end
end

-- Write everything, and wake whom it concerns. The last thing a script does.
function index.flush()
  pending.flush()
  lines.flush()
  wakes.flush()
end
