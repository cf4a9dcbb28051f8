import * as assert from "node:assert/strict";
import { test } from "node:test";

import { Belief, Pages } from "../src/belief.js";

const pages = new Pages();
const place = () => pages.next();

test("a deadline that has passed is a loss", () => {
  const belief = Belief.held(place(), 100n, undefined, false);
  assert.equal(belief.state(99n), "held");
  assert.equal(belief.state(100n), "lost");
  assert.equal(belief.reason(), "deadline_passed");
});

test("a loss does not heal", () => {
  const belief = Belief.held(place(), 100n, undefined, false);
  belief.confirm(100n, 1_000n, false);
  assert.equal(belief.state(0n), "lost");
  belief.confirm(50n, 1_000n, false);
  assert.equal(belief.state(50n), "lost");
  assert.equal(belief.release(50n), false);
});

test("a renewal never moves the deadline back", () => {
  const belief = Belief.held(place(), 100n, undefined, false);
  belief.confirm(50n, 80n, false);
  assert.equal(belief.deadline(), 100n);
  belief.confirm(60n, 150n, false);
  assert.equal(belief.deadline(), 150n);
});

test("no renewal extends a lease past maxHold", () => {
  const belief = Belief.held(place(), 100n, 120n, false);
  belief.confirm(50n, 500n, true);
  assert.equal(belief.deadline(), 120n);
  assert.equal(belief.state(120n), "lost");
  assert.equal(belief.reason(), "max_hold");
});

test("a lease is released once and then not lost", () => {
  const belief = Belief.held(place(), 100n, undefined, false);
  assert.equal(belief.release(10n), true);
  assert.equal(belief.release(10n), false);
  belief.lose("revoked");
  assert.equal(belief.state(200n), "released");
  assert.equal(belief.reason(), undefined);
});

test("a lost lease keeps its first reason", () => {
  const belief = Belief.held(place(), 100n, undefined, false);
  belief.lose("revoked");
  belief.lose("not_found");
  assert.equal(belief.state(500n), "lost");
  assert.equal(belief.reason(), "revoked");
});

test("both threads see one belief", () => {
  const shared = place();
  const belief = Belief.held(shared, 100n, undefined, false);
  const other = new Belief(shared);
  other.confirm(10n, 300n, false);
  assert.equal(belief.deadline(), 300n);
  other.lose("superseded");
  assert.equal(belief.state(20n), "lost");
});

test("no two leases share a place", () => {
  const beliefs = Array.from({ length: 1_000 }, (_, at) => Belief.held(place(), BigInt(at + 1), undefined, false));
  beliefs[500]?.lose("revoked");
  beliefs.forEach((belief, at) => {
    assert.equal(belief.deadline(), BigInt(at + 1));
    assert.equal(belief.state(0n), at === 500 ? "lost" : "held");
  });
});
