// One scenario: its clients, its locks, and its steps.

import * as assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { inspect } from "node:util";

import type { Lock, Lockable, LockInfo, Locks } from "../../src/index.js";
import { connect, LeaseholdError } from "../../src/index.js";
import { segment } from "../../src/name.js";
import type { Bench } from "./bench.js";
import { sleep } from "./bench.js";
import type { Scenario, Step } from "./vectors.js";

/** What is between the clients and the server. */
export type Network = "straight" | "weather" | "faults";

/** Whether a scenario runs on this network. */
export function runs(scenario: Scenario, network: Network): boolean {
  const faults = scenario.faults === true;
  return network === "faults" ? faults : !faults && (network === "straight" || scenario.weather !== false);
}

/** How long a call that fails is repeated in bad weather, and how long a step may take unless it says so. */
const [WEATHER, WITHIN] = [10_000, 10_000];

/** What an acquire brought: a lock, nothing, or an error. */
type Got = { lock: Lock | null } | { error: unknown };

interface Started {
  readonly got: Promise<Got>;
  readonly cancel: AbortController;
  ended: boolean;
}

export class Case {
  readonly #bench: Bench;
  readonly #network: Network;
  readonly #prefix = `${randomBytes(16).toString("base64url")}/`;
  readonly #clients = new Map<string, Locks>();
  readonly #held = new Map<string, Lock>();
  readonly #started = new Map<string, Started>();
  #caught = "";

  constructor(bench: Bench, network: Network) {
    this.#bench = bench;
    this.#network = network;
  }

