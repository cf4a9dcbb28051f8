// A worker of `leasehold torture`: plays turns with the locks, and records each step, as `docs/sdk-protocol.md` says.

import { openSync, readFileSync, writeSync } from "node:fs";
import { connect as dial } from "node:net";
import type { Socket } from "node:net";

import type { Lock, Lockable, Locks } from "../../src/index.js";
import { connect, TimeoutError } from "../../src/index.js";
import { sleep } from "../support/bench.js";
import type { MODES, TortureRecord } from "../support/record.js";
import { encode, fnv1a } from "../support/record.js";

interface Place {
  place: number;
  name: string;
  kind: "mutex" | "rwlock" | "semaphore";
  limit: number;
  hot: boolean;
}

interface Task {
  url: string;
  worker: number;
  history: string;
  resource: string;
  seed: number;
  tasks: number;
  ttl_ms: number;
  patience_ms: number;
  cancels: boolean;
  lingers: boolean;
  clock_offset_ns: number;
  locks: Place[];
}

const task = JSON.parse(readFileSync(process.argv[2] ?? "", "utf8")) as Task;
const offset = BigInt(task.clock_offset_ns);
const history = openSync(task.history, "a");
const random = dice(Math.trunc(task.seed % 2 ** 32) + task.worker * 7919);
const now = () => process.hrtime.bigint() + offset;
let claims = 0n;
let finish = false;

/** Random numbers from 0 to 1, the same for the same seed. */
function dice(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function chance(one: number, of: number): boolean {
  return random() * of < one;
}

/** Appends a record by one write, so that it survives SIGKILL. */
function write(record: Omit<TortureRecord, "worker">): void {
  writeSync(history, encode({ ...record, worker: task.worker }));
}

/** One task's connection to the resource that the locks protect. */
class Resource {
  readonly #socket: Socket;
  readonly #answers: ((byte: number) => void)[] = [];

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("data", (bytes) => {
      for (const byte of bytes) this.#answers.shift()?.(byte);
    });
  }

  static open(): Promise<Resource> {
    return new Promise((resolve, reject) => {
      const socket = dial(task.resource, () => {
        resolve(new Resource(socket));
      });
      socket.on("error", reject);
    });
  }

  /** Sends a request, and returns whether the resource agreed. */
  ask(verb: 0 | 1 | 2, turn: Turn): Promise<boolean> {
    const bytes = Buffer.alloc(40);
    bytes.writeUInt8(verb, 0);
    bytes.writeUInt16LE(turn.at.place, 2);
    bytes.writeUInt16LE(turn.at.task, 4);
    bytes.writeUInt32LE(task.worker, 8);
    bytes.writeBigUInt64LE(turn.at.claim, 16);
    bytes.writeBigUInt64LE(turn.lease.lease, 24);
    bytes.writeBigUInt64LE(turn.lease.fence, 32);
    return new Promise((resolve) => {
      this.#answers.push((byte) => {
        resolve(byte === 1);
      });
      this.#socket.write(bytes);
    });
  }
}

interface Turn {
  readonly at: {
    readonly mode: keyof typeof MODES;
    readonly place: number;
    readonly task: number;
    readonly claim: bigint;
  };
  readonly lease: { readonly lease: bigint; readonly fence: bigint };
}

/** Looks at a lock, and records what it sees. Returns whether it is held. */
function look(turn: Turn, lock: Lock): boolean {
  const at = now();
  const left = lock.validFor();
  if (lock.state === "held" && left > 0) {
    const deadline = at + BigInt(Math.floor(left * 1e6));
    write({ kind: "Held", ...turn.at, ...turn.lease, at, deadline });
    return true;
  }
  const reason = lock.lostReason;
  const refusals = ["expired", "not_found", "superseded", "revoked"];
  const value = reason === "deadline_passed" ? 0n : refusals.includes(reason ?? "") ? 1n : 2n;
  write({ kind: "Lost", ...turn.at, ...turn.lease, at: now(), value });
  return false;
}

