-- SPDX-License-Identifier: MIT
-- Limits that block ready jobs: ports of `policies.rate_limit` and `policies.gates`.
-- A log is a list of {end of slot, weight}, the oldest first.
-- needs: lines
local rate_limit = {}

function rate_limit.slot_end_us(instant, rule)
  local slot = math.ceil(rule.window_us / POLICY.SLOTS)
  return (math.floor(instant / slot) + 1) * slot - 1
end

-- The latest slot in which a grant of now, or one before, is counted.
local function latest_end_us(rule, now)
  return rate_limit.slot_end_us(now + POLICY.ALLOWANCE_US_MAX, rule)
end

-- The grants of a log that still count, in slots of this rule.
function rate_limit.current(log, rule, now)
  local latest, counted, at = latest_end_us(rule, now), {}, {}
  for _, grant in ipairs(log) do
    local ends = math.min(rate_limit.slot_end_us(grant[1], rule), latest)
    if ends + rule.window_us > now then
      if at[ends] then
        counted[at[ends]][2] = counted[at[ends]][2] + grant[2]
      else
        counted[#counted + 1] = {ends, grant[2]}
        at[ends] = #counted
      end
    end
  end
  return counted
end

-- The first instant from `now` on at which so much may be granted; nil when there never is one.
function rate_limit.next_free_us(log, rule, weight, now)
  if weight > rule.max then
    return nil
  end
  local counted, used, free = rate_limit.current(log, rule, now), 0, now
  for _, grant in ipairs(counted) do
    used = used + grant[2]
  end
  for _, grant in ipairs(counted) do
    if used + weight <= rule.max then
      break
    end
    free = grant[1] + rule.window_us
    used = used - grant[2]
  end
  return free
end

-- The entry of a log, as `current` returned it, in which a grant to a job that starts within the allowance counts.
function rate_limit.slot(log, rule, now, allowance)
  local step = math.max(1, math.ceil(allowance / POLICY.SLOTS))
  local start = math.ceil((now + allowance) / step) * step
  local ends = math.min(rate_limit.slot_end_us(start, rule), latest_end_us(rule, now))
  local at = #log
  while at > 0 and log[at][1] > ends do
    at = at - 1
  end
  if at == 0 or log[at][1] ~= ends then
    at = at + 1
    table.insert(log, at, {ends, 0})
  end
  return log[at]
end

function rate_limit.read(gate)
  local text = redis.call('GET', tag .. KEY.rate_log .. gate)
  return text and cmsgpack.unpack(text) or {}
end

-- Keep a log, and when its last grant ends; a log in which nothing counts is left as it is.
function rate_limit.write(gate, log)
  if #log > 0 then
    redis.call('SET', tag .. KEY.rate_log .. gate, cmsgpack.pack(log))
    redis.call('ZADD', tag .. KEY.rate_logs, log[#log][1], gate)
  end
end

-- A gate is named by a letter for its kind, see GATE, and what it is about.
local gates = {}
local any_shut

-- Whether any gate is paused or closed for a time, whatever the limits.
local function shut()
  if any_shut == nil then
    any_shut = redis.call('EXISTS', tag .. KEY.closed_gates) == 1
  end
  return any_shut
end

local function shut_until(gate)
  return shut() and redis.call('HGET', tag .. KEY.closed_gates, gate)
end

local function add_pauses(names, queue, parts)
  local asked = {GATE.pause .. 't' .. keys.len(queue) .. parts.tenant}
  local seen = {}
  for _, name in ipairs({'ordering', 'concurrency', 'rate'}) do
    local key = parts[name]
    if key and not seen[key] then
      seen[key] = true
      asked[#asked + 1] = GATE.pause .. 'k' .. keys.len(queue) .. key
    end
  end
  for _, gate in ipairs(asked) do
    if shut_until(gate) then
      names[#names + 1] = gate
    end
  end
end

-- The names of a job's gates, in the order in which they are asked.
function gates.gates_of(queue, task, signature)
  local conf, limits, parts = queues.get(queue).conf, queues.task(task), signatures.read(signature)
  local names = {}
  if shut() then
    add_pauses(names, queue, parts)
  end
  if parts.ordering then
    names[#names + 1] = GATE.order .. keys.len(queue) .. keys.len(parts.tenant) .. parts.ordering
  end
  if limits and limits.concurrency then
    names[#names + 1] = signatures.concurrency_gate(task, signature)
  end
  if conf.concurrency then
    names[#names + 1] = GATE.queue_concurrency .. queue
  end
  if (limits and limits.rate) or shut_until(signatures.rate_gate(task, signature)) then
    names[#names + 1] = signatures.rate_gate(task, signature)
  end
  if conf.tenant_rate then
    names[#names + 1] = GATE.tenant_rate .. keys.len(queue) .. parts.tenant
  end
  if conf.rate then
    names[#names + 1] = GATE.queue_rate .. queue
  end
  return names
end

-- The state of a gate before the first job of this claim.
local function state_of(name, queue, task, signature)
  local kind, until_text = string.sub(name, 1, 1), shut_until(name)
  local conf, limits = queues.get(queue).conf, queues.task(task) or {}
  local gate = {name = name, shut = until_text == '', until_us = tonumber(until_text or 0) or 0, head = nil}
  if kind == GATE.order then
    gate.head = redis.call('ZRANGE', signatures.order(queue, signature), 0, 0)[1]
  elseif kind == GATE.task_concurrency or kind == GATE.task_concurrency_key then
    gate.limit = limits.concurrency
    gate.running = tonumber(redis.call('HGET', tag .. KEY.running, name) or 0)
  elseif kind == GATE.queue_concurrency then
    gate.limit, gate.running = conf.concurrency, queues.count(queue, PROCESSING)
  elseif kind == GATE.task_rate or kind == GATE.task_rate_key then
    gate.rule = limits.rate
  elseif kind == GATE.tenant_rate then
    gate.rule = conf.tenant_rate
  elseif kind == GATE.queue_rate then
    gate.rule = conf.rate
  end
  if gate.rule then
    gate.log, gate.used = rate_limit.current(rate_limit.read(name), gate.rule, clock.now), 0
    for _, grant in ipairs(gate.log) do
      gate.used = gate.used + grant[2]
    end
  end
  return gate
end

local function blocked_by_time(gate, weight)
  local free = math.max(clock.now, gate.until_us)
  if gate.rule and (free > clock.now or gate.used + weight > gate.rule.max) then
    free = rate_limit.next_free_us(gate.log, gate.rule, weight, free)
  end
  if not free then -- the limit was lowered below its weight: it must not block others
    return {gate = gate, closes = false, never = true}
  elseif free > clock.now then
    return {gate = gate, closes = true, reopens = free}
  end
end

-- How one gate blocks a job; nil: it does not.
local function blocked_by(gate, id, weight)
  if gate.shut or gate.closed then
    return {gate = gate, closes = true}
  elseif gate.head and gate.head ~= id then
    return {gate = gate, closes = false}
  elseif gate.limit and gate.running >= gate.limit then
    return {gate = gate, closes = true}
  end
  return blocked_by_time(gate, weight)
end

-- Whether a rate that refuses a job would let a lighter one through.
local function too_heavy(gate, weight)
  if weight == 1 or not gate.rule or gate.shut or gate.closed then
    return false
  end
  return blocked_by_time(gate, 1) == nil
end

-- How the first closed gate blocks a job, or nil: the job may start.
function gates.admit(asked, id, weight)
  for at, gate in ipairs(asked) do
    local blocked = blocked_by(gate, id, weight)
    if blocked then
      blocked.heavy = too_heavy(gate, weight)
      for other = at + 1, blocked.heavy and #asked or at do
        if blocked_by(asked[other], id, weight) then
          blocked.closes = false
        end
      end
      return blocked
    end
  end
end

-- All gates that are closed to a job now; `explain` shows them.
function gates.closed(asked, id, weight)
  local found = {}
  for _, gate in ipairs(asked) do
    local blocked = blocked_by(gate, id, weight)
    if blocked then
      found[#found + 1] = blocked
    end
  end
  return found
end

-- Lets jobs through one after another, and counts those it let through for the next.
-- Those that a rate limit lets go start within the allowance; their ids are kept.
function gates.turnstile(allowance)
  return {gates = {}, lists = {}, reopens = nil, allowance = allowance or 0, rated = {}}
end

-- The gates of a job as this turnstile knows them.
function gates.asked(turnstile, queue, task, signature)
  local lists = table_in(table_in(turnstile.lists, queue), task)
  local list = lists[signature]
  if not list then
    list = {}
    for at, name in ipairs(gates.gates_of(queue, task, signature)) do
      turnstile.gates[name] = turnstile.gates[name] or state_of(name, queue, task, signature)
      list[at] = turnstile.gates[name]
    end
    lists[signature] = list
  end
  return list
end

-- What blocks a job, or nil: then it counts from now on.
function gates.pass(turnstile, job)
  local asked = gates.asked(turnstile, job.queue, job.task, job.signature)
  if #asked == 0 then
    return
  end
  local weight = signatures.read(job.signature).weight
  local blocked = gates.admit(asked, job.id, weight)
  if blocked then
    blocked.gate.closed = blocked.gate.closed or blocked.closes
    if blocked.reopens then
      turnstile.reopens = math.min(turnstile.reopens or blocked.reopens, blocked.reopens)
    end
    return blocked
  end
  local rated = false
  for _, gate in ipairs(asked) do
    if gate.running then
      gate.running = gate.running + 1
    end
    if gate.rule then
      gate.slot = gate.slot or rate_limit.slot(gate.log, gate.rule, clock.now, turnstile.allowance)
      gate.slot[2], gate.used = gate.slot[2] + weight, gate.used + weight
      rated = true
    end
  end
  if rated then
    turnstile.rated[#turnstile.rated + 1] = job.id
  end
end

-- When time may open a gate to the lightest job; 'inf' when only an event opens it.
function gates.opens(gate)
  if gate.shut or gate.limit or gate.head then
    return 'inf'
  end
  local blocked = blocked_by_time(gate, 1)
  return blocked and (blocked.reopens or 'inf') or 0
end

-- Write the logs with the new grants; also without any, see `rate_limit.current`.
function gates.write_logs(turnstile)
  for name, gate in pairs(turnstile.gates) do
    if gate.rule then
      rate_limit.write(name, gate.log)
    end
  end
end
