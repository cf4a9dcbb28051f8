import * as assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { inspect } from "node:util";

import type { Lock } from "../src/index.js";
import { fenceText, LeaseholdError, lossOf, LostError, TimeoutError } from "../src/index.js";
import { sleep, until } from "../testing/support/bench.js";
import { client, fresh, theBench, useBench } from "../testing/support/proxied.js";

useBench();

/** Revokes a lock and waits until its holder knows. */
async function lose(lock: Lock): Promise<void> {
  await client().revoke(lock.name, { now: true });
  await until("the lock is lost", () => lock.state === "lost");
}

test("a lock shows what was asked for and granted", async () => {
  const name = fresh();
  const lock = await client().mutex(name, { owner: "me", metadata: "why" }).lock();
  assert.deepEqual([lock.name, lock.mode, lock.owner, lock.state], [name, "exclusive", "me", "held"]);
  assert.equal(lock.fenceText, fenceText(lock.fence));
  assert.match(lock.fenceText, /^\d{15}$/);
  assert.ok(lock.validFor() > 0 && lock.validFor() <= 9_898);
  lock.check();
  const info = await client().show(name);
  assert.deepEqual([info.held, info.lastFence, info.holders[0]?.metadata], [true, lock.fence, "why"]);
  assert.equal(await lock.release(), "released");
  assert.equal(lock.state, "released");
  assert.throws(
    () => {
      lock.check();
    },
    { kind: "aborted" },
  );
  assert.equal(lock.signal.aborted, false);
});

test("a printed lock shows no lease id", async () => {
  const lock = await client().mutex(fresh()).lock();
  const printed = inspect(lock, { depth: 20, showHidden: true }) + JSON.stringify(lock);
  assert.ok(!printed.includes(lock.leaseId));
  await lock.release();
});

test("busy is null, and a server that is down rejects", async () => {
  const mutex = client().mutex(fresh());
  const lock = await mutex.lock();
  assert.equal(await mutex.tryLock(), null);
  assert.equal(await mutex.tryRun(() => 1), null);
  await assert.rejects(mutex.lock({ wait: 0 }), TimeoutError);
  await lock.release();
  assert.equal(await mutex.tryRun(() => 1), 1);
  const nowhere = client({ url: "http://127.0.0.1:1" }).mutex("x");
  await assert.rejects(nowhere.tryLock(), { kind: "unavailable", retryable: true });
});

test("a wait ends with its limit", async () => {
  const mutex = client().mutex(fresh());
  await mutex.run(async () => {
    const error: unknown = await mutex.lock({ wait: 300 }).catch((thrown: unknown) => thrown);
    assert.ok(error instanceof TimeoutError && error.kind === "timeout" && error.waited >= 300);
  });
});

test("a cancelled wait rejects with the signal's reason", async () => {
  const name = fresh();
  const mutex = client().mutex(name);
  await mutex.run(async () => {
    const cancel = new AbortController();
    const wait = mutex.lock({ signal: cancel.signal });
    await until("it waits", async () => (await client().show(name)).queueLength === 1);
    const reason = new Error("enough");
    cancel.abort(reason);
    await assert.rejects(wait, reason);
    await until("it has left", async () => (await client().show(name)).queueLength === 0);
    await assert.rejects(mutex.lock({ signal: AbortSignal.abort(reason) }), reason);
  });
});

test("run releases after work that succeeds or fails", async () => {
  const mutex = client().mutex(fresh());
  assert.equal(await mutex.run((lock) => lock.fence > 0), true);
  const mine = new Error("mine");
  await assert.rejects(
    mutex.run(() => {
      throw mine;
    }),
    mine,
  );
  const lock = await mutex.tryLock();
  assert.ok(lock);
  await lock.release();
});

test("run rejects with the loss, after the work has ended", async () => {
  let ended = false;
  const run = client()
    .mutex(fresh(), { ttl: 3_000 })
    .run(async (lock) => {
      await Promise.all([
        new Promise((resolve) => {
          lock.signal.addEventListener("abort", resolve);
        }),
        client().revoke(lock.name, { now: true }),
      ]);
      assert.ok(lock.signal.reason instanceof LostError);
      await sleep(50);
      ended = true;
    });
  await assert.rejects(run, LostError);
  assert.ok(ended);
});

test("work that is cancelled by the signal rejects with the loss", async () => {
  const { setTimeout: wait } = await import("node:timers/promises");
  const run = client()
    .mutex(fresh(), { ttl: 3_000 })
    .run(async (lock) => {
      await client().revoke(lock.name, { now: true });
      await wait(60_000, undefined, { signal: lock.signal });
    });
  await assert.rejects(run, LostError);
});

test("an error of the work wins, and has the loss attached", async () => {
  const mine = new Error("mine");
  const run = client()
    .mutex(fresh(), { ttl: 3_000 })
    .run(async (lock) => {
      await lose(lock);
      throw mine;
    });
  await assert.rejects(run, mine);
  assert.ok(lossOf(mine) instanceof LostError);
  assert.equal(mine.cause, lossOf(mine));
  assert.equal(lossOf(new Error("other")), undefined);
});

