// HTTP calls over kept connections. A kept connection that died with its server is replaced without an error.

import * as http from "node:http";
import * as https from "node:https";

import type { Address } from "./address.js";
import { authority } from "./address.js";
import { LeaseholdError } from "./errors.js";
import { IDLE } from "./limits.js";
import type { Answer } from "./wire.js";

/** The most bytes of an answer: more than a full page of locks needs. */
const MAX_ANSWER = 64 * 1024 * 1024;

/** After so long without an answer, the other connections to the same server are suspect too. */
const SILENT = 1_000;

/** A timer that fires so many milliseconds late met a blocked event loop. */
const BLOCKED = 50;

/** How many kept connections one call may find dead, one after the other. */
const MAX_DEAD = 3;

/** One call to the server. */
export interface Call {
  readonly answer: Promise<Answer>;
  /** Ends the call and its connection; `answer` then stays pending. */
  abort(): void;
}

/** Makes the body of a request; `again` says that an earlier one went unanswered. */
export type Body = (again: boolean) => object;

/** Connections to one server. */
export class Transport {
  readonly #address: Address;
  readonly #agent: http.Agent;
  readonly #headers: http.OutgoingHttpHeaders;

  constructor(address: Address, idle: number = IDLE) {
    this.#address = address;
    // The system probes a silent connection after a second, also one that only waits.
    const options = { keepAlive: true, keepAliveInitialDelay: 1_000, maxFreeSockets: 64, timeout: idle };
    const { ca, cert, key } = address;
    const tls = { ...(ca === undefined ? {} : { ca }), ...(cert === undefined ? {} : { cert, key }) };
    this.#agent = address.tls ? new https.Agent({ ...options, ...tls }) : new http.Agent(options);
    this.#headers = { host: authority(address) };
    if (address.token !== undefined) this.#headers["authorization"] = `Bearer ${address.token}`;
  }

  get(path: string, within: number): Call {
    return this.#call("GET", path, undefined, within);
  }

  post(path: string, body: Body, within: number): Call {
    return this.#call("POST", path, body, within);
  }

  /** Closes unused connections: where one got no answer, others opened the same way will get none either. */
  forgetIdle(): void {
    for (const sockets of Object.values(this.#agent.freeSockets)) {
      sockets?.slice().forEach((socket) => socket.destroy());
    }
  }

  #call(method: string, path: string, body: Body | undefined, within: number): Call {
    let request: http.ClientRequest | undefined;
    let timer: NodeJS.Timeout | undefined;
    let over = false;
    const end = (): boolean => {
      const was = over;
      over = true;
      clearTimeout(timer);
      return !was;
    };
    const answer = new Promise<Answer>((resolve, reject) => {
      const fail = (error: LeaseholdError) => {
        if (!end()) return;
        request?.destroy();
        reject(error);
      };
      const arm = (first: boolean) => {
        const due = performance.now() + within;
        timer = setTimeout(() => {
          // The blocked loop could neither send nor read, so it waits once more.
          if (first && performance.now() - due > BLOCKED) return arm(false);
          if (within >= SILENT) this.forgetIdle();
          fail(new LeaseholdError("network_timeout", "the server did not answer in time"));
        }, within);
      };
      const send = (tries: number) => {
        const text = body === undefined ? undefined : JSON.stringify(body(tries > 0));
        const sent = this.#request(method, path, text);
        request = sent;
        const broke = (error: NodeJS.ErrnoException) => {
          if (over || request !== sent) return;
          // An old connection had ended. Every call is safe to repeat by its id.
          if (sent.reusedSocket && tries < MAX_DEAD) {
            this.forgetIdle();
            send(tries + 1);
          } else {
            fail(broken(error));
          }
        };
        sent.on("error", broke);
        sent.on("response", (response) => {
          response.on("error", broke);
          read(response, fail, (got) => {
            if (end()) resolve(got);
          });
        });
        sent.end(text);
      };
      arm(true);
      send(0);
    });
    return {
      answer,
      abort: () => {
        if (end()) request?.destroy();
      },
    };
  }

  #request(method: string, path: string, text: string | undefined): http.ClientRequest {
    const { tls, host, port, base } = this.#address;
    const headers =
      text === undefined
        ? this.#headers
        : {
            ...this.#headers,
            "content-type": "application/json",
            "content-length": Buffer.byteLength(text),
          };
    const options = { agent: this.#agent, host, port, method, path: base + path, headers };
    return tls ? https.request(options) : http.request(options);
  }
}

function read(
  response: http.IncomingMessage,
  fail: (error: LeaseholdError) => void,
  done: (answer: Answer) => void,
): void {
  const chunks: Buffer[] = [];
  let size = 0;
  response.on("data", (chunk: Buffer) => {
    chunks.push(chunk);
    size += chunk.length;
    if (size > MAX_ANSWER) {
      const message = "the answer is too long for a leasehold server; whether the call took effect is unknown";
      fail(new LeaseholdError("unavailable", message));
    }
  });
  response.on("end", () => {
    const text = (chunks.length === 1 ? chunks[0] : Buffer.concat(chunks))?.toString("utf8") ?? "";
    const seconds = Number(response.headers["retry-after"] ?? Number.NaN);
    const retryAfter = Number.isFinite(seconds) ? seconds * 1_000 : undefined;
    done({ status: response.statusCode ?? 0, body: json(text), retryAfter });
  });
}

function json(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** The error for a connection that could not be made or broke. Its message names no address. */
function broken(error: NodeJS.ErrnoException): LeaseholdError {
  const code = error.code ?? "unknown error";
  if (code.startsWith("HPE_")) {
    const message = "the server does not speak HTTP; if it uses TLS, write https:";
    return new LeaseholdError("unavailable", message);
  }
  // With TLS 1.3 the server refuses a client's certificate only after the client has finished its handshake.
  if (/ALERT.*(CERTIFICATE|UNKNOWN_CA)/.test(code)) {
    return new LeaseholdError(
      "auth_failed",
      `the server refused the certificate: ${code}; check \`cert\` and \`key\``,
    );
  }
  if (/CERT|SIGNATURE|ERR_TLS|ERR_SSL/.test(code)) {
    return new LeaseholdError("unavailable", `TLS failed: ${code}; check \`ca\`, and that the server uses TLS`);
  }
  if (["ECONNRESET", "EPIPE", "ECONNABORTED"].includes(code)) {
    const message = `the connection to the server broke (${code}); whether the call took effect is unknown`;
    return new LeaseholdError("unavailable", message);
  }
  const message = `cannot reach the server (${code}); check host and port, and that it is running`;
  return new LeaseholdError("unavailable", message);
}
