// What happens to real processes: stopped, killed, blocked; and to their locks when the server restarts.

import * as assert from "node:assert/strict";
import type { ChildProcess } from "node:child_process";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";

import { Bench, sleep, until } from "../testing/support/bench.js";
import { client, fresh, theBench, useBench } from "../testing/support/proxied.js";

useBench();

/** A process of its own that holds a lock and says what it sees. */
class Holder {
  readonly child: ChildProcess;
  readonly lines: string[] = [];

  constructor(url: string, name: string, what: "hold" | "block" | "wait", ttl: number) {
    const program = fileURLToPath(new URL("../testing/programs/holder.js", import.meta.url));
    this.child = spawn(process.execPath, [program, url, name, what, String(ttl)], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    if (this.child.stdout !== null) {
      createInterface({ input: this.child.stdout }).on("line", (line) => this.lines.push(line));
    }
    holders.push(this);
  }

  said(line: string): Promise<void> {
    return until(`the process says ${line}`, () => this.lines.includes(line));
  }
}

const holders: Holder[] = [];
after(() => {
  for (const { child } of holders) child.kill("SIGKILL");
});

test("a process stopped past its ttl finds its lock lost", async () => {
  const [name, ttl] = [fresh(), 5_000];
  const holder = new Holder(theBench().server, name, "hold", ttl);
  await holder.said("held");
  holder.child.kill("SIGSTOP");
  // The name passes on while the process stands still.
  const next = await client().mutex(name).lock({ wait: 30_000 });
  holder.child.kill("SIGCONT");
  await holder.said("first look: lost deadline_passed");
  await holder.said("signal: deadline_passed");
  next.check();
  await next.release();
  assert.ok(!holder.lines.includes("looked held after lost"));
});

test("a process that is killed leaves its lock after one ttl", async () => {
  const [name, ttl] = [fresh(), 2_000];
  const holder = new Holder(theBench().server, name, "hold", ttl);
  await holder.said("held");
  holder.child.kill("SIGKILL");
  const fence = (await client().show(name)).lastFence;
  const next = await client().mutex(name).lock({ wait: 30_000 });
  assert.ok(next.fence > fence);
  await next.release();
});

test("a waiter that is killed leaves the queue", async () => {
  const name = fresh();
  const lock = await client().mutex(name).lock();
  const holder = new Holder(theBench().server, name, "wait", 10_000);
  await until("it waits", async () => (await client().show(name)).queueLength === 1);
  // By now it waits in a long call; killed before, it would leave when its place lapses.
  await sleep(300);
  holder.child.kill("SIGKILL");
  await until("it has left", async () => (await client().show(name)).queueLength === 0);
  await lock.release();
});

test("a blocked event loop keeps its lock", async () => {
  const [name, ttl] = [fresh(), 4_000];
  const holder = new Holder(theBench().server, name, "block", ttl);
  await holder.said("held");
  assert.equal(await client().mutex(name).tryLock(), null);
  await until("the loop runs again", () => holder.lines.length > 1);
  assert.equal(holder.lines[1], "first look: held");
  assert.equal(await client().mutex(name).tryLock(), null);
});

test("a holder and a waiter go on over a restart", async () => {
  const bench = await Bench.start();
  try {
    const locks = client({ url: bench.server });
    const name = fresh();
    const lock = await locks.mutex(name).lock();
    const wait = locks.mutex(name).lock();
    await until("it waits", async () => (await locks.show(name)).queueLength === 1);
    await bench.obey("server restart");
    await sleep(4_500);
    lock.check();
    assert.equal(await lock.release(), "released");
    const next = await wait;
    assert.ok(next.fence > lock.fence);
    assert.equal(await next.release(), "released");
  } finally {
    await bench.stop();
  }
});
