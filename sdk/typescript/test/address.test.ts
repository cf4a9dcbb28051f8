import * as assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { inspect } from "node:util";

import { address, authority } from "../src/address.js";
import type { AddressOptions } from "../src/address.js";
import { connect, LeaseholdError } from "../src/index.js";

const folder = mkdtempSync(join(tmpdir(), "leasehold-"));
after(() => {
  rmSync(folder, { recursive: true });
});

function refusal(options: AddressOptions, environment: Record<string, string> = {}): string {
  try {
    address(options, environment);
  } catch (error) {
    assert.ok(error instanceof LeaseholdError && error.kind === "invalid_argument");
    return error.message;
  }
  throw new Error("it is accepted");
}

test("a URL is read, and a secret in it is refused", () => {
  const read = address({ url: "https://[::1]:7420/locks/" }, {});
  assert.deepEqual([read.host, read.port, read.tls, read.base], ["::1", 7420, true, "/locks"]);
  assert.equal(authority(read), "[::1]:7420");
  assert.equal(address({ url: "http://example" }, {}).port, 80);
  assert.equal(address({ url: "https://example" }, {}).port, 443);
  for (const url of ["http://", "ftp://h", "http://h:70000", "http://h?x=1", "http://h?cert=a", "h:7420"]) {
    assert.match(refusal({ url }), /`url`|together/);
  }
  assert.doesNotMatch(refusal({ url: "http://u:secret@h" }), /secret/);
});

test("options win over the URL and the environment", () => {
  const file = join(folder, "token");
  writeFileSync(file, "from-file\n");
  const environment = { LEASEHOLD_URL: "http://h:1", LEASEHOLD_TOKEN: "from-environment" };
  assert.equal(address({}, environment).token, "from-environment");
  assert.equal(address({}, environment).port, 1);
  assert.equal(address({ url: `http://h?token_file=${file}` }, environment).token, "from-file");
  assert.equal(address({ tokenFile: file }, environment).token, "from-file");
  assert.equal(address({ token: "given", tokenFile: file }, environment).token, "given");
  assert.equal(address({ url: "http://h:2" }, { LEASEHOLD_TOKEN_FILE: file }).token, "from-file");
});

test("a missing address or an empty variable is an error", () => {
  assert.match(refusal({}), /`LEASEHOLD_URL`/);
  assert.match(refusal({}, { LEASEHOLD_URL: "" }), /`LEASEHOLD_URL` is empty/);
  assert.match(refusal({ url: "http://h" }, { LEASEHOLD_TOKEN: "" }), /`LEASEHOLD_TOKEN` is empty/);
});

test("a token file must hold one token", () => {
  const file = join(folder, "bad");
  for (const text of ["", " \n", "hush hush", "hush\nhush", "h\u00fcsh"]) {
    writeFileSync(file, text);
    assert.match(refusal({ url: "http://h", tokenFile: file }), /must hold one token/);
  }
  assert.match(
    refusal({ url: "http://h", tokenFile: join(folder, "none") }),
    /cannot read the file of `tokenFile`/,
  );
});

test("a certificate needs its key, and both are files", () => {
  assert.match(refusal({ url: "https://h", cert: "x" }), /`cert` and `key` must be given together/);
  assert.match(refusal({ url: "https://h", ca: join(folder, "none") }), /cannot read the file of `ca`/);
});

test("a printed client shows no token", () => {
  const locks = connect({ url: "http://127.0.0.1:1", token: "hush" });
  assert.doesNotMatch(inspect(locks, { depth: 20, showHidden: true }) + JSON.stringify(locks), /hush/);
});

test("bad options are refused before anything is sent", () => {
  const locks = connect({ url: "http://127.0.0.1:1" });
  const bad: [() => unknown, RegExp][] = [
    [() => connect({ url: "http://h", waitPerCall: 60_000 }), /`waitPerCall`/],
    [() => connect({ url: "http://h", ttl: Number.NaN }), /`ttl`/],
    [() => locks.mutex("x", { ttl: 49 }), /`ttl` is 49 ms; it must be 50 to 86400000 ms/],
    [() => locks.mutex("x", { maxHold: 10 }), /`maxHold`/],
    [() => locks.mutex("x", { owner: "" }), /`owner`/],
    [() => locks.mutex("x", { owner: "o".repeat(257) }), /`owner` has 257 bytes/],
    [() => locks.mutex("x", { metadata: "m".repeat(4097) }), /`metadata`/],
    [() => locks.mutex("\ud800"), /surrogate/],
    [() => locks.semaphore("x", 1.5), /`limit`/],
  ];
  for (const [call, message] of bad) assert.throws(call, { kind: "invalid_argument", message });
});
