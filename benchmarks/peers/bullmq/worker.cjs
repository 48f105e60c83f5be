// SPDX-License-Identifier: MIT
// Runs BullMQ's jobs: `node worker.cjs CONCURRENCY`.
"use strict";

const { Redis } = require("ioredis");
const { Worker } = require("bullmq");
const { noop } = require("../node/probe.cjs");

const connection = new Redis(process.env.BENCHMARK_SERVER, { maxRetriesPerRequest: null });
const worker = new Worker("benchmark", noop, { connection, concurrency: Number(process.argv[2]) });
worker.on("error", (error) => console.error(error));
