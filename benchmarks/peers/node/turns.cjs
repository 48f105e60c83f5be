// SPDX-License-Identifier: MIT
// Submits jobs turn by turn, as benchmarks/peers/submitting.py does: each line of the input is a
// number of jobs, and each turn prints how long it took.
"use strict";

const readline = require("node:readline");

const MANY = 1000;

// `way` is "many" or one at a time; `one` and `many` submit the numbers they are given.
exports.takeTurns = async (way, one, many) => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const count = Number(line);
    const began = performance.now();
    if (way === "many") {
      for (let start = 0; start < count; start += MANY) {
        const length = Math.min(MANY, count - start);
        await many(Array.from({ length }, (_, i) => start + i));
      }
    } else {
      for (let number = 0; number < count; number += 1) await one(number);
    }
    const seconds = (performance.now() - began) / 1000;
    process.stdout.write(`${JSON.stringify({ count, seconds })}\n`);
  }
};
