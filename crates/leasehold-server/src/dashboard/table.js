// The table of locks. Rows are kept between updates, so that the focused one keeps the focus.

const rows = new Map();
// The longest time left that the page saw for a lease stands for its ttl.
const ttls = new Map();

function ttl(holder) {
  let most = Math.max(ttls.get(holder.lease_digest) || 0, holder.expires_in_ms || 0);
  if (!holder.renewals && holder.lease_expiry_ms) most = Math.max(most, holder.lease_expiry_ms - holder.acquired_at_ms);
  ttls.set(holder.lease_digest, most);
  if (ttls.size > 20 * ROWS) ttls.delete(ttls.keys().next().value);
  return most;
}

// A bar that keeps moving between two updates.
function timer() {
  const box = make("div", "left"), track = make("div", "track"), fill = make("i"), text = make("span");
  track.append(fill);
  box.append(track, text);
  return { box, fill, text, ends: null, ttl: 1 };
}
function wind(timer, holder, heard) {
  timer.ends = holder && holder.expires_in_ms !== null ? heard + holder.expires_in_ms : null;
  timer.ttl = holder ? ttl(holder) : 1;
  timer.box.hidden = !holder;
  tick(timer, performance.now(), false);
}
function tick(timer, now, stale) {
  const left = timer.ends === null ? 0 : Math.max(0, timer.ends - now), part = Math.min(1, left / Math.max(timer.ttl, 1));
  if (!stale) timer.fill.style.transform = "scaleX(" + part.toFixed(4) + ")";
  timer.box.classList.toggle("low", !stale && part < 0.25);
  put(timer.text, stale ? "unknown" : timer.ends === null ? "no end" : span(left));
}

function modeOf(lock) {
  const first = lock.holders[0] || lock.waiters[0];
  if (!first) return "";
  if (first.mode === "permit") return lock.holder_count + " of " + first.limit + " permits";
  return first.mode === "shared" && lock.holder_count > 1 ? "shared × " + lock.holder_count : first.mode;
}

// Shorten a long text in its middle: names and owners often differ only at their ends.
const SHORT = 24, END = 10, letters = new Intl.Segmenter();
function fit(element, text) {
  if (element.textContent === text) return;
  const parts = Array.from(letters.segment(text), (part) => part.segment), long = parts.length > SHORT;
  element.classList.toggle("cut", long);
  if (long) element.replaceChildren(make("span", "head", parts.slice(0, -END).join("")), make("span", "", parts.slice(-END).join("")));
  else element.textContent = text;
}

function addRow(name) {
  const row = make("tr"), open = make("button", "name"), owner = make("span", "who"), mode = make("span", "badge");
  const fence = make("span", "mono"), queue = make("span", "queue"), left = timer();
  open.type = "button";
  open.dir = "auto";
  open.title = shown(name);
  fit(open, shown(name));
  row.dataset.name = name;
  for (const part of [open, owner, mode, fence, left.box, queue]) {
    const cell = make("td");
    cell.append(part);
    row.append(cell);
  }
  row.children[3].className = row.children[5].className = "num";
  row.addEventListener("click", () => { open.focus({ preventScroll: true }); detail(name); });
  const made = { row, open, owner, mode, fence, queue, left };
  rows.set(name, made);
  return made;
}

function fillRow(made, lock, heard) {
  // The lease that ends last: until then the lock is in use.
  const last = lock.holders.reduce((a, b) => (!a || (b.expires_in_ms ?? Infinity) > (a.expires_in_ms ?? Infinity) ? b : a), null);
  fit(made.owner, lock.holders.length ? shown(lock.holders[0].owner_id) + (lock.holder_count > 1 ? " + " + (lock.holder_count - 1) + " more" : "") : "nobody");
  made.owner.title = lock.holders.map((h) => shown(h.owner_id)).slice(0, 20).join("\n");
  const revoked = lock.holders.some((h) => h.revoked);
  const mode = modeOf(lock);
  put(made.mode, revoked ? "revoked" : mode);
  // Most locks are exclusive: highlight only the others.
  made.mode.className = revoked ? "badge warn" : mode === "exclusive" ? "soft" : "badge";
  put(made.fence, String(lock.fencing_token));
  put(made.queue, String(lock.queue_length));
  made.queue.className = lock.queue_length ? "queue some" : "queue";
  wind(made.left, last, heard);
}

function show(locks, heard) {
  const body = at("locks"), kept = new Set(), had = document.activeElement && document.activeElement.closest("#locks tr");
  const place = had ? [...body.children].indexOf(had) : -1;
  let before = null;
  for (const lock of locks) {
    const made = rows.get(lock.lock_name) || addRow(lock.lock_name);
    kept.add(lock.lock_name);
    fillRow(made, lock, heard);
    const next = before ? before.nextElementSibling : body.firstElementChild;
    if (next !== made.row) body.insertBefore(made.row, next);
    before = made.row;
  }
  for (const [name, made] of rows) {
    if (!kept.has(name)) { made.row.remove(); rows.delete(name); }
  }
  // The focused lock is gone: focus its neighbour.
  if (had && !had.isConnected && !document.querySelector("dialog[open]")) {
    const next = body.children[Math.min(place, body.children.length - 1)];
    (next ? next.querySelector("button") : at("search")).focus();
  }
  at("table").hidden = locks.length === 0;
}

at("locks").addEventListener("keydown", (e) => {
  const row = e.target.closest("tr");
  const to = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, Home: at("locks").firstElementChild, End: at("locks").lastElementChild }[e.key];
  if (to) { e.preventDefault(); to.querySelector("button").focus(); }
});
