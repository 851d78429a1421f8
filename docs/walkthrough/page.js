// Plays recorded traces. `t` is the time in ms since a trace began.
"use strict";

const traces = JSON.parse(document.getElementById("traces").textContent);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const at = (id) => document.getElementById(id);
const QUIET = 500; // ms without an event, which are played faster
const PLAY = "M4 2.5v11L13.5 8z", PAUSE = "M4 3h3v10H4zM9 3h3v10H9z"; // shapes of the button
let trace, ids, end, beats, views, t = 0, playing = false, before = 0;

function make(tag, name = "", ...inside) {
  const found = document.createElement(tag);
  if (name) found.className = name;
  found.append(...inside);
  return found;
}

const seconds = (ms) => (ms / 1000).toFixed(2) + " s";
const colour = (id) => "id" + (ids.indexOf(id) % 4);
const list = (versions) => versions.map((v) => "v" + v).join(" ");
const percent = (ms) => (100 * ms) / end + "%";
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const several = (id, versions, ...more) => make("span", "job " + colour(id), id, ...versions.map((v) => make("i", "", "v" + v)), ...more);

// Adds to each event what follows from those before it: which write is stale, when a run ends, and how.
function study(events) {
  const newest = {}, runs = {};
  for (const event of events) {
    if (event.e === "start") runs[event.run] = Object.assign(event, { until: Infinity });
    if (event.e === "end") event.begun = Object.assign(runs[event.run], { until: event.t, ok: event.ok });
    if (event.e === "kill") {
      event.runs = Object.values(runs).filter((run) => run.lane[0] === event.worker && run.until === Infinity);
      for (const run of event.runs) Object.assign(run, { until: event.t, killed: true });
    }
    if (event.e !== "write") continue;
    event.before = newest[event.id];
    event.stale = event.before !== undefined && event.v < event.before.v;
    if (!event.stale) newest[event.id] = event;
    const writer = Object.values(runs).find((run) => run.until === Infinity && (run.p[event.id] || []).includes(event.v));
    if (writer && event.stale) writer.staleAt = event.t;
  }
  return events;
}

function words(event) {
  const thing = trace.noun + " " + event.id;
  switch (event.e) {
    case "call": return `${thing}: “${event.s}” (v${event.v}) is sent`;
    case "start": return `${event.lane} runs ` + Object.entries(event.p).map(([id, found]) => `${id}: ${list(found)}`).join(", ");
    case "end": return event.ok ? "" : `${event.begun.lane} fails${event.why ? ": " + event.why : ""}`;
    case "write": return `${thing} is now “${event.s}”` + (event.stale ? `, after it was “${event.before.s}”` : "");
    case "kill": return `worker ${event.worker} is killed (kill -9)`;
    case "note": return event.s;
    default: return "";
  }
}

class Side {
  constructor(name, side) {
    this.side = side;
    this.events = study(side.events);
    this.ordered = name === "ordered";
    this.bars = [];
    this.shown = -1;
    this.tally = make("p", "tally");
    this.shelf = make("div", "shelf");
    this.rows = make("tbody");
    this.log = make("ol", "log");
    this.verdict = make("p", "verdict");
    const title = make("h3", "", this.ordered ? "Ordered task" : side.commands.length > 2 ? "Plain Celery, a queue for each part" : "Plain Celery");
    const table = make("table", "", make("caption", "said", "Rows of the database"), this.rows);
    const source = make("details", "", make("summary", "", "The task and its workers"),
      make("pre", "", trace.code[name]), make("pre", "", side.commands.join("\n")));
    for (const block of source.querySelectorAll("pre")) block.tabIndex = 0;
    this.node = make("article", "side " + name, make("header", "", title, this.tally), this.chart(),
      make("h4", "shelf-title", "Waiting in Redis"), this.shelf, make("h4", "", "In the database"), table, this.verdict,
      make("h4", "log-title", "What happens"), this.log, source);
    this.node.setAttribute("aria-label", title.textContent);
  }

