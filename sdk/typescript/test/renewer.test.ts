import * as assert from "node:assert/strict";
import { test } from "node:test";

import { address } from "../src/address.js";
import { Belief, Pages } from "../src/belief.js";
import { Clock } from "../src/clock.js";
import type { Lease } from "../src/renewal-loop.js";
import { Renewer } from "../src/renewer.js";
import { until } from "../testing/support/bench.js";

const HOUR = 3_600_000_000_000n;

test("a thread that dies leaves no lock unattended", async () => {
  const clock = new Clock();
  const renewer = new Renewer(address({ url: "http://127.0.0.1:1" }), clock);
  const unattended: number[] = [];
  const listener = (number: number) => ({
    look: () => undefined,
    unattended: () => void unattended.push(number),
  });
  const place = new Pages().next();
  Belief.held(place, clock.now() + HOUR, undefined, false);
  const lease = (number: number, due: bigint): Lease => {
    return { number, name: "x", id: "y", fence: 1, ttlMs: 30_000, due, slot: place.slot };
  };
  renewer.hold(lease(1, clock.now() + HOUR), place.page, listener(1));
  // A fence that JSON cannot hold breaks the thread.
  const broken = { ...lease(2, clock.now()), fence: 1n as unknown as number };
  renewer.hold(broken, place.page, listener(2));
  await until("both are told", () => unattended.length === 2);
  assert.deepEqual(unattended.sort(), [1, 2]);
  renewer.close();
});
