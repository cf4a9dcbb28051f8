// One process of the mixed test of all languages: takes one mutex again and again, and logs when it has it.

import { appendFileSync, readFileSync } from "node:fs";

import { connect } from "../../src/index.js";
import { sleep } from "../support/bench.js";

interface Task {
  url: string;
  lock: string;
  ttl_ms: number;
  rounds: number;
  log: string;
  me: string;
  clock_offset_ns?: number;
}

const task = JSON.parse(readFileSync(process.argv[2] ?? "", "utf8")) as Task;
const offset = BigInt(task.clock_offset_ns ?? 0);
const mutex = connect({ url: task.url, ttl: task.ttl_ms }).mutex(task.lock);

function log(event: string, fence: number): void {
  const at = process.hrtime.bigint() + offset;
  appendFileSync(task.log, `${task.me} ${event} ${String(fence)} ${String(at)}\n`);
}

for (let round = 0; round < task.rounds; round++) {
  const lock = await mutex.lock();
  log("enter", lock.fence);
  await sleep(1 + Math.random() * 8);
  log(lock.state === "held" ? "leave" : "lost", lock.fence);
  await lock.release();
}
