-- SPDX-License-Identifier: MIT
-- A port of `policies.rate_limit`. A log is a list of {end of slot, weight}, the oldest first.
local rates = {}
local SLOTS = 64

function rates.slot_end(instant, rule)
  local slot = math.ceil(rule.window_us / SLOTS)
  return (math.floor(instant / slot) + 1) * slot - 1
end

-- What of a log still counts, in slots of this rule.
function rates.current(log, rule, now)
  local latest, counted, at = rates.slot_end(now, rule), {}, {}
  for _, grant in ipairs(log) do
    local ends = math.min(rates.slot_end(grant[1], rule), latest)
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
function rates.next_free(log, rule, weight, now)
  if weight > rule.max then
    return nil
  end
  local counted, used, free = rates.current(log, rule, now), 0, now
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

-- The log after a grant.
function rates.granted(log, rule, weight, now)
  local counted, ends = rates.current(log, rule, now), rates.slot_end(now, rule)
  local last = counted[#counted]
  if last and last[1] == ends then
    last[2] = last[2] + weight
  else
    counted[#counted + 1] = {ends, weight}
  end
  return counted
end

function rates.read(gate)
  local text = redis.call('GET', tag .. ':log:' .. gate)
  return text and cmsgpack.unpack(text) or {}
end

-- Keep a log, and when its last grant ends; a log in which nothing counts is left as it is.
function rates.write(gate, log)
  if #log > 0 then
    redis.call('SET', tag .. ':log:' .. gate, cmsgpack.pack(log))
    redis.call('ZADD', tag .. ':logs', log[#log][1], gate)
  end
end