  chart() {
    const calls = this.events.filter((event) => event.e === "call");
    const crowded = calls.length > 8, top = make("div", "lane calls", make("span", "name", "calls"));
    for (const event of calls) this.place(top, event, make("span", "call " + colour(event.id), "v" + event.v));
    const chart = make("div", "chart" + (crowded ? " crowded" : ""), top);
    for (const name of this.side.lanes) {
      const alone = this.side.lanes.filter((other) => other[0] === name[0]).length === 1;
      const lane = make("div", "lane", make("span", "name", alone ? name[0] : name));
      for (const event of this.events) {
        if (event.e === "start" && event.lane === name) {
          const [[id, versions]] = Object.entries(event.p);
          this.place(lane, event, make("span", "bar " + colour(id), make("span", "", make("small", "", crowded ? "" : id + " "), list(versions))));
        }
        if (event.e === "kill" && event.worker === name[0]) {
          this.place(lane, { t: event.t, until: Infinity }, make("span", "gone", "worker killed"));
        }
      }
      chart.append(lane);
    }
    const axis = make("div", "axis"), tick = end > 3000 ? 1000 : 500;
    for (let mark = 0; mark < end - tick / 3; mark += tick) {
      const label = make("span", "", mark / 1000 + (mark ? "" : " s"));
      label.style.left = percent(mark);
      axis.append(label);
    }
    chart.append(axis, make("div", "head"));
    const seek = (press) => go((end * (press.clientX - axis.getBoundingClientRect().left)) / axis.offsetWidth, true);
    chart.addEventListener("pointerdown", seek);
    chart.addEventListener("pointermove", (press) => press.buttons && seek(press));
    return chart;
  }

  place(lane, event, node) {
    node.style.left = percent(event.t);
    lane.append(node);
    this.bars.push({ event, node });
  }

  // Moves to the time `t`; texts change only where an event lies between.
  show() {
    for (const { event, node } of this.bars) {
      node.hidden = event.t > t;
      if (event.until === undefined) continue; // a call has no length
      node.style.width = percent(Math.min(event.until, t, end) - event.t);
      node.classList.toggle("going", event.until > t);
      node.classList.toggle("failed", event.ok === false && event.until <= t);
      node.classList.toggle("killed", Boolean(event.killed) && event.until <= t);
      node.classList.toggle("stale", event.staleAt <= t);
    }
    const past = this.events.filter((event) => event.t <= t), over = t >= end, shown = past.length + over;
    if (this.shown === shown) return;
    this.shown = shown;
    this.tell(past);
    this.wait(past);
    this.fill(past, over);
  }

  tell(past) {
    const told = past.filter(words).slice(-4).reverse();
    const bad = (event) => event.stale || event.e === "kill" || (event.e === "end" && !event.ok);
    this.log.replaceChildren(...told.map((event) => make("li", bad(event) ? "bad" : "", make("span", "", seconds(event.t)), words(event))));
  }

  wait(past) {
    const places = {}, running = past.filter((event) => event.e === "start" && event.until > t);
    for (const event of past) if (event.e === "redis") places[event.id] = event;
    const jobs = [], busy = (id, v) => this.ordered && running.some((run) => (run.p[id] || []).includes(v));
    for (const [id, { w = [], d = [], p = [], n, due, h }] of Object.entries(places)) {
      const versions = w.filter((v) => !busy(id, v)), lost = p.filter((v) => !busy(id, v));
      const killed = past.some((event) => event.e === "kill") ? lost : [];
      const orphan = (v) => past.some((event) => event.e === "kill" && event.runs.some((run) => run.p[id]?.includes(v)));
      const unacked = make("span", "tag", "not acknowledged");
      if (!this.ordered) jobs.push(...versions.map((v) => several(id, [v], ...(orphan(v) ? [unacked] : []))));
      if (d.length) jobs.push(make("span", "job dead", id, ...d.map((v) => make("i", "", "v" + v)), "dead, in the morgue"));
      if (killed.length) jobs.push(several(id, killed, make("span", "tag", "kept until its lease ends")));
      if (!this.ordered || !versions.length) continue;
      const later = n !== undefined && due > t && "retry at " + seconds(due), state = h ? "held behind the dead one" : later;
      jobs.push(several(id, versions, ...(state ? [make("span", "tag", state)] : [])));
    }
    this.shelf.replaceChildren(...(jobs.length ? jobs : [make("span", "nothing", "nothing")]));
  }

