// The four figures and their charts, from /metrics.

// A chart shows two minutes. On a page just opened it shows a shorter span, so that there is something to see.
const WINDOW = 120000, YOUNG = 20000;
const series = { held: [], waiting: [], rate: [], latency: [] };
let counted = null;

function numbers(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!line.startsWith("lock")) continue;
    const space = line.lastIndexOf(" ");
    found.set(line.slice(0, space), Number(line.slice(space + 1)));
  }
  return found;
}
const VERBS = /op="(acquire|renew|release)"/;

function figures(text) {
  const all = numbers(text), now = { at: performance.now(), acquires: 0, others: 0, ms: 0, calls: 0, buckets: new Map() };
  for (const [key, value] of all) {
    if (key.startsWith("lock_acquire_total{")) now.acquires += value;
    else if (key.startsWith("lock_renew_total{") || key.startsWith("lock_release_total{")) now.others += value;
    else if (key.startsWith("lock_store_latency_ms_") && VERBS.test(key)) {
      if (key.includes("_sum{")) now.ms += value;
      else if (key.includes("_count{")) now.calls += value;
      else {
        const bound = Number((/le="([^"]+)"/.exec(key) || [])[1]) || Infinity;
        now.buckets.set(bound, (now.buckets.get(bound) || 0) + value);
      }
    }
  }
  const held = all.get("locks_held") || 0, waiting = all.get("lock_queued") || 0;
  put(at("held"), held.toLocaleString());
  put(at("waiting"), waiting.toLocaleString());
  point("held", now.at, held);
  point("waiting", now.at, waiting);
  peak("held", (v) => v.toLocaleString());
  peak("waiting", (v) => v.toLocaleString());
  // After a restart the counters start again from zero.
  if (counted && now.acquires >= counted.acquires && now.calls >= counted.calls) {
    const seconds = (now.at - counted.at) / 1000, rate = (now.acquires - counted.acquires) / seconds;
    put(at("rate"), rate.toFixed(rate < 100 ? 1 : 0));
    put(at("rate-more"), ((now.others - counted.others) / seconds).toFixed(1) + " renew + release");
    point("rate", now.at, rate);
    const calls = now.calls - counted.calls;
    put(at("latency"), calls ? milliseconds((now.ms - counted.ms) / calls) : "–");
    put(at("latency-more"), calls ? slowest(now.buckets, counted.buckets, calls) : "no calls");
    point("latency", now.at, calls ? (now.ms - counted.ms) / calls : null);
  }
  counted = now;
  return held;
}

const milliseconds = (ms) => ms.toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0) + " ms";

// The histogram bucket that contains the 99th percentile.
function slowest(now, before, calls) {
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const bound = bounds.find((b) => now.get(b) - (before.get(b) || 0) >= calls * 0.99);
  return bound === Infinity ? "p99 > 2 s" : "p99 ≤ " + bound + " ms";
}

function peak(name, text) {
  const most = Math.max(0, ...series[name].map((p) => p.v || 0));
  put(at(name + "-more"), "peak " + text(most));
}

// A null value, or a time without answers, is a gap in the line, not a zero.
function point(name, time, value) {
  const list = series[name];
  list.push({ t: time, v: value });
  while (list.length && list[0].t < time - WINDOW) list.shift();
  const most = Math.max(...list.map((p) => p.v || 0), 1e-9) * 1.15;
  const wide = Math.max(time - list[0].t, YOUNG);
  const x = (p) => (120 - (time - p.t) / wide * 120).toFixed(1), y = (p) => (39.2 - 38 * p.v / most).toFixed(1);
  let line = "", area = "", begin = null, last = null;
  const close = () => { if (begin && last) area += "L" + x(last) + " 40L" + x(begin) + " 40Z"; begin = null; };
  for (const p of list) {
    if (p.v === null) { close(); last = null; continue; }
    if (last && p.t - last.t > 4 * EVERY) close();
    const step = (begin ? "L" : "M") + x(p) + " " + y(p);
    line += step;
    area += step;
    if (!begin) begin = p;
    last = p;
  }
  close();
  const chart = at(name + "-chart");
  chart.querySelector(".line").setAttribute("d", line);
  chart.querySelector(".area").setAttribute("d", area);
  chart.setAttribute("aria-label", "The last " + Math.round((time - list[0].t) / 1000) + " seconds, highest " + (most / 1.15).toFixed(1));
}
