// `sdk/vectors.json`: what every client of the lock server must do.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

import { PACKAGE } from "./bench.js";

export interface Step {
  do: string;
  client?: string;
  lock?: string;
  as?: string;
  kind?: string;
  limit?: number;
  ttl?: number;
  owner?: string;
  metadata?: string;
  max_hold?: number;
  wait?: number;
  raw?: boolean;
  hides?: string[];
  expect?: string | string[] | number;
  reason?: string | string[];
  within?: number;
  after?: number;
  ms?: number;
  count?: number;
  least?: number;
  most?: number;
  rise?: string[];
  of?: string[];
  holders?: number;
  waiters?: number;
  owners?: string[];
  fence_of?: string;
  prefix?: string;
  names?: string[];
  now?: boolean;
  only?: string;
  path?: string;
  body?: object;
  line?: string;
  options?: {
    request_timeout?: number;
    wait_per_call?: number;
    token?: string;
    owner?: string;
    url?: string;
    direct?: boolean;
  };
}

export interface Scenario {
  id: string;
  about: string;
  faults?: boolean;
  weather?: boolean;
  steps: Step[];
}

export interface Vectors {
  pure: {
    segments: { name: string; segment: string }[];
    names_refused: string[];
    lease_id: { form: string; bytes: number };
    deadlines: {
      sent_ns: number;
      waited_ms: number;
      expires_in_ms: number;
      ttl_ms: number;
      deadline_ns: number;
    }[];
    first_renewals: { ttl_ms: number; expires_in_ms: number; after_ns: number }[];
    renewal_timeouts: { ttl_ms: number; timeout_ns: number }[];
    renewal_retries: { ttl_ms: number; after_ns: number }[];
    pauses: { faults: number; least_ms: number; most_ms: number }[];
    waits: { left_ms: number | null; per_call_ms: number; wait_ms: number }[];
    errors: { status: number; code: string | null; kind: string }[];
    fences: { number: number; text: string }[];
    hashes: { lease_id: string; fnv1a: string }[];
    records: {
      kind: string;
      mode: string;
      place: number;
      task: number;
      worker: number;
      claim: string;
      at: string;
      lease: string;
      fence: string;
      deadline: string;
      value: string;
      hex: string;
    }[];
  };
  scenarios: Scenario[];
}

/** The vectors beside the folder of this language, or where `LEASEHOLD_SDK_VECTORS` points. */
export function vectorsPath(): URL {
  const path = process.env["LEASEHOLD_SDK_VECTORS"];
  return path === undefined ? new URL("../vectors.json", PACKAGE) : pathToFileURL(path);
}

export function vectors(): Vectors {
  return JSON.parse(readFileSync(vectorsPath(), "utf8")) as Vectors;
}
