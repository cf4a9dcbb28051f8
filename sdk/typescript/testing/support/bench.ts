// A lock server on SQLite behind a proxy that fails on command; `docs/sdk-protocol.md` lists the commands.

import type { ChildProcessByStdio } from "node:child_process";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";

/** The package's folder; compiled tests are in `dist/test/`. */
export const PACKAGE = new URL("../../../", import.meta.url);

/** The path of a program that the tests need: from the environment, or as cargo builds it. */
function program(variable: string, built: string): string {
  const path = process.env[variable] ?? fileURLToPath(new URL(`../../target/debug/${built}`, PACKAGE));
  if (!existsSync(path))
    throw new Error(`${path} is missing: build it with cargo, or set ${variable} to its path`);
  return path;
}

/** The program that runs a lock server behind a proxy. */
export function proxyProgram(): string {
  return program("LEASEHOLD_FAULT_PROXY", "examples/fault-proxy");
}

/** The lock server's program. */
export function serverProgram(): string {
  return program("LEASEHOLD_BIN", "leasehold");
}

type Child = ChildProcessByStdio<Writable, Readable, null>;

/** A running server and proxy; they end with this process. */
export class Bench {
  readonly #child: Child;
  readonly #answers: ((line: string) => void)[] = [];
  #ended = false;
  server = "";
  proxy = "";

  private constructor(child: Child) {
    this.#child = child;
  }

  static async start(): Promise<Bench> {
    const environment = { ...process.env, LEASEHOLD_BIN: serverProgram() };
    const child = spawn(proxyProgram(), { env: environment, stdio: ["pipe", "pipe", "inherit"] });
    const bench = new Bench(child);
    const first = bench.#next();
    createInterface({ input: child.stdout }).on("line", (line) => bench.#answers.shift()?.(line));
    child.on("exit", () => {
      bench.#ended = true;
      for (const answer of bench.#answers.splice(0)) answer("error the bench has ended");
    });
    const { server, proxy } = JSON.parse(await first) as { server: string; proxy: string };
    [bench.server, bench.proxy] = [server, proxy];
    return bench;
  }

  /** Sends a command, and returns the value of its answer. */
  async obey(command: string): Promise<string> {
    if (this.#ended) throw new Error("the bench has ended");
    const answer = this.#next();
    this.#child.stdin.write(`${command}\n`);
    const line = await answer;
    if (!/^ok( |$)/.test(line)) throw new Error(`the bench answers to "${command}": ${line}`);
    return line.slice(3);
  }

  /** Ends the server and the proxy. */
  async stop(): Promise<void> {
    if (this.#ended) return;
    const over = new Promise((resolve) => this.#child.once("exit", resolve));
    this.#child.stdin.end();
    await over;
  }

  #next(): Promise<string> {
    return new Promise((resolve) => this.#answers.push(resolve));
  }
}

/** Looks every few milliseconds until it is so; fails after a generous time. */
export async function until(what: string, isSo: () => boolean | Promise<boolean>, within = 30_000): Promise<void> {
  const end = performance.now() + within;
  while (!(await isSo())) {
    if (performance.now() > end) throw new Error(`it does not come: ${what}`);
    await sleep(20);
  }
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
