-- SPDX-License-Identifier: MIT
-- Submit, in two steps: decide about every job first, then store; so refusals leave no trace.
-- needs: new_jobs depth settle
local arrivals, order, deeds, answers = {}, {}, {}, {}
local unique_of, idempotent_of = {}, {} -- keys that arrivals take
local shelf_of, arriving, entered = {}, {}, {}
local reschedules, unbounded = false, false -- unbounded: neither depth nor a closed queue refuses

local function refuse_shelf(new)
  local queue = new[NEW.queue]
  if shelf_of[queue] == nil then
    shelf_of[queue] = redis.call('SRANDMEMBER', tag .. KEY.shelf .. queue) or false
  end
  return shelf_of[queue] and {'shelf', new[NEW.id], queue, shelf_of[queue]}
end

local function refuse_heavy(new, weight)
  local conf, limits = queues.get(new[NEW.queue]).conf, queues.task(new[NEW.task])
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
  elseif not unbounded and (queues.get(new[NEW.queue]).closed or redis.call('EXISTS', tag .. KEY.copied) == 1) then
    return {'closed', new[NEW.queue]}
  end
  return refuse_heavy(new, new[NEW.signature] == '' and 1 or signatures.read(new[NEW.signature]).weight)
end

-- As policies.uniqueness.same_payload: what was made in another way cannot be compared.
local function same_payload(theirs, ours)
  return theirs == ours
    or (string.match(theirs, '^(.*):') or '') ~= (string.match(ours, '^(.*):') or '')
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
    job, rule = uniqueness.idempotency(identity)
    id = job and job.id
  end
  if id and not same_payload(rule.digest, rules.idempotency.digest) then
    return nil, {'mismatch', id, rules.idempotency.key}
  end
  return id
end

