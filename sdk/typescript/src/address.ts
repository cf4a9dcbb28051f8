// Where the server is, and the credentials for it.

import { readFileSync } from "node:fs";
import { isIPv6 } from "node:net";

import { invalid } from "./errors.js";

/** How to reach the server. Whatever is missing comes from the URL or the environment. */
export interface AddressOptions {
  /** `http://host:port` or `https://…`, perhaps with a path before `/v1/`; else `LEASEHOLD_URL`. */
  url?: string | undefined;
  /** The bearer token; else that of `tokenFile`, `LEASEHOLD_TOKEN` or `LEASEHOLD_TOKEN_FILE`. */
  token?: string | undefined;
  /** A file with the bearer token. */
  tokenFile?: string | undefined;
  /** A file with the authority that signed the server's certificate, in PEM; else `LEASEHOLD_CACERT`. */
  ca?: string | undefined;
  /** A file with the client's own certificate, in PEM; else `LEASEHOLD_CERT`. */
  cert?: string | undefined;
  /** A file with the key of that certificate, in PEM; else `LEASEHOLD_KEY`. */
  key?: string | undefined;
}

/** The server's address and credentials, as plain data that another thread can get. */
export interface Address {
  readonly tls: boolean;
  readonly host: string;
  readonly port: number;
  /** What stands before `/v1/` in paths; empty, or beginning with a slash. */
  readonly base: string;
  readonly token: string | undefined;
  readonly ca: string | undefined;
  readonly cert: string | undefined;
  readonly key: string | undefined;
}

type Environment = Record<string, string | undefined>;

/** Reads the address; nothing is sent. */
export function address(options: AddressOptions, environment: Environment = process.env): Address {
  const text = options.url ?? variable(environment, "LEASEHOLD_URL");
  if (text === undefined) throw invalid("no server: pass `url`, or set `LEASEHOLD_URL` to http://host:port");
  const bad = (why: string) => invalid(`the \`url\` of a server is http://host:port: ${why}`);
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw bad("it cannot be parsed");
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") throw bad("the scheme is http or https");
  if (url.username !== "" || url.password !== "") throw bad("it must not contain a token; use `tokenFile`");
  if (url.hostname === "") throw bad("there is no host");
  const inside: Environment = {};
  for (const [name, value] of url.searchParams) {
    if (!["token_file", "ca", "cert", "key"].includes(name)) {
      throw bad("unknown option; the options are `token_file`, `ca`, `cert` and `key`");
    }
    inside[name] = value;
  }
  const ca = options.ca ?? inside["ca"] ?? variable(environment, "LEASEHOLD_CACERT");
  const cert = options.cert ?? inside["cert"] ?? variable(environment, "LEASEHOLD_CERT");
  const key = options.key ?? inside["key"] ?? variable(environment, "LEASEHOLD_KEY");
  if ((cert === undefined) !== (key === undefined)) throw invalid("`cert` and `key` must be given together");
  const tls = url.protocol === "https:";
  const host = url.hostname.replace(/^\[(.*)\]$/, "$1");
  return {
    tls,
    host,
    port: url.port === "" ? (tls ? 443 : 80) : Number(url.port),
    base: url.pathname.replace(/\/+$/, ""),
    token: token(options, inside["token_file"], environment),
    ca: file("ca", ca),
    cert: file("cert", cert),
    key: file("key", key),
  };
}

/** The host and port as in a `Host` header. */
export function authority(address: Address): string {
  return `${isIPv6(address.host) ? `[${address.host}]` : address.host}:${String(address.port)}`;
}

function token(options: AddressOptions, inUrl: string | undefined, environment: Environment): string | undefined {
  const given = options.token;
  if (given !== undefined) return checked("`token`", given);
  const path = options.tokenFile ?? inUrl;
  if (path !== undefined) return fromFile("tokenFile", path);
  const text = variable(environment, "LEASEHOLD_TOKEN");
  if (text !== undefined) return checked("`LEASEHOLD_TOKEN`", text);
  const named = variable(environment, "LEASEHOLD_TOKEN_FILE");
  return named === undefined ? undefined : fromFile("LEASEHOLD_TOKEN_FILE", named);
}

function fromFile(option: string, path: string): string {
  return checked(`the file of \`${option}\``, (file(option, path) ?? "").trim());
}

function checked(where: string, text: string): string {
  if (!/^[!-~]+$/.test(text)) throw invalid(`${where} must hold one token: ASCII characters without spaces`);
  return text;
}

function file(option: string, path: string | undefined): string | undefined {
  if (path === undefined) return undefined;
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    const code = (cause as NodeJS.ErrnoException).code ?? "unknown error";
    throw invalid(`cannot read the file of \`${option}\`: ${code}`);
  }
}

function variable(environment: Environment, name: string): string | undefined {
  const value = environment[name];
  if (value === "") throw invalid(`\`${name}\` is empty; set it or remove it`);
  return value;
}