/** Uses a lock. Returns whether it is held to the end. */
async function hold(turn: Turn, lock: Lock, resource: Resource, writes: () => bigint): Promise<boolean> {
  const lingers = task.lingers && chance(1, 60);
  const end = performance.now() + (lingers ? task.ttl_ms * (0.5 + random()) : random() * 5);
  const enters = turn.at.mode === "exclusive" && chance(2, 3);
  let entered = false;
  try {
    do {
      if (!look(turn, lock)) return false;
      if (enters && !entered) {
        entered = true;
        await resource.ask(1, turn);
        const value = writes();
        write({ kind: "WriteCall", ...turn.at, ...turn.lease, at: now(), value });
        const taken = await resource.ask(0, turn);
        write({
          kind: taken ? "WriteTaken" : "WriteRejected",
          ...turn.at,
          ...turn.lease,
          at: now(),
          value,
        });
      }
      await sleep(1);
    } while (performance.now() < end);
  } finally {
    if (entered) await resource.ask(2, turn);
  }
  return look(turn, lock);
}

async function acquire(lockable: Lockable, wait: number | undefined): Promise<Lock | null> {
  if (wait === 0) return lockable.tryLock();
  const cancel = new AbortController();
  const dropped = task.cancels && chance(1, 10);
  const timer = dropped
    ? setTimeout(() => {
        cancel.abort();
      }, random() * 20)
    : undefined;
  try {
    return await lockable.lock({ wait, signal: cancel.signal });
  } finally {
    clearTimeout(timer);
  }
}

function ended(error: unknown): "Busy" | "AcquireDropped" | "AcquireFailed" {
  if (error instanceof TimeoutError) return "Busy";
  return error instanceof Error && error.name === "AbortError" ? "AcquireDropped" : "AcquireFailed";
}

/** One turn with one lock. */
async function turn(locks: Locks, number: number, resource: Resource, writes: () => bigint): Promise<void> {
  const hot = task.locks.filter((lock) => lock.hot);
  const from = hot.length > 0 && chance(1, 2) ? hot : task.locks;
  const place = from[Math.floor(random() * from.length)];
  if (place === undefined) return;
  claims += 1n;
  const claim = claims;
  const options = { ttl: task.ttl_ms, owner: `worker-${String(task.worker)}-${String(claim)}` };
  let lockable: Lockable = locks.mutex(place.name, options);
  let mode: keyof typeof MODES = "exclusive";
  if (place.kind === "semaphore") {
    [lockable, mode] = [locks.semaphore(place.name, place.limit, options), "permit"];
  } else if (place.kind === "rwlock") {
    const sides = locks.rwlock(place.name, options);
    [lockable, mode] = chance(2, 3) ? [sides.read, "shared"] : [sides.write, "exclusive"];
  }
  const at = { mode, place: place.place, task: number, claim };
  const wait = chance(1, 3) ? 0 : chance(1, 10) ? undefined : Math.ceil(random() * 300);
  const value = wait === undefined ? 2n ** 64n - 1n : BigInt(wait) * 1_000_000n;
  write({ kind: "AcquireCall", ...at, at: now(), deadline: BigInt(task.ttl_ms) * 1_000_000n, value });
  let lock: Lock | null;
  try {
    lock = await acquire(lockable, wait);
  } catch (error) {
    write({ kind: ended(error), ...at, at: now() });
    return sleep(random() * 20);
  }
  if (lock === null) {
    write({ kind: "Busy", ...at, at: now() });
    return sleep(random() * 20);
  }
  const lease = { lease: fnv1a(Buffer.from(lock.leaseId)), fence: BigInt(lock.fence) };
  const after = now();
  const deadline = after + BigInt(Math.floor(lock.validFor() * 1e6));
  write({ kind: "Granted", ...at, ...lease, at: after, deadline });
  if (!(await hold({ at, lease }, lock, resource, writes))) return;
  write({ kind: "ReleaseCall", ...at, ...lease, at: now() });
  const released = await lock.release();
  const kinds = { released: "Released", gone: "ReleasedNothing", failed: "ReleaseFailed" } as const;
  write({ kind: kinds[released], ...at, ...lease, at: now() });
}

async function play(locks: Locks, number: number): Promise<void> {
  const resource = await Resource.open();
  let count = 0n;
  const writes = () => (BigInt(number) << 48n) + ++count;
  while (!finish) await turn(locks, number, resource, writes);
}

process.stdin.on("data", () => (finish = true));
process.stdin.on("end", () => process.exit(0));

const locks = connect({ url: task.url, requestTimeout: task.patience_ms });
write({ kind: "Begin", at: now(), value: BigInt(process.pid) });
await Promise.all(Array.from({ length: task.tasks }, (_, number) => play(locks, number)));
await locks.close();
write({ kind: "End", at: now() });
process.exit(0);