test("a release that fails hides no error of the work", async () => {
  const bench = theBench();
  const failures: LeaseholdError[] = [];
  const locks = client({
    url: bench.proxy,
    requestTimeout: 200,
    releaseTimeout: 500,
    onReleaseError: (error) => failures.push(error),
  });
  const mine = new Error("mine");
  const work = async () => {
    const lock = await locks.mutex(fresh()).lock();
    try {
      await bench.obey("blackhole");
      throw mine;
    } finally {
      assert.equal(await lock.release(), "failed");
      assert.equal(lock.releaseError?.kind, "network_timeout");
    }
  };
  await assert.rejects(work(), mine);
  await bench.obey("pass");
  assert.deepEqual(
    failures.map((error) => error.kind),
    ["network_timeout"],
  );
});

test("await using releases", async () => {
  const mutex = client().mutex(fresh());
  {
    await using lock = await mutex.lock();
    lock.check();
    assert.equal(await mutex.tryLock(), null);
  }
  assert.equal(await mutex.tryRun(() => "free"), "free");
});

test("readers share, and permits are counted", async () => {
  const { read, write } = client().rwlock(fresh());
  const readers = [await read.lock(), await read.lock()];
  assert.equal(await write.tryLock(), null);
  await Promise.all(readers.map((lock) => lock.release()));
  await write.run((lock) => {
    assert.equal(lock.mode, "exclusive");
  });

  const permits = client().semaphore(fresh(), 2);
  const taken = [await permits.lock(), await permits.lock()];
  assert.equal(await permits.tryLock(), null);
  await Promise.all(taken.map((lock) => lock.release()));
});

test("a lost lock rejects at once while the server is silent", async () => {
  const bench = theBench();
  const locks = client({ url: bench.proxy, ttl: 2_000 });
  const began = performance.now();
  const run = locks.mutex(fresh()).run(async (lock) => {
    await bench.obey("blackhole");
    await new Promise((resolve) => {
      lock.signal.addEventListener("abort", resolve);
    });
  });
  await assert.rejects(run, { name: "LostError", reason: "deadline_passed" });
  const took = performance.now() - began;
  await bench.obey("pass");
  assert.ok(took < 6_000, `${String(took)} ms`);
});

test("a lock that is garbage collected is renewed no more", { timeout: 60_000 }, async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  const name = fresh();
  const warned = new Promise<Error>((resolve) => process.once("warning", resolve));
  const { signal, reference } = await (async () => {
    const lock = await client({ ttl: 5_000 }).mutex(name).lock();
    return { signal: lock.signal, reference: new WeakRef(lock) };
  })();
  await until("the lock is collected", async () => {
    await sleep(1);
    collect();
    return reference.deref() === undefined;
  });
  assert.match((await warned).message, /garbage collected before it was released/);
  // The name becomes free, and the program that kept the signal learns of it before.
  await until("its holder is gone", async () => !(await client().show(name)).held);
  assert.ok(signal.aborted && signal.reason instanceof LostError);
});

test("closing ends waits and waits for releases", async () => {
  const name = fresh();
  const locks = client();
  const lock = await client().mutex(name).lock();
  const wait = locks.mutex(name).lock();
  const ended = assert.rejects(wait, { kind: "aborted" });
  await until("it waits", async () => (await client().show(name)).queueLength === 1);
  await locks.close();
  await ended;
  assert.equal((await client().show(name)).queueLength, 0);
  await assert.rejects(locks.mutex(name).lock(), { kind: "aborted" });
  await lock.release();
});

test("a held lock does not keep the process alive", async () => {
  const { spawn } = await import("node:child_process");
  const code = `import { connect } from ${JSON.stringify(new URL("../src/index.js", import.meta.url).href)};
    await connect({ url: process.argv[1] }).mutex(process.argv[2]).lock();`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", code, theBench().server, fresh()], {
    stdio: "inherit",
  });
  const exit = await new Promise((resolve) => child.once("exit", resolve));
  assert.equal(exit, 0);
});

test("list, show and revoke say what there is", async () => {
  const locks = client();
  const prefix = `${fresh()}/`;
  const held = await Promise.all(["a", "b", "c"].map((name) => locks.mutex(prefix + name).lock()));
  const seen: string[] = [];
  for await (const info of locks.list(prefix, { pageSize: 2 })) seen.push(info.name.slice(prefix.length));
  assert.deepEqual(seen, ["a", "b", "c"]);
  assert.equal(await locks.revoke(`${prefix}a`, { fence: 1 }), 0);
  assert.equal(await locks.revoke(`${prefix}a`, { now: true, fence: held[0]?.fence }), 1);
  assert.equal((await locks.show(`${prefix}a`)).held, false);
  await Promise.all(held.map((lock) => lock.release()));
});

test("many locks are renewed together", async () => {
  const locks = client({ ttl: 6_000 });
  const prefix = fresh();
  const mutexes = Array.from({ length: 600 }, (_, at) => locks.mutex(`${prefix}/${String(at)}`));
  const held = await Promise.all(mutexes.map((mutex) => mutex.lock()));
  const last = `${prefix}/599`;
  await until("the last is renewed twice", async () => ((await locks.show(last)).holders[0]?.renewals ?? 0) >= 2);
  for (const lock of held) lock.check();
  await Promise.all(held.map((lock) => lock.release()));
});
