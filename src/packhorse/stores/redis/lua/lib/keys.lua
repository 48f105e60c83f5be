-- SPDX-License-Identifier: MIT
-- Names of keys, and texts that keep their order. Every key begins with the namespace's hash tag.
local tag = KEYS[1]
local keys = {}

-- Status codes, in the order of `job.JobStatus`.
local PENDING, QUEUED, PROCESSING, COMPLETED = 0, 1, 2, 3
local FAILED, CANCELLED, TIMEOUT, DEAD = 4, 5, 6, 7
local WAITING = {[PENDING] = true, [QUEUED] = true, [FAILED] = true, [TIMEOUT] = true}
local TERMINAL = {[COMPLETED] = true, [CANCELLED] = true, [DEAD] = true}

-- A whole number as text; `tostring` and `..` would round it above 10^14.
function keys.number(value)
  return string.format('%.0f', value)
end

-- A number as text that sorts as the number does: its digits, after a letter that says how many.
function keys.enc(value)
  local digits = string.format('%.0f', value)
  return string.char(96 + #digits) .. digits
end

-- A part of a name that may hold any character.
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
  return tag .. ':j:' .. id
end

function keys.line(queue, task, sig)
  return tag .. ':l:' .. #queue .. ':' .. queue .. #task .. ':' .. task .. sig
end

function keys.group(queue, task, gate)
  return tag .. ':g:' .. #queue .. ':' .. queue .. #task .. ':' .. task .. gate
end

-- Where a job stands in its line: the order of (pass, place), and its id.
function keys.ranked(job)
  return keys.enc(job.pass) .. keys.enc(job.place) .. job.id
end

function keys.ranked_id(member)
  local at = string.byte(member, 1) - 94
  return string.sub(member, at + string.byte(member, at) - 95)
end

function keys.ranked_place(member)
  local at = string.byte(member, 1) - 94
  return tonumber(string.sub(member, at + 1, at + string.byte(member, at) - 96))
end

-- Where a job stands among equals: by its number, and its id.
function keys.numbered(job)
  return keys.enc(job.seq) .. job.id
end

function keys.numbered_id(member)
  return string.sub(member, string.byte(member, 1) - 94)
end
