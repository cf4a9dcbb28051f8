import * as assert from "node:assert/strict";
import { uptime } from "node:os";
import { test } from "node:test";

import { Clock } from "../src/clock.js";

const SECOND = 1_000_000_000n;

test("the clock agrees with the uptime, and never goes back", () => {
  const clock = new Clock();
  let last = clock.now();
  for (let look = 0; look < 1_000; look++) {
    const now = clock.now();
    assert.ok(now >= last);
    last = now;
  }
  const up = BigInt(Math.round(uptime() * 1_000)) * 1_000_000n;
  const apart = clock.now() - up;
  assert.ok(apart > -SECOND && apart < SECOND, `${String(apart)} ns apart`);
});

test("the clock counts the time of a suspend", () => {
  const clock = new Clock();
  const before = clock.now();
  // As after a suspend of five seconds: the uptime is ahead of the monotonic clock and its offset.
  Atomics.sub(new BigInt64Array(clock.shared), 0, 5n * SECOND);
  const after = clock.now();
  assert.ok(after >= before && after < before + SECOND, `${String(after - before)} ns`);
});

test("a suspend that one thread notices counts in the other", () => {
  const clock = new Clock();
  const other = new Clock(clock.shared);
  Atomics.sub(new BigInt64Array(clock.shared), 0, 5n * SECOND);
  other.now();
  const apart = clock.now() - other.now();
  assert.ok(apart <= 0n && apart > -SECOND, `${String(apart)} ns`);
  assert.equal(clock.offset(), other.offset());
});

test("a rounded uptime is no suspend", () => {
  const clock = new Clock();
  const offset = clock.offset();
  const end = performance.now() + 100;
  while (performance.now() < end) clock.now();
  assert.equal(clock.offset(), offset);
});
