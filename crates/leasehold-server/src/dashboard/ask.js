"use strict";
// Asking the server; and what comes from it as text on the page.

// How often the page asks, how long an answer may take, and from when on the page says that it is late.
const EVERY = 1000, PATIENCE = 4000, LATE = 2500;
// Rows at most: more nobody reads, and a page with thousands of bars that move is slow.
const ROWS = 200;

const at = (id) => document.getElementById(id);

// Everything that comes from the server is data: it goes in as text, never as markup.
function make(tag, look, text) {
  const element = document.createElement(tag);
  if (look) element.className = look;
  if (text !== undefined && text !== null) element.textContent = String(text);
  return element;
}
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
// What cannot be seen is written out, so that two names that differ do not look alike, and none turns its
// neighbours around. The joiner is left: emoji need it.
const shown = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => c === "\u200d" ? c : "\\u{" + c.codePointAt(0).toString(16) + "}");

const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
const plural = (count, one, many) => count + " " + (count === 1 ? one : many);
function span(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 60) return s.toFixed(1) + " s";
  const whole = Math.floor(s), m = Math.floor(whole / 60);
  return m < 60 ? m + " m " + String(whole % 60).padStart(2, "0") + " s" : Math.floor(m / 60) + " h " + String(m % 60).padStart(2, "0") + " m";
}

// Only for as long as the tab lives, and never in an address.
const TOKEN = "leasehold-token";
let token = sessionStorage.getItem(TOKEN) || "";

// The server answered, but not with what was asked for.
class Refused extends Error {
  constructor(status, message, after) { super(message); this.status = status; this.after = after; }
}

async function call(path, body, bearer = token) {
  const headers = {};
  if (bearer) headers.authorization = "Bearer " + bearer;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(path, {
    method: body === undefined ? "GET" : "POST", headers, cache: "no-store", redirect: "error",
    body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.timeout(PATIENCE),
  });
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, problem.error || "status " + answer.status, Number(answer.headers.get("retry-after")) || 0);
  }
  return answer;
}
const json = async (path, body, bearer) => (await call(path, body, bearer)).json();
const pathOf = (name) => "/v1/locks/" + encodeURIComponent(name).replace(/[.!'()*]/g, (c) => "%" + c.charCodeAt(0).toString(16).toUpperCase());
