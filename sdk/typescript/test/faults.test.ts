// Faults of the network at moments that the scenarios do not reach.

import * as assert from "node:assert/strict";
import { test } from "node:test";

import { sleep, until } from "../testing/support/bench.js";
import { client, fresh, theBench, useBench } from "../testing/support/proxied.js";

useBench();

/** Blocks this thread, so that it does not notice what happens meanwhile. */
function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

test("a cancelled acquire gives back what it got", async () => {
  const bench = theBench();
  const name = fresh();
  const locks = client({ url: bench.proxy, ttl: 120_000, requestTimeout: 60_000 });
  await bench.obey("swallow /acquire");
  const cancel = new AbortController();
  const wait = locks.mutex(name).lock({ signal: cancel.signal });
  await until("the server has granted it", async () => (await client().show(name)).held);
  cancel.abort();
  await assert.rejects(wait, { name: "AbortError" });
  await until("it is free", async () => !(await client().show(name)).held, 15_000);
});

test("a late renewal counts from when it was sent", async () => {
  const bench = theBench();
  const lock = await client({ url: bench.proxy, ttl: 6_000 }).mutex(fresh()).lock();
  await bench.obey("delay to-client 700");
  await until("the grant is partly used up", () => lock.validFor() < 5_000);
  // A renewal that is 700 ms late leaves at most 5 938 - 700 ms.
  let most = 0;
  for (const end = performance.now() + 4_000; performance.now() < end; ) {
    most = Math.max(most, lock.validFor());
    await sleep(5);
  }
  await bench.obey("pass");
  await lock.release();
  assert.ok(most > 0 && most <= 5_238, `${String(most)} ms were left`);
});

test("the lost signal comes by the local timer", async () => {
  // With `maxHold` nothing is renewed, so neither the server nor the renewing thread has a word to say.
  const lock = await client().mutex(fresh(), { maxHold: 4_000 }).lock();
  const { signal } = lock;
  await until("the signal comes", () => signal.aborted, 15_000);
  assert.equal(lock.lostReason, "max_hold");
});

test("a connection that has just died is replaced", async () => {
  const bench = theBench();
  const mutex = client({ url: bench.proxy }).mutex(fresh());
  await mutex.run(() => undefined);
  // The reset arrives while this thread is blocked, so the next request goes out over the dead connection.
  const reset = bench.obey("reset");
  block(1_000);
  const [lock] = await Promise.all([mutex.tryLock(), reset]);
  assert.ok(lock);
  assert.equal(await lock.release(), "released");
});

test("an answer that waited in a blocked loop is not late", async () => {
  const mutex = client({ requestTimeout: 500 }).mutex(fresh());
  const attempt = mutex.tryLock();
  await new Promise((resolve) => setImmediate(resolve));
  block(1_500);
  const lock = await attempt;
  assert.ok(lock);
  await lock.release();
});

test("a lock is kept while connections are reset", async () => {
  const bench = theBench();
  const lock = await client({ url: bench.proxy, ttl: 6_000 }).mutex(fresh()).lock();
  for (let resets = 0; resets < 8; resets++) {
    await bench.obey("reset");
    await sleep(500);
    lock.check();
  }
  assert.equal(await lock.release(), "released");
});
