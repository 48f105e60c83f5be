-- SPDX-License-Identifier: MIT
-- Counts the jobs that wait in a queue.
-- needs: keys queues
return queues.depth(ARGV[2])
