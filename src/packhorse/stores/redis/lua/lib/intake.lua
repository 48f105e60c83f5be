-- SPDX-License-Identifier: MIT
-- Submit, in two steps: decide about every job first, then store; so refusals leave no trace.
-- A new job is a list as in lib/entering.
local intake = {}
local SHED_MAX = 10000 -- jobs that one submit may drop from a queue whose limit was lowered
local arrivals, order, deeds, answers = {}, {}, {}, {}
local unique_of, idempotent_of = {}, {} -- keys that arrivals take
local shelf_of, arriving, entered = {}, {}, {}
local reschedules = false

local function refuse_shelf(new)
  local queue = new[NEW.QUEUE]
  if shelf_of[queue] == nil then
    shelf_of[queue] = redis.call('SRANDMEMBER', tag .. ':shelf:' .. queue) or false
  end
  return shelf_of[queue] and {'shelf', new[NEW.ID], queue, shelf_of[queue]}
end

local function refuse_heavy(new, weight)
  local conf, limits = queues.get(new[NEW.QUEUE]).conf, queues.task(new[NEW.TASK])
  for _, rule in ipairs({conf.rate or false, conf.tenant_rate or false, limits and limits.rate or false}) do
    if rule and weight > rule.max then
      return {'heavy', weight, rule.max, rule.window_us}
    end
  end
end

-- Why a job cannot be stored at all, or nil.
local function refused(new)
  local problem = refuse_shelf(new)
  if problem then
    return problem
  elseif queues.get(new[NEW.QUEUE]).closed then
    return {'closed', new[NEW.QUEUE]}
  end
  return refuse_heavy(new, new[NEW.SIGNATURE] == '' and 1 or sigs.read(new[NEW.SIGNATURE]).weight)
end

-- The holder of the idempotency key, which must be about the same payload; or a refusal.
local function same(rules)
  local identity = rules.idempotency_id
  if not identity then
    return
  end
  local arrival = idempotent_of[identity]
  local id, rule
  if arrival then
    id, rule = arrival, arrivals[arrival].rules.idempotency
  else
    local job
    job, rule = holders.idempotency(identity)
    id = job and job.id
  end
  if id and rule.digest ~= rules.idempotency.digest then
    return nil, {'mismatch', id, rules.idempotency.key}
  end
  return id
end

