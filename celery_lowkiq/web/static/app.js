// Everything works without this file; it keeps pages up to date and saves a few clicks.
"use strict";

(() => {
  const SLOWEST = 60000;
  // After how many ms without an answer the page is outdated.
  const LATE = 5000;
  const bar = document.getElementById("outdated");
  // The page of an error that may pass, such as Redis being unreachable.
  const fault = document.querySelector(".fault") !== null;
  let shownAt = document.documentElement.dataset.now;
  let label = () => {};
  const seconds = Number(document.body.dataset.refresh || 0);
  let paused = sessionStorage.getItem("lowkiq-paused") === "1";
  let failures = 0;
  let timer = 0;

  // -- live updates: the page is fetched again, and its live parts change places

  const inUse = (part) =>
    (part.contains(document.activeElement) && part !== document.activeElement) ||
    part.querySelector("input:checked, details[open]:not([id]), [data-hovered]") !== null ||
    (getSelection().type === "Range" && part.contains(getSelection().anchorNode));

  const swap = (fresh) => {
    let held = false;
    lowkiqTimes.update(fresh);
    for (const one of document.querySelectorAll("details[open][id]"))
      fresh.getElementById(one.id)?.setAttribute("open", "");
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(part.id);
      if (!next || next.innerHTML === part.innerHTML) continue;
      if (inUse(part)) {
        held = true;
        continue;
      }
      const left = part.scrollLeft;
      const focused = part === document.activeElement;
      part.replaceWith(next);
      next.scrollLeft = left;
      if (focused) next.focus({ preventScroll: true });
    }
    // The last update must not pass by a part that was held still.
    if (!held) document.body.dataset.refresh = fresh.body.dataset.refresh || 0;
    const terms = document.getElementById("terms");
    for (const one of fresh.querySelectorAll("#terms > *")) if (!document.getElementById(one.id)) terms.append(one);
    enhance();
  };

  // -- without an answer: a red bar with the time of the numbers, which are dimmed

  const outdated = (why) => {
    const at = lowkiqTimes.exact(shownAt * 1000);
    bar.querySelector("span").textContent = fault ? `${why}.` : `Not up to date: ${why}. These are the numbers of ${at}.`;
    bar.hidden = false;
    document.body.dataset.outdated = "";
    label();
  };

  const upToDate = (fresh) => {
    shownAt = fresh.documentElement.dataset.now;
    failures = 0;
    bar.hidden = true;
    delete document.body.dataset.outdated;
    label();
  };

  const update = async () => {
    clearTimeout(timer);
    const late = setTimeout(() => outdated("Redis or the dashboard does not respond"), LATE);
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
      if (answer.ok && fault) return location.reload();
      if (!answer.ok) throw answer;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      swap(fresh);
      upToDate(fresh);
    } catch (error) {
      failures += 1;
      outdated(error.status === 503 ? "Redis is unreachable" : `the dashboard ${error.status ? `responds with ${error.status}` : "is unreachable"}`);
    } finally {
      clearTimeout(late);
    }
    plan();
  };

  const plan = () => {
    clearTimeout(timer);
    const pause = Number(document.body.dataset.refresh || 0) * 1000;
    if (!pause || paused || document.hidden) return;
    timer = setTimeout(update, Math.min(SLOWEST, pause * 2 ** failures));
  };

  // -- a switch to hold the page still

  const addSwitch = () => {
    const who = document.querySelector(".who");
    if (!seconds || !who) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "switch live-switch";
    label = () => {
      button.setAttribute("aria-pressed", String(!paused));
      button.textContent = paused ? "Paused" : "outdated" in document.body.dataset ? "Not live" : "Live";
      button.title = paused ? "Keep the page up to date" : "Hold the page still";
    };
    button.addEventListener("click", () => {
      paused = !paused;
      sessionStorage.setItem("lowkiq-paused", paused ? "1" : "0");
      label();
      if (paused) plan();
      else update();
    });
    label();
    who.prepend(button);
  };

  // -- a switch between the themes: as the system, light, dark

  const addTheme = () => {
    const themes = { "": "auto", light: "light", dark: "dark" };
    const root = document.documentElement;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "switch";
    const show = () => (button.textContent = `Theme: ${themes[root.dataset.theme || ""]}`);
    button.addEventListener("click", () => {
      const names = Object.keys(themes);
      const next = names[(names.indexOf(root.dataset.theme || "") + 1) % names.length];
      if (next) root.dataset.theme = next;
      else delete root.dataset.theme;
      if (next) localStorage.setItem("lowkiq-theme", next);
      else localStorage.removeItem("lowkiq-theme");
      show();
    });
    show();
    document.querySelector(".foot .choices").append(button);
  };

  // -- `/` leads to the search

  const toSearch = (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    document.querySelector(".find input").focus();
  };

  // -- one box for all boxes of a listing

  const enhance = () => {
    for (const head of document.querySelectorAll("th.pick")) {
      if (head.querySelector("input")) continue;
      const boxes = () => head.closest("table").querySelectorAll("td.pick input");
      const all = document.createElement("input");
      all.type = "checkbox";
      all.setAttribute("aria-label", "Choose all on this page");
      all.addEventListener("change", () => boxes().forEach((box) => (box.checked = all.checked)));
      head.replaceChildren(all);
    }
  };

  // -- the chart shows what is under the pointer

  const pointAt = (event) => {
    const chart = event.target.closest && event.target.closest("svg[data-chart]");
    for (const other of document.querySelectorAll("svg[data-hovered]")) if (other !== chart) leave(other);
    if (!chart) return;
    const box = chart.getBoundingClientRect();
    const points = chart.querySelectorAll("[data-at]");
    if (!points.length) return;
    const share = (event.clientX - box.left) / box.width;
    const width = chart.viewBox.baseVal.width;
    let nearest = points[0];
    for (const point of points)
      if (Math.abs(point.dataset.x - share * width) < Math.abs(nearest.dataset.x - share * width)) nearest = point;
    chart.dataset.hovered = "";
    const line = chart.querySelector(".chart-cursor");
    line.setAttribute("x1", nearest.dataset.x);
    line.setAttribute("x2", nearest.dataset.x);
    const note = document.getElementById(chart.dataset.chart);
    if (note) note.textContent = `${lowkiqTimes.clock(Date.parse(nearest.dataset.at))} · ${nearest.dataset.text}`;
  };

  const leave = (chart) => {
    delete chart.dataset.hovered;
    const note = document.getElementById(chart.dataset.chart);
    if (note) note.textContent = note.dataset.rest;
  };

  document.addEventListener("pointermove", pointAt, { passive: true });
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : plan()));
  document.addEventListener("keydown", toSearch);
  bar.querySelector("button").addEventListener("click", update);
  addSwitch();
  addTheme();
  enhance();
  plan();
})();
