// One lock: its holders, its waiters, its recent history; and the dialog that revokes it.

let open = null, opened = null, timers = [], canRevoke = true, drawn = "";

async function detail(name) {
  open = name;
  opened = null;
  drawn = "";
  at("detail-name").textContent = shown(name);
  at("detail-body").replaceChildren();
  at("detail-error").textContent = "";
  at("detail-state").className = "badge";
  at("detail-state").textContent = "…";
  at("revoke").disabled = true;
  if (!at("detail").open) at("detail").showModal();
  at("detail-body").scrollTop = 0;
  look();
}
const asked = (name) => Promise.all([json(pathOf(name)), json(pathOf(name) + "/history")]);

function facts(pairs) {
  const list = make("dl", "facts");
  for (const [term, text, look] of pairs) if (text !== null) list.append(make("dt", "", term), make("dd", look, text));
  return list;
}
function title(text, more) {
  const head = make("h3", "", text);
  head.append(make("span", "", more));
  return head;
}

function holderCard(holder, heard) {
  const box = make("div", "holder"), left = timer();
  box.append(make("span", "who", shown(holder.owner_id)));
  box.append(facts([
    ["Mode", holder.limit ? holder.mode + ", 1 of " + holder.limit : holder.mode], ["Fence", holder.fencing_token, "mono"],
    ["Since", clock(holder.acquired_at_ms)], ["Renewals", holder.renewals], ["Revoked", holder.revoked ? "yes: it ends with its time" : null],
  ]));
  if (holder.metadata) box.append(make("pre", "", shown(holder.metadata)));
  box.append(left.box);
  wind(left, holder, heard);
  timers.push([holder.lease_digest, left]);
  return box;
}
function item(when, look, who, more) {
  const line = make("li"), text = make("span", "who", who);
  if (more) text.append(make("small", "", more));
  line.append(make("span", "at " + look, when), text);
  return line;
}

const HAPPENED = { granted: "Granted", released: "Released", revoked: "Revoked", renewal_refused: "Renewal refused", release_refused: "Release refused" };
function happened(event, held, ended, all) {
  const who = event.owner_id ? shown(event.owner_id) : null, parts = [];
  if (event.fencing_token) parts.push("fence " + event.fencing_token);
  if (event.waited_ms) parts.push("waited " + span(event.waited_ms));
  if (event.reason) parts.push(event.reason.replace("_", " "));
  // A lease expires without a request, so no event says so. Show it as expired when all holders are known and it is
  // not one.
  if (all && event.what === "granted" && !held.has(event.lease_digest) && !ended.has(event.lease_digest)) parts.push("ended without a release");
  return item(clock(event.at_ms), "", (HAPPENED[event.what] || event.what) + (who ? (event.what === "granted" ? " to " : ", ") + who : ""), parts.join(" · "));
}

