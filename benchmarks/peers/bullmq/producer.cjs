// SPDX-License-Identifier: MIT
// Submits jobs turn by turn, as benchmarks/peers/submitting.py does: `node producer.cjs WAY`.
"use strict";

const readline = require("node:readline");
const { Redis } = require("ioredis");
const { Queue } = require("bullmq");

const MANY = 1000;

async function submit(queue, way, count) {
  if (way !== "many") {
    for (let number = 0; number < count; number += 1) await queue.add("noop", { number });
    return;
  }
  for (let start = 0; start < count; start += MANY) {
    const length = Math.min(MANY, count - start);
    const jobs = Array.from({ length }, (_, i) => ({ name: "noop", data: { number: start + i } }));
    await queue.addBulk(jobs);
  }
}

async function main(way) {
  const connection = new Redis(process.env.BENCHMARK_SERVER, { maxRetriesPerRequest: null });
  const queue = new Queue("benchmark", { connection, defaultJobOptions: { removeOnComplete: true } });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const count = Number(line);
    const began = performance.now();
    await submit(queue, way, count);
    const seconds = (performance.now() - began) / 1000;
    process.stdout.write(`${JSON.stringify({ count, seconds })}\n`);
  }
  await queue.close();
  connection.disconnect();
}

main(process.argv[2]);
