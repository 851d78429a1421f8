// Times as the reader chose: relative to now, in UTC or in the browser's zone. Without this file, and until
// the reader chooses, they are relative, as the server writes them.
"use strict";

const lowkiqTimes = (() => {
  const KEY = "lowkiq-times";
  const root = document.documentElement;
  const ahead = Number(root.dataset.now) * 1000 - Date.now();
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const names = { relative: "relative", UTC: "UTC", local: `local, ${here}` };
  const stored = localStorage.getItem(KEY);
  let choice = stored in names ? stored : "relative";

  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  const span = (seconds) => {
    const parts = [];
    let left = Math.round(seconds);
    for (const [unit, size] of UNITS) {
      const count = Math.floor(left / size);
      left -= count * size;
      if (count) parts.push(`${count} ${unit}`);
      if (parts.length === 2 || (parts.length && !count)) break;
    }
    return parts.join(" ");
  };

  const relative = (at) => {
    const seconds = (at - Date.now() - ahead) / 1000;
    if (Math.abs(seconds) < 1) return "now";
    return seconds > 0 ? `in ${span(seconds)}` : `${span(-seconds)} ago`;
  };

  // The zone of exact times, and of the titles of relative ones.
  const zone = () => (choice === "local" ? here : "UTC");

  const parts = (at) => {
    const format = new Intl.DateTimeFormat("en-GB", {
      timeZone: zone(), hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit",
      hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
    });
    return Object.fromEntries(format.formatToParts(at).map((part) => [part.type, part.value]));
  };

  const exact = (at) => {
    const { year, month, day, hour, minute, second, timeZoneName } = parts(at);
    return `${year}-${month}-${day} ${hour}:${minute}:${second} ${timeZoneName}`;
  };

  const clock = (at) => {
    const { hour, minute, timeZoneName } = parts(at);
    return `${hour}:${minute} ${timeZoneName}`;
  };

  const textOf = (one, at) => {
    if ("exact" in one.dataset) return exact(at);
    if (choice === "relative") return one.dataset.words || relative(at);
    return one.dataset.words ? clock(at).slice(0, 5) : exact(at);
  };

  const show = (within) => {
    for (const one of within.querySelectorAll("time[datetime]")) {
      const at = Date.parse(one.dateTime);
      one.textContent = textOf(one, at);
      one.title = exact(at);
    }
  };

  const addPicker = () => {
    const label = document.createElement("label");
    const picker = document.createElement("select");
    label.className = "times";
    for (const [name, text] of Object.entries(names)) picker.append(new Option(text, name, false, name === choice));
    picker.addEventListener("change", () => {
      choice = picker.value;
      if (choice === "relative") localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, choice);
      show(document);
    });
    label.append("Times: ", picker);
    document.querySelector(".foot .choices").append(label);
  };

  // A fresh page is written as the server does until the reader chooses.
  const update = (within) => choice === "relative" || show(within);

  addPicker();
  update(document);
  return { update, clock, exact };
})();
