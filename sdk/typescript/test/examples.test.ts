// The examples run against a real server, and the pages show exactly these programs.

import * as assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { PACKAGE } from "../testing/support/bench.js";
import { theBench, useBench } from "../testing/support/proxied.js";

useBench();

const SAYS: Record<string, RegExp> = {
  "by-hand": /^shared held\nconfig 1 held\nreleased\n$/,
  cancel: /^stopped: (revoked|not_found|superseded|expired)\n$/,
  fence: /^the stale write was refused\n$/,
  job: /^building the report, fence \d{15}\n42 rows\n$/,
  semaphore: /^(job [abcd] is done\n){4}$/,
  timeout: /^deploying\n$/,
};

function run(example: string): Promise<string> {
  const program = fileURLToPath(new URL(`dist/examples/${example}.js`, PACKAGE));
  const env = { ...process.env, LEASEHOLD_URL: theBench().server };
  return new Promise((resolve, reject) => {
    execFile(process.execPath, [program], { env, timeout: 60_000 }, (error, stdout, stderr) => {
      if (error === null) resolve(stdout);
      else reject(new Error(stdout + stderr, { cause: error }));
    });
  });
}

for (const [example, says] of Object.entries(SAYS)) {
  test(`the example ${example} runs`, async () => {
    assert.match(await run(example), says);
  });
}

test("every example is run", () => {
  const files = readdirSync(new URL("examples/", PACKAGE)).map((file) => file.replace(".ts", ""));
  assert.deepEqual(files.sort(), Object.keys(SAYS).sort());
});

test("the pages show the examples as they are", () => {
  const shown = new Set<string>();
  for (const page of ["README.md", "../../docs/typescript.md"]) {
    const text = readFileSync(new URL(page, PACKAGE), "utf8");
    assert.ok(!/^```(ts|js)$/m.test(text), `${page} names the file of each program`);
    for (const [, file = "", code] of text.matchAll(/^```ts file=(\S+)\n(.*?)^```$/gms)) {
      assert.equal(code, readFileSync(new URL(`examples/${file}`, PACKAGE), "utf8"), `${page}: ${file}`);
      shown.add(file.replace(".ts", ""));
    }
  }
  assert.deepEqual([...shown].sort(), Object.keys(SAYS).sort());
});