  /** Runs all steps; throws what went wrong in which. */
  async run(scenario: Scenario): Promise<void> {
    try {
      for (const [at, step] of scenario.steps.entries()) {
        try {
          await this.#step(step);
        } catch (error) {
          const why = error instanceof Error ? error.message : String(error);
          throw new Error(`step ${String(at)} ${JSON.stringify(step)}: ${why}`, { cause: error });
        }
      }
    } finally {
      for (const started of this.#started.values()) started.cancel.abort();
      await Promise.all([...this.#held.values()].map((lock) => lock.release()));
      await Promise.all([...this.#clients.values()].map((locks) => locks.close()));
    }
  }

  #name(step: Step): string {
    return (step.raw === true ? "" : this.#prefix) + (step.lock ?? "");
  }

  #client(step: Step): Locks {
    const { client = "", options = {} } = step;
    const made = this.#clients.get(client);
    if (made !== undefined) return made;
    const straight = this.#network === "straight" || options.direct === true || client === "";
    const locks = connect({
      url: options.url ?? (straight ? this.#bench.server : this.#bench.proxy),
      token: options.token,
      owner: options.owner,
      waitPerCall: options.wait_per_call,
      requestTimeout: options.request_timeout ?? (straight ? undefined : 1_000),
    });
    this.#clients.set(client, locks);
    return locks;
  }

  #lockable(step: Step): Lockable {
    const locks = this.#client(step);
    const options = {
      ttl: step.ttl ?? 10_000,
      owner: step.owner,
      metadata: step.metadata,
      maxHold: step.max_hold,
    };
    switch (step.kind) {
      case "read":
        return locks.rwlock(this.#name(step), options).read;
      case "write":
        return locks.rwlock(this.#name(step), options).write;
      case "semaphore":
        return locks.semaphore(this.#name(step), step.limit ?? 0, options);
      default:
        return locks.mutex(this.#name(step), options);
    }
  }

  async #acquire(step: Step, signal?: AbortSignal): Promise<Got> {
    try {
      const lockable = this.#lockable(step);
      if (step.do === "try") return { lock: await lockable.tryLock() };
      return { lock: await lockable.lock({ wait: step.wait, signal }) };
    } catch (error) {
      return { error };
    }
  }

  async #step(step: Step): Promise<void> {
    const within = step.within ?? WITHIN;
    switch (step.do) {
      case "client":
        this.#client(step);
        return;
      case "try":
      case "lock":
        return this.#attempt(step, within);
      case "start": {
        const cancel = new AbortController();
        const started: Started = { got: this.#acquire(step, cancel.signal), cancel, ended: false };
        void started.got.then(() => (started.ended = true));
        this.#started.set(step.as ?? "", started);
        return;
      }
      case "join": {
        this.#judge(step, await inTime(this.#theStarted(step).got, within));
        return;
      }
      case "pending":
        await sleep(step.ms ?? 0);
        assert.ok(!this.#theStarted(step).ended, "it has ended");
        return;
      case "cancel":
        this.#theStarted(step).cancel.abort();
        return;
      case "queued":
        return this.#until(step, within, (info) => info.queueLength === step.count);
      case "free":
        return this.#until(step, within, (info) => info.holderCount === 0);
      case "release": {
        const lock = this.#lock(step.as);
        const released = await inTime(lock.release(), within);
        demand(released === "failed" ? (lock.releaseError?.kind ?? "") : released, step.expect);
        return;
      }
      case "check":
      case "lost":
      case "stays":
      case "left":
        return this.#look(step, within);
      case "fences": {
        const fences = (step.rise ?? []).map((name) => this.#lock(name).fence);
        assert.ok(
          fences.every((fence, at) => at === 0 || fence > (fences[at - 1] ?? 0)),
          `saw ${fences.join(", ")}`,
        );
        return;
      }
      case "same":
        assert.equal(new Set((step.of ?? []).map((name) => this.#lock(name).fence)).size, 1);
        return;
      case "show":
        return this.#show(step);
      case "list": {
        const prefix = this.#prefix + (step.prefix ?? "");
        const names = await this.#again(async () => {
          const all: string[] = [];
          const pages = this.#client(step).list(prefix, { pageSize: step.limit });
          for await (const info of pages) all.push(info.name.slice(this.#prefix.length));
          return all;
        });
        assert.deepEqual(names, step.names);
        return;
      }
      case "revoke": {
        const options = {
          now: step.now,
          fence: step.only === undefined ? undefined : this.#lock(step.only).fence,
        };
        const revoked = await this.#again(() => this.#client(step).revoke(this.#name(step), options));
        if (this.#network !== "weather") assert.equal(revoked, step.expect);
        return;
      }
      case "post": {
        const path = (step.path ?? "").replace(/\{(.*?)\}/, (_, name: string) => segment(this.#prefix + name));
        const headers = { "content-type": "application/json" };
        const body = JSON.stringify(step.body);
        const response = await fetch(this.#bench.server + path, { method: "POST", headers, body });
        assert.equal(response.status, step.expect);
        return;
      }
      case "sleep":
        return sleep(step.ms ?? 0);
      case "bench": {
        const value = await this.#bench.obey(step.line ?? "");
        if (step.line?.startsWith("hold ") === true) this.#caught = value;
        return;
      }
      case "caught": {
        demand(await this.#bench.obey(`caught ${this.#caught} ${String(within)}`), "true");
        return;
      }
      case "deliver":
        await this.#bench.obey(`deliver ${this.#caught}`);
        return;
      case "close":
        await this.#clients.get(step.client ?? "")?.close();
        this.#clients.delete(step.client ?? "");
        return;
      default:
        throw new Error(`no such step: ${step.do}`);
    }
  }

  #lock(name: string | undefined): Lock {
    const lock = this.#held.get(name ?? "");
    assert.ok(lock, "no such lock");
    return lock;
  }

  #theStarted(step: Step): Started {
    const started = this.#started.get(step.as ?? "");
    assert.ok(started, "nothing was started");
    return started;
  }

  /** Acquires, in bad weather again and again until it is as expected or the time is over. */
  async #attempt(step: Step, within: number): Promise<void> {
    const end = performance.now() + WEATHER;
    for (;;) {
      const got = await inTime(this.#acquire(step), within);
      // What a failed try got may still be on its way back.
      const bad =
        "error" in got
          ? isFault(got.error) && !suits(word(got), step.expect)
          : got.lock === null && suits("held", step.expect);
      if (this.#network !== "weather" || !bad || performance.now() > end) {
        this.#judge(step, got);
        return;
      }
      await sleep(20);
    }
  }

  /** Compares what an acquire brought with what was expected. */
  #judge(step: Step, got: Got): void {
    const error = "error" in got ? got.error : undefined;
    if ("lock" in got && got.lock !== null && step.as !== undefined) this.#held.set(step.as, got.lock);
    if (!suits(word(got), step.expect)) {
      throw new Error(`saw ${word(got)}, expected ${String(step.expect)}: ${String(error)}`, {
        cause: error,
      });
    }
    const printed = inspect([got, ...this.#clients.values()], { depth: 10, showHidden: true }) + String(error);
    for (const hidden of step.hides ?? []) assert.ok(!printed.includes(hidden), `it shows ${hidden}: ${printed}`);
  }

  async #until(step: Step, within: number, isSo: (info: LockInfo) => boolean): Promise<void> {
    const end = performance.now() + within;
    let seen: unknown;
    for (;;) {
      try {
        const info = await this.#client({ do: "show" }).show(this.#name(step));
        if (isSo(info)) return;
        seen = info;
      } catch (error) {
        seen = error;
      }
      assert.ok(performance.now() < end, `it does not come: ${inspect(seen)}`);
      await sleep(20);
    }
  }

  /** Repeats a call in bad weather. */
  async #again<T>(call: () => Promise<T>): Promise<T> {
    const end = performance.now() + WEATHER;
    for (;;) {
      try {
        return await call();
      } catch (error) {
        if (this.#network !== "weather" || !isFault(error) || performance.now() > end) throw error;
        await sleep(20);
      }
    }
  }

  /** Steps that look at a lock, without a call. */
  async #look(step: Step, within: number): Promise<void> {
    const lock = this.#lock(step.as);
    if (step.do === "check") {
      demand(look(lock), step.expect);
    } else if (step.do === "lost") {
      const began = performance.now();
      if (!lock.signal.aborted) {
        const aborted = new Promise<unknown>((resolve) => {
          lock.signal.addEventListener("abort", resolve);
        });
        await inTime(aborted, within);
      }
      const after = performance.now() - began;
      if (this.#network !== "weather")
        assert.ok(after >= (step.after ?? 0), `it was lost after ${String(after)} ms`);
    } else if (step.do === "stays") {
      for (const end = performance.now() + (step.ms ?? 0); performance.now() < end; ) {
        if (look(lock) !== "held") throw new Error(`it is lost: ${String(lock.lostReason)}`);
        await sleep(20);
      }
    } else if (this.#network !== "weather") {
      const left = lock.validFor();
      const [least = 0, most = 0] = [step.least, step.most];
      assert.ok(left >= least && left <= most, `${String(left)} ms are left`);
    }
    if (step.reason !== undefined) demand(lock.lostReason ?? "", step.reason);
  }

  async #show(step: Step): Promise<void> {
    const info = await this.#again(() => this.#client(step).show(this.#name(step)));
    const [first] = info.holders;
    if (step.holders !== undefined) assert.equal(info.holderCount, step.holders);
    if (step.waiters !== undefined) assert.equal(info.queueLength, step.waiters);
    if (step.owners !== undefined) {
      assert.deepEqual(
        info.holders.map((holder) => holder.owner),
        step.owners,
      );
    }
    if (step.metadata !== undefined) assert.equal(first?.metadata, step.metadata);
    if (step.fence_of !== undefined) assert.equal(first?.fence, this.#lock(step.fence_of).fence);
  }
}

/** `held` or `lost`, by a look of its holder. */
function look(lock: Lock): string {
  try {
    lock.check();
    return "held";
  } catch {
    return "lost";
  }
}

/** What an acquire brought, in the words of the vectors. */
function word(got: Got): string {
  if ("lock" in got) return got.lock === null ? "busy" : "held";
  if (got.error instanceof LeaseholdError) return got.error.kind;
  return got.error instanceof Error && got.error.name === "AbortError" ? "cancelled" : String(got.error);
}

function isFault(error: unknown): boolean {
  return error instanceof LeaseholdError && ["unavailable", "network_timeout", "overloaded"].includes(error.kind);
}

function suits(seen: string, expected: Step["expect"]): boolean {
  return Array.isArray(expected) ? expected.includes(seen) : seen === expected;
}

function demand(seen: string, expected: Step["expect"]): void {
  assert.ok(suits(seen, expected), `saw ${seen}, expected ${String(expected)}`);
}

async function inTime<T>(work: Promise<T>, ms: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new Error("it takes too long"));
    }, ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
