// Asks for the server's snapshot twice a second and shows it. Names and numbers are those of bankml/dashboard/panels.py
// and figures.py; what is not known makes no line. Whatever the server tells is set as text, never as HTML.
"use strict";

const POLL_MS = 500, HIDDEN_MS = 5000, TIMEOUT_MS = 5000; // between two questions; for a reply
const AWAY_S = [1, 2, 4, 5]; // between two questions while there is no reply
const SLOTS = 120; // half seconds of the chart
const KEY = "bankml key"; // in the session's storage
const STATES = {
  loading: ["loading", "busy"],
  prompt: ["reading the prompt", "busy"],
  decode: ["decoding", "good"],
  idle: ["idle", "faint"],
  reference: ["running the reference", "accent"],
};
const WORK = {
  qkv: "q, k, v",
  attn_out: "attn output",
  ffn_gate_up: "ffn gate, up",
  ffn_down: "ffn down",
  logits: "logits",
};
const NAME = 18; // characters of a device's name, at most

// -- numbers as people read them ---------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

function fixed(value, digits) { // as toFixed, but halves go to the even digit
  const exact = value.toFixed(digits + 50), cut = exact.slice(0, -50).replace(/\.$/, "");
  return /50{49}$/.test(exact) && "02468".includes(cut.at(-1)) ? cut : value.toFixed(digits);
}

const figures = {
  rate: (value) => fixed(value, value >= 1000 ? 0 : value >= 10 ? 1 : 2),
  seconds(value) {
    if (value < 0.9995) return `${fixed(1000 * value, 0)} ms`;
    if (value < 99.95) return `${fixed(value, value < 9.995 ? 2 : 1)} s`;
    const minutes = Number(fixed(value / 60, 0));
    return minutes < 120 ? `${minutes} min` : `${fixed(minutes / 60, 0)} h`;
  },
  milliseconds(value) {
    const ms = 1000 * value;
    return fixed(ms, ms >= 100 ? 0 : ms >= 10 ? 1 : 2);
  },
  short(number) {
    let at = 0;
    for (; number >= 999.5 && at < 3; at++) number /= 1000;
    return fixed(number, !at || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2) + ["", " k", " M", " G"][at];
  },
  size(count) {
    let at = 0;
    for (; count >= 999.5 && at < 4; at++) count /= 1000;
    return `${fixed(count, !at || count >= 99.95 ? 0 : 1)} ${["B", "kB", "MB", "GB", "TB"][at]}`;
  },
  percent: (share) => `${fixed(100 * share, 0)}%`,
  count: (number) => whole.format(Math.trunc(number)),
};

// -- drawing -----------------------------------------------------------------------------------------------------------
// A text is [words, class], a part an array of texts, a row {name, parts, share, kind, cells}; null is one not known.

const known = (value) => value !== undefined && value !== null;
const at = (id) => document.getElementById(id);

function fill(parent, items, tag, update) {
  while (parent.children.length < items.length) parent.append(document.createElement(tag));
  [...parent.children].forEach((child, i) => {
    child.hidden = !items[i];
    if (items[i]) update(child, items[i]);
  });
}

function write(element, text, kind) {
  if (element.textContent !== text) element.textContent = text;
  if (known(kind) && element.className !== kind) element.className = kind;
}

function texts(parent, items) {
  fill(parent, items, "span", (span, [text, kind]) => write(span, text, kind ?? ""));
}

function parts(parent, items) {
  fill(parent, items, "span", (span, part) => {
    span.className = "part";
    texts(span, part);
  });
}

function bar(element, share, kind) {
  element.className = `bar ${kind}`;
  if (!element.firstChild) element.append(document.createElement("i"));
  element.firstChild.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
}

function rows(list, items) {
  fill(list, items, "div", (row, item) => {
    if (!row.firstChild) {
      row.className = "row";
      for (const tag of ["dt", "dd"]) row.append(document.createElement(tag));
      for (const kind of ["bar", "cells", "parts"]) {
        const made = document.createElement(kind === "parts" ? "span" : "div");
        made.className = kind;
        row.lastChild.append(made);
      }
    }
    const [name, value] = row.children, [track, cells, told] = value.children;
    write(name, item.name, item.kindOfName ?? "");
    track.hidden = !known(item.share);
    if (known(item.share)) bar(track, item.share, item.kind);
    cells.hidden = !item.cells;
    fill(cells, item.cells ?? [], "span", (cell, share) => {
      while (cell.children.length < 2) cell.append(document.createElement(cell.firstChild ? "span" : "div"));
      bar(cell.firstChild, share, "good");
      write(cell.lastChild, figures.percent(share), "share");
    });
    parts(told, item.parts);
  });
}

