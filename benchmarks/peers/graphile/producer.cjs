// SPDX-License-Identifier: MIT
// Submits jobs to Graphile Worker: `node producer.cjs WAY`.
"use strict";

const { Pool } = require("pg");
const { Logger, makeWorkerUtils } = require("graphile-worker");
const { takeTurns } = require("../node/turns.cjs");

async function main(way) {
  const pgPool = new Pool({ connectionString: process.env.BENCHMARK_SERVER });
  const utils = await makeWorkerUtils({ pgPool, logger: new Logger(() => () => {}) });
  await utils.migrate();
  await takeTurns(
    way,
    (number) => utils.addJob("noop", { number }),
    (numbers) => utils.addJobs(numbers.map((number) => ({ identifier: "noop", payload: { number } }))),
  );
  await utils.release();
  await pgPool.end();
}

main(process.argv[2]);
