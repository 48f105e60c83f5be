-- SPDX-License-Identifier: MIT
-- Names the jobs a worker holds that somebody wants cancelled.
-- needs: keys jobs
local wanted = {}
for _, id in ipairs(redis.call('ZRANGE', tag .. ':held:' .. ARGV[2], 0, -1)) do
  if jobs.load(id).cancel then
    wanted[#wanted + 1] = id
  end
end
return wanted
