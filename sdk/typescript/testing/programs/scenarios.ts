// Runs `sdk/vectors.json`: a line for each case, and exit code 1 if one failed. `SDK_CASES=id,id` runs some alone.

import { Bench } from "../support/bench.js";
import type { Network } from "../support/case.js";
import { Case, runs } from "../support/case.js";
import { pureCases } from "../support/pure.js";
import { vectors } from "../support/vectors.js";

/** How many scenarios run at once. */
const AT_ONCE = 8;

const all = vectors();
const only = process.env["SDK_CASES"]?.split(",");
const wanted = (id: string) => only === undefined || only.includes(id);
const seed = process.env["SEED"] ?? String(Math.floor(Math.random() * 2 ** 32));
let failed = 0;

function report(id: string, error?: unknown): void {
  if (error === undefined) return console.log(`ok ${id}`);
  failed += 1;
  console.log(`not ok ${id}: ${error instanceof Error ? error.message : "failed"}`);
}

for (const [id, check] of pureCases(all)) {
  if (!wanted(id)) continue;
  try {
    check();
    report(id);
  } catch (error) {
    report(id, error);
  }
}

const benches = new Map<Network, Promise<Bench>>();

/** The bench of all scenarios on this network. */
function shared(network: Network): Promise<Bench> {
  let bench = benches.get(network);
  if (bench === undefined) {
    bench = start(network);
    benches.set(network, bench);
  }
  return bench;
}

async function start(network: Network): Promise<Bench> {
  const bench = await Bench.start();
  if (network === "weather") {
    console.log(`# SEED=${seed}`);
    await bench.obey(`weather ${seed}`);
  }
  return bench;
}

/** Runs one scenario on one network. */
async function scenario(index: number, network: Network): Promise<void> {
  const one = all.scenarios[index];
  if (one === undefined) return;
  const bench = network === "faults" ? await Bench.start() : await shared(network);
  const id = network === "weather" ? `${one.id} (weather)` : one.id;
  try {
    await new Case(bench, network).run(one);
    report(id);
  } catch (error) {
    report(id, error);
  } finally {
    if (network === "faults") await bench.stop();
  }
}

const work: [number, Network][] = [];
for (const network of ["faults", "straight", "weather"] as const) {
  all.scenarios.forEach((one, index) => {
    if (wanted(one.id) && runs(one, network)) work.push([index, network]);
  });
}
async function worker(): Promise<void> {
  for (let next = work.shift(); next !== undefined; next = work.shift()) await scenario(...next);
}
await Promise.all(Array.from({ length: AT_ONCE }, worker));
for (const bench of benches.values()) await (await bench).stop();
process.exitCode = failed > 0 ? 1 : 0;