function fill(lock, events, heard) {
  opened = lock;
  const state = !lock.held ? ["Free", "badge"] : lock.holders.some((h) => h.revoked) ? ["Revoked", "badge warn"] : ["Held", "badge ok"];
  put(at("detail-state"), state[0]);
  at("detail-state").className = state[1];
  at("detail-error").textContent = "";
  at("revoke").disabled = !lock.held || !canRevoke;
  // Redraw only when something other than the remaining time changed, so that text can be selected and screen readers
  // are not interrupted.
  const shape = JSON.stringify([lock.holders.map((h) => [h.lease_digest, h.renewals, h.revoked, h.mode, h.fencing_token]), lock.holder_count, lock.waiters.map((w) => w.lease_digest), lock.queue_length, lock.version, events]);
  if (shape === drawn) {
    for (const [digest, left] of timers) wind(left, lock.holders.find((h) => h.lease_digest === digest), heard);
    at("detail-body").querySelectorAll(".queued .at:last-child").forEach((cell, i) => put(cell, span(lock.waiters[i].waited_ms)));
    return;
  }
  drawn = shape;
  timers = [];
  const parts = [facts([["Last fence", lock.last_fencing_token, "mono"], ["Version", lock.version]])];
  if (lock.note && lock.note.text) parts.push(title("Note", "by fence " + lock.note.fencing_token), make("pre", "note", shown(lock.note.text)));
  parts.push(title("Holders", lock.holder_count > 50 ? "50 of " + lock.holder_count : lock.holder_count || ""), ...lock.holders.slice(0, 50).map((h) => holderCard(h, heard)));
  if (!lock.holders.length) parts.push(make("p", "soft", "Nobody holds it."));
  if (lock.holder_count > 50) parts.push(make("p", "soft", "and " + (lock.holder_count - 50) + " more"));
  const queue = make("ol", "list queued");
  lock.waiters.slice(0, 50).forEach((w, i) => {
    const line = item(i + 1, "n", shown(w.owner_id), w.mode === "exclusive" ? "" : w.mode);
    line.append(make("span", "at", span(w.waited_ms)));
    queue.append(line);
  });
  parts.push(title("Queue", lock.queue_length ? plural(lock.queue_length, "waits", "wait") : ""), queue);
  if (!lock.queue_length) parts.push(make("p", "soft", "Nobody waits."));
  else if (lock.queue_length > queue.children.length) parts.push(make("p", "soft", "and " + (lock.queue_length - queue.children.length) + " more"));
  const past = make("ol", "list past"), held = new Set(lock.holders.map((h) => h.lease_digest));
  const ended = new Set(events.filter((e) => e.what !== "granted").map((e) => e.lease_digest));
  past.append(...events.map((e) => happened(e, held, ended, lock.holder_count === lock.holders.length)));
  parts.push(title("Recent history", "through this server"), past);
  if (!events.length) parts.push(make("p", "soft", "Nothing since this server began."));
  at("detail-body").replaceChildren(...parts);
}

at("close").addEventListener("click", () => at("detail").close());
at("detail").addEventListener("click", (e) => { if (e.target === at("detail")) at("detail").close(); });
// The close event arrives late: the next lock may be open already.
at("detail").addEventListener("close", () => { if (!at("detail").open) { open = opened = null; timers = []; } });

// Revoke only the holders that the operator saw, each by its fence. If others hold the lock by now, say so and revoke
// nothing.
let meant = null;
at("revoke").addEventListener("click", () => {
  if (!opened) return;
  meant = { name: open, fences: new Set(opened.holders.map((h) => h.fencing_token)) };
  at("confirm-name").textContent = shown(open);
  at("confirm-who").textContent = "Held by " + shown(opened.holders[0].owner_id) + (opened.holder_count > 1 ? " and " + (opened.holder_count - 1) + " more" : "")
    + (opened.holder_count > opened.holders.length ? ". The oldest " + opened.holders.length + " of " + opened.holder_count + " will be revoked" : "")
    + (opened.queue_length ? ". " + plural(opened.queue_length, "waits", "wait") + " for it." : ". Nobody waits for it.");
  at("confirm-error").textContent = "";
  at("revoke-soft").checked = true;
  at("confirm").showModal();
});
at("revoke-no").addEventListener("click", () => at("confirm").close());
at("confirm-form").addEventListener("submit", async (e) => {
  e.preventDefault();
  at("revoke-yes").disabled = true;
  at("confirm-error").textContent = "";
  try {
    const now = at("revoke-now").checked;
    let met = 0;
    for (const fence of meant.fences) {
      try {
        met += (await json(pathOf(meant.name) + "/revoke", { now, fencing_token: fence })).revoked;
      } catch (error) { if (error.status !== 409) throw error; }
    }
    if (!met) throw new Error("The holder has changed, or the lock is free. Nothing was done; look again.");
    at("confirm").close();
    look();
  } catch (error) {
    at("confirm-error").textContent = error.status === 403 ? "This token may not revoke this lock. That needs admin."
      : error instanceof Refused || error.name === "Error" ? error.message : "No answer. It may or may not have been revoked.";
  } finally { at("revoke-yes").disabled = false; }
});
