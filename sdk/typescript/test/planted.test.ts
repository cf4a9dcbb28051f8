// Each planted bug is caught by the check that is named for it. The bug is patched into a copy of the compiled package;
// what ships has no switch for it.

import * as assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import ts from "typescript";

import { PACKAGE, proxyProgram, serverProgram } from "../testing/support/bench.js";
import { vectorsPath } from "../testing/support/vectors.js";

interface Bug {
  readonly what: string;
  readonly file: string;
  /** What is replaced, exactly once, by what. */
  readonly patches: readonly (readonly [string, string])[];
  /** The scenario, or the test file and test, that must fail. */
  readonly caught: { readonly scenario: string } | { readonly file: string; readonly test: string };
}

const BUGS: readonly Bug[] = [
  {
    what: "a deadline counted from the answer",
    file: "acquire.ts",
    patches: [
      [
        "settings, fence, leftMs, waitedMs, sent }, now);",
        "settings, fence, leftMs, waitedMs, sent: now }, now);",
      ],
    ],
    caught: { scenario: "deadline-from-sending" },
  },
  {
    what: "a renewal counted from its answer",
    file: "renewal-loop.ts",
    patches: [["deadline(sent, 0,", "deadline(now, 0,"]],
    caught: { file: "faults.test.js", test: "a late renewal counts from when it was sent" },
  },
  {
    what: "a loss that heals",
    file: "belief.ts",
    patches: [
      [
        'if (this.state(now) !== "held") return;\n    const until',
        "Atomics.store(this.#cells, STATE, HELD);\n    const until",
      ],
    ],
    caught: { file: "belief.test.js", test: "a loss does not heal" },
  },
  {
    what: "a signal that waits for the server's word",
    file: "held.ts",
    patches: [["this.#timer = setTimeout(() => this.look(),", "this.#timer = setTimeout(() => undefined,"]],
    caught: { file: "faults.test.js", test: "the lost signal comes by the local timer" },
  },
  {
    what: "renewal on the user's thread",
    file: "renewer.ts",
    patches: [
      ["const thread = new Worker(", "const thread = onThisThread("],
      [
        'import { Worker } from "node:worker_threads";',
        `import { EventEmitter } from "node:events";
         import { attend } from "./renewal-thread.js";
         function onThisThread(_, { workerData }) {
           const [thread, user] = [new EventEmitter(), new EventEmitter()];
           thread.postMessage = (message) => setImmediate(() => user.emit("message", message));
           user.postMessage = (message) => thread.emit("message", message);
           [thread.unref, thread.terminate] = [() => undefined, async () => undefined];
           attend(workerData, user);
           return thread;
         }`,
      ],
    ],
    caught: { file: "processes.test.js", test: "a blocked event loop keeps its lock" },
  },
  {
    what: "a retry with a new id",
    file: "acquire.ts",
    patches: [["this.#lastFault = error;", "this.#lastFault = error; this.#id = randomLeaseId();"]],
    caught: { scenario: "acquire-answer-lost" },
  },
  {
    what: "a cancel without a give-back",
    file: "acquire.ts",
    patches: [["this.#closeSilent();\n    this.#giveBack();", "this.#closeSilent();"]],
    caught: { file: "faults.test.js", test: "a cancelled acquire gives back what it got" },
  },
  {
    what: "a grant that is returned after its deadline",
    file: "acquire.ts",
    patches: [["if (now < deadline(sent, waitedMs, leftMs, settings.ttlMs)) {", "if (now !== undefined) {"]],
    caught: { scenario: "grant-too-late" },
  },
  {
    what: "a dead connection that is an error",
    file: "transport.ts",
    patches: [["if (sent.reusedSocket && tries < MAX_DEAD) {", "if (tries > MAX_DEAD) {"]],
    caught: { file: "faults.test.js", test: "a connection that has just died is replaced" },
  },
  {
    what: "a lost release answer that counts as gone",
    file: "release.ts",
    patches: [["return done || (held && unanswered)", "return done"]],
    caught: { scenario: "release-answer-lost" },
  },
];

const folders: string[] = [];
after(() => {
  for (const folder of folders) rmSync(folder, { recursive: true });
});

/** A copy of the compiled package with the bug in it. */
function planted(bug: Bug): string {
  const folder = mkdtempSync(join(tmpdir(), "leasehold-bug-"));
  folders.push(folder);
  cpSync(new URL("dist/", PACKAGE), join(folder, "dist"), { recursive: true });
  cpSync(new URL("package.json", PACKAGE), join(folder, "package.json"));
  let source = readFileSync(new URL(`src/${bug.file}`, PACKAGE), "utf8");
  for (const [from, to] of bug.patches) {
    assert.equal(source.split(from).length, 2, `${bug.file} has exactly once: ${from}`);
    source = source.replace(from, () => to);
  }
  const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext };
  const { outputText } = ts.transpileModule(source, { compilerOptions });
  writeFileSync(join(folder, "dist/src", bug.file.replace(".ts", ".js")), outputText);
  return folder;
}

/** Runs the check that is named for the bug; returns its exit code and what it says. */
function check({ caught }: Bug, folder: string): Promise<{ code: number; said: string }> {
  const scenarios = "scenario" in caught;
  const args = scenarios
    ? [join(folder, "dist/testing/programs/scenarios.js")]
    : [
        "--test",
        "--test-reporter=tap",
        `--test-name-pattern=^${caught.test}$`,
        join(folder, "dist/test", caught.file),
      ];
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    LEASEHOLD_BIN: serverProgram(),
    LEASEHOLD_FAULT_PROXY: proxyProgram(),
    LEASEHOLD_SDK_VECTORS: fileURLToPath(vectorsPath()),
    SDK_CASES: scenarios ? caught.scenario : "",
  };
  // Otherwise a test process inside a test process reports in another form.
  delete env["NODE_TEST_CONTEXT"];
  return new Promise((resolve) => {
    execFile(process.execPath, args, { env, timeout: 120_000 }, (error, stdout, stderr) => {
      resolve({
        code: typeof error?.code === "number" ? error.code : error === null ? 0 : -1,
        said: stdout + stderr,
      });
    });
  });
}

describe("planted bugs are caught", { concurrency: 4 }, () => {
  for (const bug of BUGS) {
    const named = "scenario" in bug.caught ? bug.caught.scenario : bug.caught.test;
    test(`${bug.what} is caught`, async () => {
      const { code, said } = await check(bug, planted(bug));
      assert.equal(code, 1, said);
      assert.match(said, new RegExp(`^not ok (\\d+ - )?${named}`, "m"), said);
    });
  }
});