  fill(past, over) {
    const writes = past.filter((event) => event.e === "write"), stale = writes.filter((event) => event.stale).length;
    const calls = past.filter((event) => event.e === "call").length, runs = past.filter((event) => event.e === "start").length;
    this.tally.replaceChildren(make("b", "", calls), " calls, ", make("b", "", runs), " runs, ", make("b", stale ? "bad" : "", stale), " stale");
    const wrong = [];
    this.rows.replaceChildren(...ids.map((id) => {
      const mine = writes.filter((event) => event.id === id), last = mine.at(-1), now = last ? last.s : "–";
      const right = now === trace.right[id];
      if (over && !right) wrong.push(id);
      const state = over ? (right ? " right" : " wrong") : last && last.stale ? " wrong" : "";
      const steps = make("td", "", ...mine.map((event) => make("s", event.stale ? "stale" : "", "v" + event.v)));
      return make("tr", "", make("th", "", make("b", colour(id), trace.noun + " " + id)), make("td", "now" + state, now), steps);
    }));
    this.verdict.className = "verdict" + (over ? (wrong.length || stale ? " bad" : " good") : "");
    const gone = ids.find((id) => writes.filter((event) => event.id === id).at(-1)?.stale), lost = this.lost(past);
    const live = gone ? `The row of ${trace.noun} ${gone} is stale.` : lost;
    if (!over && live) this.verdict.classList.add("bad");
    const [bold, rest] = over ? this.judge(wrong, stale, lost, calls, runs) : [live, live ? "" : "In order so far."];
    this.verdict.replaceChildren(make("b", "", bold), rest);
  }

  // What failed, and never ran again with success.
  lost(past) {
    const done = (id, v) => this.events.some((event) => event.e === "start" && event.ok && event.p[id]?.includes(v));
    const failed = past.filter((event) => event.e === "end" && !event.ok).flatMap((event) => Object.entries(event.begun.p));
    const found = failed.map(([id, versions]) => [id, versions.filter((v) => !done(id, v))]).find(([, versions]) => versions.length);
    return found ? `Message ${list(found[1])} of ${trace.noun} ${found[0]} is lost.` : "";
  }

  judge([id], stale, lost, calls, runs) {
    const old = stale === 1 ? " One old message overwrote a newer one." : stale ? ` ${stale} old messages overwrote newer ones.` : "";
    if (!id && stale) return ["Right at the end, by luck.", old];
    if (!id) return ["Right, all the time. ", runs < calls ? `${runs} runs for ${calls} calls, each in its order.` : "Each message in its order."];
    const last = this.events.filter((event) => event.e === "write" && event.id === id).at(-1);
    return ["Wrong at the end. ", `${capital(trace.noun)} ${id} says “${last.s}” and must say “${trace.right[id]}”. ${lost}${old}`];
  }
}

// -- the player

function go(to, stop = false) {
  if (stop) pause();
  t = Math.max(0, Math.min(end, to));
  at("time").value = t;
  at("clock").value = seconds(t);
  at("time").setAttribute("aria-valuetext", seconds(t));
  at("stage").style.setProperty("--p", t / end);
  for (const view of views) view.show();
  if (stop) {
    history.replaceState(null, "", `#${trace.name}@${Math.round(t)}`);
    const newest = views.map((view) => `${view.node.getAttribute("aria-label")}: ${view.log.firstChild?.lastChild.textContent || "nothing yet"}`);
    at("said").textContent = [...newest, ...views.map((view) => view.verdict.textContent)].filter(Boolean).join(". ");
  }
}

