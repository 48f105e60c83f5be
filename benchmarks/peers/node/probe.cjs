// SPDX-License-Identifier: MIT
// The handler of every peer that runs on Node. It writes the first slot of the probe itself, in the
// layout of benchmarks/probe.py: the word of the target, then process, count, first, last, and the
// processor time at the first and at the last job. Node's clock is the machine's monotonic one.
"use strict";

const fs = require("node:fs");

const WORD = 8;
const [PROCESS, COUNT, FIRST, LAST, CPU_FIRST, CPU_LAST, SLOT_WORDS] = [0, 1, 2, 3, 4, 5, 6];
//: Jobs between two looks of the run; the last one is always written.
const TELL_EVERY = 100;

const file = fs.openSync(process.env.BENCHMARK_PROBE, "r+");
const head = Buffer.alloc(WORD);
fs.readSync(file, head, 0, WORD, 0);
const target = Number(head.readBigInt64LE());
const slot = Buffer.alloc(SLOT_WORDS * WORD);
slot.writeBigInt64LE(BigInt(process.pid), PROCESS * WORD);
let count = 0;

const now = () => Number(process.hrtime.bigint()) / 1e9;
const cpu = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};

exports.noop = async () => {
  count += 1;
  if (count === 1) {
    slot.writeDoubleLE(now(), FIRST * WORD);
    slot.writeDoubleLE(cpu(), CPU_FIRST * WORD);
  }
  if (count % TELL_EVERY !== 0 && count !== target) return;
  slot.writeDoubleLE(now(), LAST * WORD);
  slot.writeBigInt64LE(BigInt(count), COUNT * WORD);
  if (count === target) slot.writeDoubleLE(cpu(), CPU_LAST * WORD);
  fs.writeSync(file, slot, 0, slot.length, WORD);
};