// -- what a snapshot holds on one matter -------------------------------------------------------------------------------

function doing(s) {
  const items = [];
  if (s.state) {
    const [name, kind] = STATES[s.state] ?? [s.state, "strong"];
    items.push([`● ${name}`, kind]);
  }
  if (s.tokens) {
    const limit = s.max_tokens ? ` of ${figures.count(s.max_tokens)}` : "";
    items.push([`${figures.count(s.tokens)}${limit} tokens`, "faint"]);
  }
  if (s.queue) items.push([`${figures.count(s.queue)} waiting`, "busy"]);
  return items;
}

function speed(s) {
  const rates = (s.rates ?? []).slice(-SLOTS), peak = Math.max(0, ...rates), now = known(s.rate);
  if (now || rates.length || known(s.first_token_s)) at("speed").hidden = false; // and there it stays
  write(at("rate"), now ? figures.rate(s.rate) : "");
  texts(at("rate-name"), now ? [["tokens/s now", "faint"]] : []);
  texts(at("minute"), known(s.rate_minute) ? [[figures.rate(s.rate_minute)], [" last minute", "faint"]] : []);
  texts(at("peak"), peak > 0 ? [[`peak ${figures.rate(peak)}`, "faint"]] : []);
  texts(at("first"), known(s.first_token_s) ? [["first token ", "faint"], [figures.seconds(s.first_token_s)]] : []);
  const points = rates.map((rate, i) => `${SLOTS - rates.length + i} ${(99 - 96 * (rate / (peak || 1))).toFixed(1)}`);
  const curve = points.length > 1 ? `M${points.join("L")}` : "";
  at("curve").setAttribute("d", curve);
  at("area").setAttribute("d", curve && `${curve}L119 100L${SLOTS - rates.length} 100Z`);
}

function budget(s) {
  const kinds = Object.entries(s.budget ?? {}).filter(([kind, time]) => kind !== "other" && time > 0);
  kinds.sort((a, b) => b[1] - a[1]);
  const items = kinds.map(([kind, time], i) => [Object.hasOwn(WORK, kind) ? WORK[kind] : kind, time, `kind-${i % 6}`]);
  if (s.budget?.other > 0) items.push(["other", s.budget.other, "faint"]);
  const times = items.map(([, time]) => time), all = times.reduce((sum, time) => sum + time, 0);
  const largest = Math.max(...times);
  if (items.length) {
    at("budget").hidden = false;
    write(at("budget-title"), s.budget_of === "prompt" ? "time of a prompt token" : "time of a token");
  }
  rows(at("kinds"), items.map(([name, time, kind]) => ({
    name, kind, share: time / largest,
    parts: [[[figures.milliseconds(time)]], [[figures.percent(time / all), "faint"]]],
  })));
}

function prompt(p) {
  if (!p || p.total <= 0) return null;
  const told = [[[`${figures.count(p.done)} of ${figures.count(p.total)} tokens`]]];
  if (p.cached) told.push([[`${figures.count(p.cached)} from cache`, "good"]]);
  if (known(p.rate)) told.push([[`${figures.rate(p.rate)} tokens/s`, "accent"]]);
  if (known(p.left_s) && p.done < p.total) told.push([[`${figures.seconds(p.left_s)} left`, "busy"]]);
  return { name: "prompt", share: p.done / p.total, kind: p.done >= p.total ? "good" : "accent", parts: told };
}

function threads(busy) {
  if (!busy?.length) return null;
  return { name: busy.length > 1 ? `${busy.length} threads` : "1 thread", cells: busy, parts: [] };
}

function cache(c) {
  if (!c) return null;
  const told = [[[`${figures.count(c.cells)} of ${figures.count(c.capacity)} cells`]]];
  if (known(c.bytes)) told.push([[figures.size(c.bytes)], [c.kind ? ` ${c.kind}` : "", "faint"]]);
  else if (c.kind) told.push([[c.kind, "faint"]]);
  return { name: "cache", share: c.cells / Math.max(1, c.capacity), kind: "accent", parts: told };
}

