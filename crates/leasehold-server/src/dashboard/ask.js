"use strict";
// Requests to the server, and how their answers become text on the page.

// How often the page asks, how long an answer may take, and when the page starts to say that it is late
// (milliseconds).
const EVERY = 1000, PATIENCE = 4000, LATE = 2500;
// Show at most this many rows: nobody reads more, and thousands of moving bars are slow.
const ROWS = 200;

const at = (id) => document.getElementById(id);

// Everything from the server is data: insert it as text, never as markup.
function make(tag, look, text) {
  const element = document.createElement(tag);
  if (look) element.className = look;
  if (text !== undefined && text !== null) element.textContent = String(text);
  return element;
}
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
// Write invisible characters out, so that two different names never look alike and none reverses the text around it.
// Keep the zero-width joiner: emoji need it.
const shown = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => c === "\u200d" ? c : "\\u{" + c.codePointAt(0).toString(16) + "}");

const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
const plural = (count, one, many) => count + " " + (count === 1 ? one : many);
function span(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 60) return s.toFixed(1) + " s";
  const whole = Math.floor(s), m = Math.floor(whole / 60);
  return m < 60 ? m + " m " + String(whole % 60).padStart(2, "0") + " s" : Math.floor(m / 60) + " h " + String(m % 60).padStart(2, "0") + " m";
}

// Keep the token only as long as the tab lives, and never in an address.
const TOKEN = "leasehold-token";
let token = sessionStorage.getItem(TOKEN) || "";

// The server answered with an error.
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