-- What becomes of a new job that meets the holder of its unique key.
local function meet(id, status, new, rules)
  local mode, identity = rules.unique.on_conflict or 'reject', rules.unique_id
  if status == PROCESSING and mode == 'keep_latest' then
    deeds[#deeds + 1] = {kind = 'stash', identity = identity, new = new}
  elseif WAITING[status] and mode ~= 'reject' and mode ~= 'throttle' then
    reschedules = reschedules or mode == 'debounce'
    deeds[#deeds + 1] = {kind = 'stash', identity = identity}
    deeds[#deeds + 1] = {kind = 'change', id = id, new = new, reschedule = mode == 'debounce'}
  end
end

-- The holder of the unique key, once it is known what to do about it.
local function rival(new, rules)
  local identity = rules.unique_id
  if not identity then
    return
  end
  local arrival = unique_of[identity]
  if arrival then -- it waits: nobody claims in the middle of a submit
    meet(arrival, QUEUED, new, rules)
    return arrival
  end
  local job = holders.unique(identity)
  if job then
    meet(job.id, job.status, new, rules)
    return job.id
  end
end

local function admit(new, rules)
  arrivals[new[NEW.ID]] = {new = new, rules = rules}
  order[#order + 1] = new[NEW.ID]
  deeds[#deeds + 1] = {kind = 'arrive', id = new[NEW.ID]}
  arriving[new[NEW.QUEUE]] = (arriving[new[NEW.QUEUE]] or 0) + 1
  if rules and rules.unique_id then
    unique_of[rules.unique_id] = new[NEW.ID]
  end
  if rules and rules.idempotency_id then
    idempotent_of[rules.idempotency_id] = new[NEW.ID]
  end
end

-- Decide about the next job, in view of those before it; a refusal ends the submit.
function intake.consider(new)
  local id = new[NEW.ID]
  if arrivals[id] or redis.call('EXISTS', keys.job(id)) == 1 then
    answers[#answers + 1] = {id, true}
    return
  end
  local problem = refused(new)
  if problem then
    return problem
  end
  local rules, holder = entering.rules(new), nil
  if rules then
    holder, problem = same(rules)
    if problem then
      return problem
    end
    holder = holder or rival(new, rules)
  end
  if holder then
    answers[#answers + 1] = {holder, true}
  else
    admit(new, rules)
    answers[#answers + 1] = {id, false}
  end
end

-- Refuse what does not fit, unless the queue is to drop something for it.
function intake.refuse_full()
  for queue, count in pairs(arriving) do
    local conf = queues.get(queue).conf
    if conf.max_depth and conf.on_full ~= 'drop' then
      local depth = queues.depth(queue)
      if depth + count > conf.max_depth then
        return {'full', queue, depth, conf.max_depth}
      end
    end
  end
end

-- A queue whose first job with a tenant comes, and in which much is ready, must be dealt out first.
function intake.deal_first()
  for _, id in ipairs(order) do
    local new = arrivals[id].new
    local sig, queue = new[NEW.SIGNATURE], new[NEW.QUEUE]
    local first = sig ~= '' and sigs.read(sig).tenant ~= '' or queues.get(queue).dealing
    if first and places.much_to_deal(queue) then
      return {'deal', queue}
    end
  end
end

-- Those of a queue that wait and are the least urgent.
local function least_urgent(queue, count)
  local found = {}
  local members = redis.call('ZREVRANGE', tag .. ':shed:' .. queue, 0, count - 1, 'WITHSCORES')
  for at = 1, #members, 2 do
    local digits = string.byte(members[at], 1) - 96
    found[#found + 1] = {
      tonumber(members[at + 1]),
      tonumber(string.sub(members[at], 2, digits + 1)),
      keys.numbered_id(members[at]),
    }
  end
  return found
end

-- Of a queue that drops: who has to go, and of these who takes no place at all.
local function too_many(queue, count, numbered, doomed, away)
  local limit, depth = queues.get(queue).conf.max_depth, queues.depth(queue)
  local excess = limit and math.min(depth + count - limit, SHED_MAX) or 0
  if excess <= 0 then
    return
  end
  local waiting, arrived = least_urgent(queue, excess), {}
  for _, id in ipairs(order) do
    local new = arrivals[id].new
    if new[NEW.QUEUE] == queue then
      arrived[#arrived + 1] = {tonumber(new[NEW.PRIORITY]), numbered[id], id}
    end
  end
  local all = {}
  for _, list in ipairs({waiting, arrived}) do
    for _, one in ipairs(list) do
      all[#all + 1] = one
    end
  end
  table.sort(all, shedding.less_urgent)
  for at = 1, math.min(excess, #all) do
    doomed[#doomed + 1] = all[at][3]
  end
  shedding.turned_away(waiting, arrived, limit - depth, away)
end

-- Give a waiting holder the newcomer's payload; made due anew, it loses its place.
local function change(deed)
  local job, new = jobs.load(deed.id), deed.new
  job.updated = clock.now
  if not deed.reschedule then
    jobs.save(job, 'p', new[NEW.PAYLOAD])
  else
    index.leave(job)
    job.due = entering.due(new)
    job.status = job.due > clock.now and PENDING or QUEUED
    job.place, job.parked = nil, nil
    if job.status == QUEUED then
      places.take(job)
    end
    index.enter(job)
    jobs.save(job, 'p', new[NEW.PAYLOAD])
  end
  entered[job.id] = job
  wakes.queue(job.queue)
end

local function stash(deed)
  if deed.new then
    redis.call('HSET', tag .. ':stash', deed.identity, cmsgpack.pack(deed.new))
  else
    redis.call('HDEL', tag .. ':stash', deed.identity)
  end
end

-- Do what was decided, in the order given; then give up what is too much.
function intake.store()
  local numbered, first = {}, #order > 0 and places.numbers(#order)
  for at, id in ipairs(order) do
    numbered[id] = first + at - 1
  end
  local doomed, away = {}, {}
  for queue, count in pairs(arriving) do
    if queues.get(queue).conf.on_full == 'drop' then
      too_many(queue, count, numbered, doomed, away)
    end
  end
  for _, deed in ipairs(deeds) do
    if deed.kind == 'arrive' then
      local seq = numbered[deed.id]
      local place = not reschedules and seq or nil
      entered[deed.id] = entering.enter(arrivals[deed.id].new, seq, place, not away[deed.id])
    elseif deed.kind == 'change' then
      change(deed)
    else
      stash(deed)
    end
  end
  for _, id in ipairs(doomed) do
    local job = jobs.load(id) -- one that came just now may have been dealt another pass since
    endings.finish_waiting(job, DEAD, 'shed')
    entered[id] = job
  end
end

-- The status of each new job; id and status of each job that answers for another.
function intake.answers()
  local told = {'ok'}
  for at, answer in ipairs(answers) do
    local job = entered[answer[1]] or jobs.load(answer[1])
    told[at + 1] = answer[2] and {answer[1], job.status} or job.status
  end
  return told
end