-- Decide about a new job whose unique key another job holds.
local function conflict(id, status, new, rules)
  local mode, identity = rules.unique.on_conflict or 'reject', rules.unique_id
  if status == PROCESSING and mode == 'keep_latest' then
    deeds[#deeds + 1] = {kind = 'stash', identity = identity, new = new}
  elseif WAITING[status] and mode ~= 'reject' and mode ~= 'throttle' then
    reschedules = reschedules or mode == 'debounce'
    deeds[#deeds + 1] = {kind = 'stash', identity = identity}
    deeds[#deeds + 1] = {kind = 'change', id = id, new = new, reschedule = mode == 'debounce'}
  end
end

-- The id of the job that holds the unique key, after deciding what happens to it.
local function rival(new, rules)
  local identity = rules.unique_id
  if not identity then
    return
  end
  local arrival = unique_of[identity]
  if arrival then -- it waits: no claim comes in the middle of a submit
    conflict(arrival, QUEUED, new, rules)
    return arrival
  end
  local job = uniqueness.unique(identity)
  if job then
    conflict(job.id, job.status, new, rules)
    return job.id
  end
end

local function admit(new, rules)
  arrivals[new[NEW.id]] = {new = new, rules = rules}
  order[#order + 1] = new[NEW.id]
  deeds[#deeds + 1] = {kind = 'arrive', id = new[NEW.id]}
  depth.arrive(arriving, new[NEW.queue], new[NEW.payload])
  if rules and rules.unique_id then
    unique_of[rules.unique_id] = new[NEW.id]
  end
  if rules and rules.idempotency_id then
    idempotent_of[rules.idempotency_id] = new[NEW.id]
  end
end

-- Decide about the next job, in view of those before it; a refusal ends the submit.
local function consider(new)
  local id = new[NEW.id]
  if arrivals[id] or redis.call('EXISTS', keys.job(id)) == 1 then
    answers[#answers + 1] = {id, true}
    return
  end
  local problem = refused(new)
  if problem then
    return problem
  end
  local rules, holder = new_jobs.rules(new), nil
  local older = rules and rules.member and journal.older_worker(POLICY.SCHEMA_OF_GROUPS)
  if older then
    return {'older', older}
  end
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

-- Ask for `deal` first, if this is a queue's first job with a tenant and very many jobs are ready.
local function deal_first()
  for _, id in ipairs(order) do
    local new = arrivals[id].new
    local sig, queue = new[NEW.signature], new[NEW.queue]
    local first = sig ~= '' and signatures.read(sig).tenant ~= '' or queues.get(queue).dealing
    if first and places.much_to_deal(queue) then
      return {'deal', queue}
    end
  end
end

-- Choose the jobs that a full queue drops.
local function give_up(queue, numbered, doomed, away)
  local arrived = {}
  for _, id in ipairs(order) do
    local new = arrivals[id].new
    if new[NEW.queue] == queue then
      arrived[#arrived + 1] = {tonumber(new[NEW.priority]), numbered[id], id, #new[NEW.payload]}
    end
  end
  depth.give_up(queue, arrived, doomed, away)
end

-- Give a waiting holder the newcomer's payload; rescheduled, it loses its place.
local function change(deed)
  local job, new = jobs.load(deed.id), deed.new
  job.updated_us = clock.now
  if not deed.reschedule then
    jobs.save(job, FIELD.payload, new[NEW.payload])
  else
    index.leave(job)
    job.due_us = new_jobs.due(new)
    job.status = job.due_us > clock.now and PENDING or QUEUED
    job.place, job.parked_us = nil, nil
    if job.status == QUEUED then
      places.take(job)
    end
    index.enter(job)
    jobs.save(job, FIELD.payload, new[NEW.payload])
  end
  index.weigh(job)
  entered[job.id] = job
  wakes.queue(job.queue)
end

local function stash(deed)
  if deed.new then
    redis.call('HSET', tag .. KEY.stash, deed.identity, cmsgpack.pack(deed.new))
  else
    redis.call('HDEL', tag .. KEY.stash, deed.identity)
  end
end

-- Carry out the decisions in order, then drop what is too much; returns the dropped ids.
local function store()
  local numbered, first = {}, #order > 0 and places.numbers(#order)
  for at, id in ipairs(order) do
    numbered[id] = first + at - 1
  end
  local doomed, away = {}, {}
  for queue in pairs(arriving) do
    if queues.get(queue).conf.on_full == 'drop' and not unbounded then
      give_up(queue, numbered, doomed, away)
    end
  end
  for _, deed in ipairs(deeds) do
    if deed.kind == 'arrive' then
      local sequence = numbered[deed.id]
      local place = not reschedules and sequence or nil
      entered[deed.id] = new_jobs.enter(arrivals[deed.id].new, sequence, place, not away[deed.id])
    elseif deed.kind == 'change' then
      change(deed)
    else
      stash(deed)
    end
  end
  for _, id in ipairs(doomed) do
    local job = jobs.load(id) -- one that came just now may have been dealt another pass since
    settle.finish_waiting(job, DEAD, DEAD_REASON.SHED)
    entered[id] = job
  end
  return doomed
end

-- The status of each new job; id and status of each job that answers for another; or a refusal.
local function submit_reply(shed)
  local reply = {'ok', shed}
  for at, answer in ipairs(answers) do
    local job = not answer.refused and (entered[answer[1]] or jobs.load(answer[1]))
    reply[at + 2] = job and (answer[2] and {answer[1], job.status} or job.status) or {'refused', answer.refused}
  end
  return reply
end

-- Decide about each job by itself, ignoring depth and closed queues; returns what must be done first.
local function decide_each(given)
  unbounded = true
  for _, new in ipairs(given) do
    local problem = uniqueness.refuse_strangers(new) or consider(new)
    if problem then
      answers[#answers + 1] = {refused = problem}
    end
  end
  return deal_first()
end

-- The parts of every new job.
local function new_parts()
  local given = {}
  if ARGV[2] == '' then
    for first = 3, #ARGV, NEW_PARTS do
      given[#given + 1] = {unpack(ARGV, first, first + NEW_PARTS - 1)}
    end
    return given
  end
  local queue, task, priority, timeout, definition = unpack(ARGV, 3, 7)
  for at = 8, #ARGV, 2 do
    given[#given + 1] = {
      ARGV[at], definition, ARGV[at + 1], queue, task, priority, '', '+0', '', timeout, '',
    }
  end
  return given
end

local function decide(given)
  for _, decision in ipairs({uniqueness.refuse_strangers, consider}) do
    for _, new in ipairs(given) do
      local problem = decision(new)
      if problem then
        return problem
      end
    end
  end
  return depth.refuse_full(arriving) or deal_first()
end

-- script: submit
-- Stores jobs, all of them or none.
-- Arguments: "alike" if the jobs are of one kind, "new" if no id of them was ever submitted besides, else
-- nothing. Of one kind: their queue, task, priority, timeout and definition, then id and payload of each; they
-- are due now, without keys, deadline, tenant or weight, and no id comes twice. Of others the parts of each:
-- see NEW.
-- Answer: "ok" if all were stored and are queued. Else {"ok", the ids of jobs that full queues gave
-- up, then for each job its status, or {id, status} of the one that answers for it}. Or what is wrong:
-- "shelf" id queue of, "closed" queue, "heavy" weight max window, "mismatch" id key, "stranger" id,
-- "full" queue depth limit, "older" worker; or "deal" queue: run `deal` first.
-- needs: submit
local problem = decide(new_parts())
if problem then
  return problem
end
local reply = submit_reply(store())
index.flush()
return reply
