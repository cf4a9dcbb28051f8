// Credentials against a real server: TLS with an authority and client certificates of its own, and a token.

import * as assert from "node:assert/strict";
import type { ChildProcess } from "node:child_process";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { connect, LeaseholdError } from "../src/index.js";
import { serverProgram, until } from "../testing/support/bench.js";

const folder = mkdtempSync(join(tmpdir(), "leasehold-tls-"));
const at = (file: string) => join(folder, file);
let server: ChildProcess | undefined;
let url = "";
let token = "";

function openssl(...args: string[]): void {
  execFileSync("openssl", args, { cwd: folder, stdio: ["ignore", "ignore", "pipe"] });
}

/** A certificate of our own authority. */
function certificate(name: string, extension: string): void {
  writeFileSync(at(`${name}.ext`), extension);
  openssl(
    "req",
    "-newkey",
    "rsa:2048",
    "-nodes",
    "-keyout",
    `${name}.key`,
    "-out",
    `${name}.csr`,
    "-subj",
    `/CN=${name}`,
  );
  openssl(
    ...["x509", "-req", "-in", `${name}.csr`, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"],
    ...["-out", `${name}.pem`, "-days", "2", "-extfile", `${name}.ext`],
  );
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const probe = createServer().listen(0, "127.0.0.1", () => {
      const address = probe.address();
      probe.close(() => {
        resolve(typeof address === "object" && address !== null ? address.port : 0);
      });
    });
  });
}

before(async () => {
  openssl(
    "req",
    "-x509",
    "-newkey",
    "rsa:2048",
    "-nodes",
    "-keyout",
    "ca.key",
    "-out",
    "ca.pem",
    "-days",
    "2",
    "-subj",
    "/CN=test authority",
  );
  certificate("server", "subjectAltName=IP:127.0.0.1\n");
  certificate("client", "extendedKeyUsage=clientAuth\n");
  const tokens = at("tokens");
  const create = [
    "token",
    "create",
    "--tokens",
    tokens,
    "--name",
    "ci",
    "--prefix",
    "ci/",
    "--allow",
    "acquire,read",
  ];
  token = execFileSync(serverProgram(), create).toString().trim();
  const port = String(await freePort());
  url = `https://127.0.0.1:${port}`;
  server = spawn(
    serverProgram(),
    [
      ...["serve", "--listen", `127.0.0.1:${port}`, "--store", "memory:", "--tokens", tokens, "--log", "none"],
      ...[
        "--tls-cert",
        at("server.pem"),
        "--tls-key",
        at("server.key"),
        "--tls-client-ca",
        at("ca.pem"),
        "--accept-risks",
      ],
    ],
    { stdio: "ignore" },
  );
  await until("the server answers", async () => {
    try {
      await secured().show("ci/x");
      return true;
    } catch (error) {
      if (error instanceof LeaseholdError && error.kind === "unavailable") return false;
      throw error;
    }
  });
});

after(() => {
  server?.kill("SIGKILL");
  rmSync(folder, { recursive: true });
});

const secured = () =>
  connect({ url, token, ca: at("ca.pem"), cert: at("client.pem"), key: at("client.key"), ttl: 5_000 });

test("a lock is held and renewed over TLS with a token", async () => {
  const locks = secured();
  await locks.mutex("ci/x").run(async (lock) => {
    await until("it is renewed", async () => ((await locks.show("ci/x")).holders[0]?.renewals ?? 0) >= 2);
    lock.check();
  });
  await locks.close();
});

test("a token that is wrong or out of scope is auth_failed", async () => {
  await assert.rejects(secured().mutex("other").tryLock(), { kind: "auth_failed" });
  const files = { ca: at("ca.pem"), cert: at("client.pem"), key: at("client.key") };
  const error: unknown = await connect({ url, token: "hush-hush", ...files })
    .mutex("ci/x")
    .lock()
    .catch((thrown: unknown) => thrown);
  assert.ok(error instanceof LeaseholdError && error.kind === "auth_failed");
  assert.doesNotMatch(`${String(error)} ${String(error.stack)}`, /hush|ci\/x/);
});

test("an unknown authority or no certificate is refused", async () => {
  const files = { cert: at("client.pem"), key: at("client.key") };
  await assert.rejects(
    connect({ url, token, ...files })
      .mutex("ci/x")
      .tryLock(),
    { kind: "unavailable", message: /`ca`/ },
  );
  const kinds = /auth_failed|unavailable/;
  const bare = connect({ url, token, ca: at("ca.pem") });
  await assert.rejects(
    bare.mutex("ci/x").tryLock(),
    (error) => error instanceof LeaseholdError && kinds.test(error.kind),
  );
});

test("plain HTTP to a TLS server says what to do", async () => {
  const plain = connect({ url: url.replace("https:", "http:"), token });
  await assert.rejects(plain.mutex("ci/x").tryLock(), { kind: "unavailable" });
});
