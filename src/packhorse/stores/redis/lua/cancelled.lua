-- SPDX-License-Identifier: MIT
-- Names the jobs a worker holds that somebody wants cancelled, some of those it holds at a time.
-- Arguments: worker, how many to pass over. Answer: the jobs, and how many to pass over next, or -1.
-- needs: keys jobs
local LOOKED_AT = 1000 -- jobs that one script looks at
local first, wanted = tonumber(ARGV[3]), {}
local held = redis.call('ZRANGE', tag .. ':held:' .. ARGV[2], first, first + LOOKED_AT - 1)
for _, id in ipairs(held) do
  if jobs.load(id).cancel then
    wanted[#wanted + 1] = id
  end
end
return {wanted, #held == LOOKED_AT and first + LOOKED_AT or -1}
