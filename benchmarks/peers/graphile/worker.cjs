// SPDX-License-Identifier: MIT
// Runs Graphile Worker's jobs: `node worker.cjs CONCURRENCY`, with its local queue, which fetches
// ahead, and with completions in batches. Both are off as it comes, and make it several times faster.
"use strict";

const { Pool } = require("pg");
const { Logger, run } = require("graphile-worker");
const { noop } = require("../node/probe.cjs");

const LOCAL_QUEUE = { size: 500, ttl: 60_000, refetchDelay: { durationMs: 10 } };
const CONNECTIONS = 12;

run({
  pgPool: new Pool({ connectionString: process.env.BENCHMARK_SERVER, max: CONNECTIONS }),
  concurrency: Number(process.argv[2]),
  logger: new Logger(() => () => {}),
  taskList: { noop },
  preset: { worker: { localQueue: LOCAL_QUEUE, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
}).catch((error) => {
  console.error(error);
  process.exit(1);
});