function reused(p) {
  if (!p) return null;
  const told = [[[`${p.hits} of ${p.lookups} prompts`, p.hits ? "good" : ""]], [[`${figures.count(p.tokens)} tokens`]]];
  if (p.entries) told.push([[`${p.entries} kept`, "faint"]]);
  if (p.bytes) told.push([[figures.size(p.bytes), "faint"]]);
  return { name: "reused", parts: told };
}

function device(d) {
  const characters = [...d.name], told = [];
  const name = characters.length <= NAME ? d.name : `${characters.slice(0, NAME - 1).join("")}…`;
  if (known(d.share)) told.push([[figures.percent(d.share), "accent"], [" of the rows", "faint"]]);
  if (known(d.rows)) told.push([[figures.short(d.rows)], [known(d.share) ? "" : " rows", "faint"]]);
  const limit = known(d.limit) ? figures.percent(d.limit) : null;
  if (known(d.busy)) told.push([[`busy ${figures.percent(d.busy)}`], [limit ? ` of ${limit}` : "", "faint"]]);
  else if (limit) told.push([[`limit ${limit}`, "faint"]]);
  if (known(d.resting)) told.push([d.resting ? ["resting", "busy"] : ["at work", "good"]]);
  if (known(d.bytes)) {
    told.push([[figures.size(d.bytes)], [known(d.bytes_limit) ? ` of ${figures.size(d.bytes_limit)}` : "", "faint"]]);
  }
  if (d.note) told.push([[d.note, "alert"]]);
  return { name, kindOfName: "strong", parts: told };
}

function show(s) {
  document.title = s.model ? `${s.model} - bankml` : "bankml";
  write(at("model"), s.model ?? "");
  texts(at("doing"), doing(s));
  speed(s);
  budget(s);
  const machine = [prompt(s.prompt), threads(s.threads), cache(s.cache), reused(s.prompt_cache)];
  machine.push(...(s.devices ?? []).map(device));
  if (machine.some((row) => row)) at("machine").hidden = false;
  rows(at("lines"), machine);
}

// -- asking ------------------------------------------------------------------------------------------------------------

let key = recalled(), misses = 0, timer = null, asking = false;

function recalled() {
  try {
    return sessionStorage.getItem(KEY);
  } catch { // no storage in this browser
    return null;
  }
}

function remember(value) {
  key = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch { // then for as long as the page is open
  }
}

function headers() { // a header's characters are bytes: the key's in UTF-8
  const bytes = new TextEncoder().encode(key ?? "");
  return key === null ? {} : { Authorization: `Bearer ${String.fromCharCode(...bytes)}` };
}

function needsKey(needed) {
  if (needed && at("ask").hidden) {
    at("ask").hidden = false;
    at("key").focus();
  }
  if (!needed) at("ask").hidden = true;
  at("main").hidden = needed;
  if (needed) {
    write(at("wrong"), key === null ? "" : "This is not the server's key.");
    write(at("note"), "");
    texts(at("doing"), []);
    remember(null);
  }
}

function away(why) {
  const wait = AWAY_S[Math.min(misses++, AWAY_S.length - 1)];
  at("main").classList.add("stale");
  texts(at("doing"), [["● away", "alert"]]);
  write(at("note"), `No snapshot from the server (${why}); it is asked again every ${wait} s.`);
  return 1000 * wait;
}

async function ask() { // how long to wait until the next time; null: until there is a key
  let reply, snapshot;
  try {
    reply = await fetch("bankml/snapshot", {
      headers: headers(), cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (reply.status === 401) {
      needsKey(true);
      return null;
    }
    if (!reply.ok) return away(`status ${reply.status}`);
    snapshot = await reply.json();
  } catch (error) {
    return away(error.name === "TimeoutError" ? "it is too slow" : "no connection");
  }
  misses = 0;
  needsKey(false);
  at("main").classList.remove("stale");
  write(at("note"), "");
  show(snapshot);
  return document.hidden ? HIDDEN_MS : POLL_MS;
}

async function look() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  const wait = await ask();
  asking = false;
  if (wait !== null) timer = setTimeout(look, wait);
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  remember(at("key").value);
  at("key").value = "";
  look();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && at("ask").hidden) look();
});
look();
