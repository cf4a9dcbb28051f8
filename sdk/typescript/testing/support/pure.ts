// The pure cases of the vectors: what needs no server.

import * as assert from "node:assert/strict";

import { LeaseholdError } from "../../src/errors.js";
import { fenceText } from "../../src/fence.js";
import { randomLeaseId } from "../../src/lease-id.js";
import { deadline, firstRenewal, pause, renewalRetry, renewalTimeout, waitMs } from "../../src/limits.js";
import { normalise, segment } from "../../src/name.js";
import { kindOf } from "../../src/wire.js";
import type { KINDS, MODES } from "./record.js";
import { encode, fnv1a } from "./record.js";
import type { Vectors } from "./vectors.js";

/** Each case by its id. */
export function pureCases({ pure }: Vectors): [string, () => void][] {
  const cases: [string, () => void][] = [];
  const group = <T>(name: string, items: readonly T[], check: (item: T) => void) => {
    items.forEach((item, at) =>
      cases.push([
        `${name}-${String(at)}`,
        () => {
          check(item);
        },
      ]),
    );
  };
  group("segments", pure.segments, (one) => {
    assert.equal(segment(normalise(one.name)), one.segment);
  });
  group("names_refused", pure.names_refused, (name) => {
    const refused = (error: unknown) => error instanceof LeaseholdError && error.kind === "invalid_argument";
    assert.throws(() => normalise(name), refused);
  });
  group("lease_id", [pure.lease_id], ({ form, bytes }) => {
    const [one, other] = [randomLeaseId(), randomLeaseId()];
    assert.match(one, new RegExp(form));
    assert.equal(Buffer.from(one, "base64url").length, bytes);
    assert.notEqual(one, other);
  });
  group("deadlines", pure.deadlines, (one) => {
    const found = deadline(BigInt(one.sent_ns), one.waited_ms, one.expires_in_ms, one.ttl_ms);
    assert.equal(found, BigInt(one.deadline_ns));
  });
  group("first_renewals", pure.first_renewals, (one) => {
    assert.equal(firstRenewal(one.ttl_ms, one.expires_in_ms), BigInt(one.after_ns));
  });
  group("renewal_timeouts", pure.renewal_timeouts, (one) => {
    assert.equal(renewalTimeout(one.ttl_ms), BigInt(one.timeout_ns));
  });
  group("renewal_retries", pure.renewal_retries, (one) => {
    assert.equal(renewalRetry(one.ttl_ms), BigInt(one.after_ns));
  });
  group("pauses", pure.pauses, (one) => {
    assert.equal(pause(one.faults, 0), one.least_ms);
    assert.equal(pause(one.faults, 1), one.most_ms);
  });
  group("waits", pure.waits, (one) => {
    assert.equal(waitMs(one.left_ms ?? Number.POSITIVE_INFINITY, one.per_call_ms), one.wait_ms);
  });
  group("errors", pure.errors, (one) => {
    assert.equal(kindOf(one.status, one.code), one.kind);
  });
  group("fences", pure.fences, (one) => {
    assert.equal(fenceText(one.number), one.text);
  });
  group("hashes", pure.hashes, (one) => {
    assert.equal(fnv1a(Buffer.from(one.lease_id)), BigInt(one.fnv1a));
  });
  group("records", pure.records, (one) => {
    const record = {
      kind: one.kind as keyof typeof KINDS,
      mode: one.mode as keyof typeof MODES,
      place: one.place,
      task: one.task,
      worker: one.worker,
      claim: BigInt(one.claim),
      at: BigInt(one.at),
      lease: BigInt(one.lease),
      fence: BigInt(one.fence),
      deadline: BigInt(one.deadline),
      value: BigInt(one.value),
    };
    assert.equal(encode(record).toString("hex"), one.hex);
  });
  return cases;
}
