// Fencing tokens as text.

import { invalid } from "./errors.js";

/** A fence as 15 digits, which compare as text in the same order as the numbers. */
export function fenceText(fence: number): string {
  if (!Number.isSafeInteger(fence) || fence < 0) throw invalid("a fence is a whole number from 0 to 2^53 - 1");
  return String(fence).padStart(15, "0");
}
