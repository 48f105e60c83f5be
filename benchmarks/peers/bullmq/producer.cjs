// SPDX-License-Identifier: MIT
// Submits jobs to BullMQ: `node producer.cjs WAY`.
"use strict";

const { Redis } = require("ioredis");
const { Queue } = require("bullmq");
const { takeTurns } = require("../node/turns.cjs");

async function main(way) {
  const connection = new Redis(process.env.BENCHMARK_SERVER, { maxRetriesPerRequest: null });
  const queue = new Queue("benchmark", { connection, defaultJobOptions: { removeOnComplete: true } });
  await takeTurns(
    way,
    (number) => queue.add("noop", { number }),
    (numbers) => queue.addBulk(numbers.map((number) => ({ name: "noop", data: { number } }))),
  );
  await queue.close();
  connection.disconnect();
}

main(process.argv[2]);
