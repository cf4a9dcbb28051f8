// Measures the package beside bare HTTP of the same language, against one server, in one run.
//
// Pairs: one task takes and releases a free lock, again and again; bare, it makes the same two calls by hand over one
// kept connection. Hand-over: two processes want one mutex; measured from the call of a release to the grant in the
// other process, beside a bare round trip: one acquire of a free lock by hand.

import { fork } from "node:child_process";
import { randomBytes } from "node:crypto";
import * as http from "node:http";
import { fileURLToPath } from "node:url";

import { connect } from "leasehold";

const url = process.env["LEASEHOLD_URL"];
if (url === undefined) throw new Error("set LEASEHOLD_URL to a running lock server");

/** How long each measurement takes, in milliseconds, and how many rounds are compared. */
const TIME = Number(process.env["BENCH_MS"] ?? 2_000);
const ROUNDS = 3;

const agent = new http.Agent({ keepAlive: true });
const { hostname: host, port } = new URL(url);

/** A bare call over a kept connection. */
function post(path: string, body: object): Promise<unknown> {
  const text = JSON.stringify(body);
  const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(text) };
  return new Promise((resolve, reject) => {
    const request = http.request({ agent, host, port, path, method: "POST", headers }, (response) => {
      const chunks: Buffer[] = [];
      response.on("data", (chunk: Buffer) => chunks.push(chunk));
      response.on("end", () => resolve(JSON.parse(Buffer.concat(chunks).toString())));
    });
    request.on("error", reject);
    request.end(text);
  });
}

async function barePair(): Promise<void> {
  const lease_id = randomBytes(16).toString("base64url");
  await post("/v1/locks/bench-bare/acquire", { owner_id: "bench", ttl_ms: 30_000, lease_id });
  await post("/v1/locks/bench-bare/release", { lease_id });
}

/** How often a second. */
async function rate(pair: () => Promise<void>): Promise<number> {
  const began = performance.now();
  let count = 0;
  while (performance.now() - began < TIME) {
    await pair();
    count += 1;
  }
  return (count * 1_000) / (performance.now() - began);
}

function median(values: number[]): number {
  return values.sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN;
}

async function pairs(): Promise<void> {
  const locks = connect();
  const mutex = locks.mutex("bench-pairs");
  const pair = async () => {
    const lock = await mutex.lock();
    await lock.release();
  };
  await rate(pair);
  await rate(barePair);
  const [ours, bare]: [number[], number[]] = [[], []];
  for (let round = 0; round < ROUNDS; round++) {
    ours.push(await rate(pair));
    bare.push(await rate(barePair));
  }
  const [one, other] = [median(ours), median(bare)];
  console.log(
    `pairs a second: ${one.toFixed(0)}; bare HTTP: ${other.toFixed(0)}; ratio ${(one / other).toFixed(2)}`,
  );
  await locks.close();
}

/** One of two processes that hand a mutex over; reports moments on the clock that all processes share. */
async function player(): Promise<void> {
  const mutex = connect().mutex("bench-handover");
  const end = performance.now() + TIME * ROUNDS;
  const moments: { released?: string; granted?: string; fence: number }[] = [];
  while (performance.now() < end) {
    const lock = await mutex.lock();
    moments.push({ granted: String(process.hrtime.bigint()), fence: lock.fence });
    // Long enough that the other process waits by now.
    await new Promise((resolve) => setTimeout(resolve, 5));
    moments.push({ released: String(process.hrtime.bigint()), fence: lock.fence });
    await lock.release();
  }
  process.send?.(moments);
}

interface Moment {
  released?: string;
  granted?: string;
  fence: number;
  by: number;
}

async function handOver(): Promise<void> {
  const program = fileURLToPath(import.meta.url);
  const children = [0, 1].map((by) => {
    const child = fork(program, ["player"]);
    return new Promise<Moment[]>((resolve) => {
      child.on("message", (moments) => resolve((moments as Moment[]).map((moment) => ({ ...moment, by }))));
    });
  });
  const moments = (await Promise.all(children)).flat();
  const granted = new Map(moments.filter((one) => one.granted !== undefined).map((one) => [one.fence, one]));
  const fences = [...granted.keys()].sort((a, b) => a - b);
  const times: number[] = [];
  for (const { released, fence, by } of moments) {
    const next = granted.get(fences[fences.indexOf(fence) + 1] ?? -1);
    if (released === undefined || next?.granted === undefined || next.by === by) continue;
    times.push(Number(BigInt(next.granted) - BigInt(released)) / 1e6);
  }
  const trips: number[] = [];
  for (let trip = 0; trip < 300; trip++) {
    const lease_id = randomBytes(16).toString("base64url");
    const began = performance.now();
    await post("/v1/locks/bench-trip/acquire", { owner_id: "bench", ttl_ms: 30_000, lease_id });
    trips.push(performance.now() - began);
    await post("/v1/locks/bench-trip/release", { lease_id });
  }
  const [one, other] = [median(times), median(trips)];
  console.log(
    `hand-over, median of ${String(times.length)}: ${one.toFixed(2)} ms; bare round trip: ${other.toFixed(2)} ms; ` +
      `ratio ${(one / other).toFixed(2)}`,
  );
}

if (process.argv[2] === "player") await player();
else {
  await pairs();
  await handOver();
}
agent.destroy();
process.exit(0);
