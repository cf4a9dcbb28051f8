// Names of locks, and how they become one segment of a path.

import { Buffer } from "node:buffer";

import { invalid } from "./errors.js";

const MAX_BYTES = 512;

/** The name after NFC normalisation, which decides whether two names are the same lock. */
export function normalise(name: string): string {
  if (typeof name !== "string") throw invalid("the name of a lock must be a string");
  if (/\p{Surrogate}/u.test(name)) throw invalid("the name has half a surrogate pair; it must be valid Unicode");
  const normal = name.normalize("NFC");
  if (normal === "") throw invalid("the name must not be empty");
  const bytes = Buffer.byteLength(normal);
  if (bytes > MAX_BYTES) {
    throw invalid(`the name has ${String(bytes)} bytes after NFC normalisation; at most 512 are allowed`);
  }
  return normal;
}

/** A text as one segment of a path: everything but letters, digits, `-`, `_` and `~` is escaped, dots too. */
export function segment(text: string): string {
  return encodeURIComponent(text).replace(
    /[.!*'()]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  );
}