const later = () => beats.find((beat) => beat > t) ?? end;
const earlier = () => beats.findLast((beat) => beat < t) ?? 0;

function pause(not = true) {
  playing = !not;
  at("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  at("play-shape").setAttribute("d", playing ? PAUSE : PLAY);
}

function play() {
  if (t >= end) go(0);
  pause(false);
  before = performance.now();
  requestAnimationFrame(frame);
}

function frame(now) {
  if (!playing) return;
  const next = later(), pace = at("speed").value * (next - earlier() > QUIET && next - t > 100 && t - earlier() > 100 ? 3 : 1);
  const passed = (now - before) * pace;
  if (!calm.matches || t + passed >= next) { // with reduced motion it moves from event to event
    before = now;
    go(t + passed);
  }
  if (t >= end) go(end, true);
  requestAnimationFrame(frame);
}

function open(name, time) {
  pause();
  trace = traces.find((one) => one.name === name) || traces[0];
  ids = [...new Set(trace.sides.plain.events.filter((event) => event.e === "call").map((event) => event.id))];
  const told = Object.values(trace.sides).flatMap((side) => side.events.filter((event) => event.e !== "redis")).map((event) => event.t);
  end = Math.ceil((Math.max(...told) + 150) / 100) * 100;
  beats = [...new Set(told)].sort((one, other) => one - other).filter((beat, place, all) => !place || beat - all[place - 1] > 8);
  views = Object.entries(trace.sides).map(([side, found]) => new Side(side, found));
  at("title").textContent = trace.title;
  at("story").textContent = trace.story;
  at("note").textContent = trace.note;
  at("note").hidden = !trace.note;
  at("recorded").textContent = `Recorded on ${trace.recorded} with ${trace.with}.`;
  at("time").max = end;
  at("stage").replaceChildren(...views.map((view) => view.node));
  for (const button of at("tabs").querySelectorAll("button")) {
    button.setAttribute("aria-current", button.value === trace.name);
    if (button.value === trace.name) at("tabs").scrollLeft = button.offsetLeft - 40;
  }
  // Room for the most that ever waits, so that nothing below moves.
  const most = Math.max(...beats.map((beat) => (go(beat), Math.max(...views.map((view) => view.shelf.offsetHeight)))));
  for (const view of views) view.shelf.style.height = most + "px";
  go(time);
}

function byAddress() {
  const [name, time] = location.hash.slice(1).split("@");
  open(name, Number(time) || 0);
  if (time === undefined && !calm.matches) play();
}

const keys = { ArrowLeft: () => go(earlier(), true), ArrowRight: () => go(later(), true), Home: () => go(0, true), End: () => go(end, true) };
keys[" "] = () => (playing ? pause() : play());

traces.forEach((one, place) => {
  const button = make("button", "", make("span", "", place + 1), one.title);
  Object.assign(button, { type: "button", value: one.name });
  keys[place + 1] = () => { location.hash = one.name; };
  button.addEventListener("click", keys[place + 1]);
  at("tabs").append(make("li", "", button));
});
at("play").addEventListener("click", keys[" "]);
at("back").addEventListener("click", keys.ArrowLeft);
at("forward").addEventListener("click", keys.ArrowRight);
at("time").addEventListener("input", () => go(Number(at("time").value), true));
addEventListener("keydown", (press) => {
  const own = press.key === " " ? "button, summary, select, a" : "select, input, pre"; // what these do themselves
  if (press.ctrlKey || press.metaKey || press.altKey || !keys[press.key] || press.target.closest?.(own)) return;
  press.preventDefault();
  keys[press.key]();
});
addEventListener("hashchange", byAddress);
addEventListener("beforeprint", () => go(end, true));
at("main").removeAttribute("hidden");
byAddress();
