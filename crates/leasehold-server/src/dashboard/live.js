// The loop that keeps the page live, says so when it is not, and asks for a token when one is needed.

let polling = false, again = false, next = 0, heard = null, trouble = null, complete = true, about = false;

async function list() {
  const wanted = at("search").value.trim();
  // When all names fit on the page, search any part of a name or owner here; otherwise the server searches by prefix.
  const prefix = wanted && !complete ? "&prefix=" + encodeURIComponent(wanted) : "";
  const first = "/v1/locks?limit=" + ROWS + prefix;
  let page = await json(first);
  // A store may still be looking for the first name.
  while (!page.locks.length && page.next_cursor) page = await json(first + "&cursor=" + page.next_cursor);
  if (!prefix && page.next_cursor && wanted) { complete = false; return list(); }
  if (!wanted) complete = !page.next_cursor;
  return { wanted, page, prefix };
}

async function look() {
  clearTimeout(next);
  if (polling) { again = true; return; }
  polling = true;
  const began = performance.now(), name = open;
  let wait = EVERY;
  try {
    const scoped = (error) => { if (error.status !== 403) throw error; return null; };
    const gone = (error) => { if (!(error instanceof Refused) || error.status === 401) throw error; return error; };
    const [listed, metrics, one] = await Promise.all([
      list().catch(scoped), call("/metrics").then((answer) => answer.text()), name === null ? null : asked(name).catch(gone),
    ]);
    if (!about) {
      const able = await json("/v1/capabilities");
      put(at("about"), able.version + " on " + able.store);
      canRevoke = able.revoke;
      about = true;
    }
    // Drop answers to a search that has changed since.
    const now = performance.now(), held = figures(metrics);
    if (!listed) { show([], now); say(null, held); } else if (listed.wanted === at("search").value.trim()) tell(listed, began, held);
    if (one instanceof Refused && name === open) at("detail-error").textContent = one.message;
    else if (one && name === open) fill(one[0], one[1].events, began);
    heard = now;
    trouble = null;
    document.title = held ? "leasehold · " + held + " held" : "leasehold";
  } catch (error) {
    if (error.status === 401) { login(token ? "This server no longer knows that token." : ""); polling = again = false; return; }
    trouble = error;
    about = false;
    if (error.after) wait = error.after * 1000;
  }
  polling = false;
  state();
  // Spend at most half of the time asking a slow server.
  if (!document.hidden) next = setTimeout(look, again ? 0 : Math.max(wait, Math.min(performance.now() - began, PATIENCE)));
  again = false;
}

function tell({ wanted, page, prefix }, began, held) {
  const part = wanted.toLowerCase(), has = (text) => text.toLowerCase().includes(part);
  const locks = prefix || !wanted ? page.locks : page.locks.filter((l) => has(l.lock_name) || l.holders.some((h) => has(h.owner_id)) || l.waiters.some((w) => has(w.owner_id)));
  // Count the time left from before the request, so that the page never shows more than there is.
  show(locks, began);
  say({ wanted, locks, more: page.next_cursor, prefix }, held);
}

function say(seen, held) {
  const none = !seen || !seen.locks.length, more = seen && seen.more;
  at("empty").hidden = !none;
  at("count").textContent = none ? "" : more ? "first " + seen.locks.length : seen.locks.length;
  if (none) {
    const idle = seen && !seen.wanted;
    put(at("empty-what"), !seen ? "This token cannot list every name" : idle ? "No lock is in use" : seen.prefix ? "No name in use begins with that" : "No name or owner has that in it");
    put(at("empty-hint"), !seen ? "Search for the beginning of a name that it may read." : idle ? "A lock appears here when a client takes it. Try it:" : "Free locks are not listed.");
    at("empty-try").hidden = !idle;
    // On the dashboard's own address no lock can be taken; the server prints the other address when it starts.
    const locks = "elsewhere" in document.documentElement.dataset ? "$LEASEHOLD_URL" : location.origin;
    put(at("empty-try"), "curl " + locks + "/v1/locks/demo/acquire" + (token ? " -H \"authorization: Bearer $LEASEHOLD_TOKEN\"" : "")
      + " \\\n  -H 'content-type: application/json' -d '{\"owner_id\":\"me\",\"ttl_ms\":30000}'");
    if (!seen) complete = false;
  }
  at("note").hidden = !more;
  if (more) {
    const rest = held - seen.locks.reduce((sum, lock) => sum + lock.holder_count, 0);
    put(at("note"), seen.prefix ? "The first " + ROWS + " names that begin so are shown. There are more: go on typing."
      : "The first " + ROWS + " names are shown; " + (rest > 0 ? rest.toLocaleString() + " more leases" : "others") + " are not. Search finds a name by its beginning.");
  }
}

// Live, late or gone: the page never presents old data as new.
function state() {
  if (at("login").open) return;
  const now = performance.now(), age = heard === null ? now : now - heard;
  const gone = trouble || (polling && age > LATE + EVERY), was = document.body.classList.contains("stale");
  const how = gone ? "gone" : heard === null ? "wait" : age > LATE ? "late" : "live";
  document.body.classList.toggle("stale", how === "gone" || how === "late");
  at("status").dataset.state = how;
  put(at("status-text"), { gone: "Not live", late: "Late", live: "Live", wait: "Connecting" }[how]);
  at("gone").hidden = !gone;
  if (gone) {
    put(at("gone-what"), !trouble ? "The server does not answer." : trouble.status === 429 ? "This token has used up its requests."
      : trouble.status ? "The server cannot tell: " + trouble.message + "." : "The server does not answer.");
    put(at("gone-when"), (heard === null ? "" : "What you see is " + Math.round(age / 1000) + " s old. ") + "Trying again…");
    document.title = "(not live) leasehold";
  }
  const stale = how === "gone" || how === "late";
  if (stale && was) return;
  for (const made of rows.values()) tick(made.left, now, stale);
  for (const [, left] of timers) tick(left, now, stale);
}

function login(message) {
  clearTimeout(next);
  token = "";
  sessionStorage.removeItem(TOKEN);
  at("login-error").textContent = message;
  at("logout").hidden = true;
  at("gone").hidden = true;
  for (const id of ["detail", "confirm"]) if (at(id).open) at(id).close();
  show([], 0);
  at("status").dataset.state = "wait";
  put(at("status-text"), "Not logged in");
  at("count").textContent = "";
  at("empty").hidden = at("note").hidden = true;
  if (!at("login").open) at("login").showModal();
  at("token").focus();
}
// Without a token there is nothing to see behind the login dialog.
at("login").addEventListener("close", () => { if (!token && !at("login").open) { at("login").showModal(); at("token").focus(); } });
at("login-form").addEventListener("submit", async (e) => {
  e.preventDefault();
  const tried = at("token").value.trim();
  at("login-go").disabled = true;
  try {
    await call("/v1/capabilities", undefined, tried);
    token = tried;
    sessionStorage.setItem(TOKEN, token);
    at("token").value = "";
    at("login").close();
    at("logout").hidden = false;
    heard = trouble = null;
    look();
  } catch (error) {
    at("login-error").textContent = error.status === 401 ? "This server does not know that token." : error.status ? error.message : "The server does not answer. Try again.";
    at("token").select();
  } finally { at("login-go").disabled = false; }
});
at("logout").addEventListener("click", () => login(""));

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = localStorage.getItem("leasehold-theme");
const paint = () => { document.documentElement.dataset.theme = theme || (dark.matches ? "dark" : "light"); };
at("theme").addEventListener("click", () => {
  theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("leasehold-theme", theme);
  paint();
});
dark.addEventListener("change", paint);
paint();

at("search").addEventListener("input", look);
document.addEventListener("keydown", (e) => {
  if (document.querySelector("dialog[open]") || e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === "/" && document.activeElement !== at("search")) { e.preventDefault(); at("search").focus(); }
  if (e.key === "ArrowDown" && document.activeElement === at("search") && at("locks").firstElementChild) {
    e.preventDefault();
    at("locks").querySelector("button").focus();
  }
  if (e.key === "Escape" && document.activeElement === at("search")) { at("search").value = ""; look(); }
});
// A hidden page asks nothing; when visible again, it asks at once.
document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(next); else if (!at("login").open) look(); });
setInterval(state, 250);

if (token || !("tokens" in document.documentElement.dataset)) {
  at("logout").hidden = !token;
  look();
} else login("");
