// SPDX-License-Identifier: Apache-2.0 OR MIT
// Asks the daemon every two seconds, with the token, and shows what it says. Names and
// reasons come from others: they are set as texts, never as markup.
"use strict";

import { bytes, chart } from "./chart.js";

const PAUSE_MS = 2000;
const DECISIONS = 50;
// What the words of a sizing mean.
const WHY = {
  free: "free memory is taken back",
  cold: "cold memory is looked for",
  settled: "nothing is left to take",
  grows: "it allocates and is given room",
  suffers: "it missed pages, stalled or ran out: it is given back",
  waits: "it has suffered and is left alone",
  kept: "it needs the rest itself",
  moving: "it has not ended the last request",
  silent: "it does not say what it needs",
};
const SHORT = {
  pool: "FMEM is short: the pool is given out",
  credit: "FMEM is short: its credit is spent",
  ceiling: "FMEM is short: its ceiling",
};

const at = (id) => document.getElementById(id);
const cards = new Map();
// By guest: its counters when they last changed, and what they say of the time before.
const stalls = new Map();
let known = [];
let token = null;
let round = 0;
let missed = 0;

class Refused extends Error {}

function made(name, words, kind) {
  const element = document.createElement(name);
  if (words !== undefined) element.textContent = words;
  if (kind) element.className = kind;
  return element;
}

function row(...cells) {
  const line = document.createElement("tr");
  for (const [words, kind] of cells) line.append(made("td", words, kind));
  return line;
}

async function ask(path) {
  const headers = { Authorization: `Bearer ${token}` };
  const answer = await fetch(path, { headers, cache: "no-store", credentials: "omit", redirect: "error" });
  if (answer.status === 401) throw new Refused();
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

const permille = (value) => `${(value / 10).toFixed(1)} %`;
const problems = { waiting: true, disabled: true };

function reasons(vm) {
  const words = [];
  if (vm.problem) words.push(vm.problem);
  if (vm.sizing) words.push(WHY[vm.sizing.why] ?? vm.sizing.why);
  if (vm.sizing?.fmem_short) words.push(SHORT[vm.sizing.fmem_short] ?? vm.sizing.fmem_short);
  for (const tier of vm.tiers) {
    if (tier.last && tier.last.outcome !== "reached" && tier.last.outcome !== "superseded") {
      words.push(`${tier.tier} stopped at ${bytes(tier.size_bytes)}: ${tier.last.outcome}`);
    }
  }
  return words.join("; ");
}

function stalled(vm) {
  const now = vm.statistics;
  const before = stalls.get(vm.name);
  if (!now?.has_psi) {
    stalls.delete(vm.name);
    return "";
  }
  const elapsedNs = now.guest_time_ns - (before?.ns ?? now.guest_time_ns);
  if (before && elapsedNs === 0) return before.words;
  const us = now.psi_some_us - (before?.us ?? 0);
  const words = elapsedNs > 0 && us >= 0 ? permille(Math.min((us * 1e6) / elapsedNs, 1000)) : "";
  stalls.set(vm.name, { ns: now.guest_time_ns, us: now.psi_some_us, words });
  return words;
}

function tierRows(vm) {
  return vm.tiers.map((tier, index) => {
    const differs = tier.wanted_size_bytes !== null && tier.wanted_size_bytes !== tier.size_bytes;
    return row(
      [index === 0 ? vm.name : ""],
      [index === 0 ? vm.stage : "", problems[vm.stage] || vm.problem ? "bad" : ""],
      [tier.tier],
      [`${bytes(tier.size_bytes)} of ${bytes(tier.total_bytes)}`, "n"],
      [bytes(tier.wanted_size_bytes), differs ? "n late" : "n"],
      [bytes(tier.backing_bytes), "n"],
      [index === 0 ? stalled(vm) : "", "n"],
      [index === 0 ? reasons(vm) : "", "words"],
    );
  });
}

// Without a monitor nobody knows what a tier has.
const of = (index, key) => (point) => (point.stage === "waiting" ? null : point.tiers[index]?.[key]);

// What a guest had, and its ledger. Only cards that can be seen ask for it.
class Card {
  constructor(vm) {
    this.name = vm.name;
    this.points = [];
    this.instance = null;
    this.visible = false;
    this.element = made("article", undefined, "card");
    this.problem = made("p", "", "problem");
    this.element.append(made("h3", vm.name), this.problem);
    this.charts = vm.tiers.map((tier, index) =>
      chart(tier.tier, [
        { name: "has", kind: "size", filled: true, value: of(index, "size_bytes"), words: bytes },
        { name: "asked for", kind: "wanted", value: of(index, "wanted_size_bytes"), words: bytes },
        { name: "on the host", kind: "backing", value: of(index, "backing_bytes"), words: bytes },
      ]),
    );
    this.pressure = chart("pressure", [
      { name: "stalled", kind: "stalled", value: (point) => point.stalled_permille, words: permille },
      { name: "accesses to SMEM", kind: "slow", value: (point) => point.slow_permille, words: permille },
    ]);
    const keys = made("p", undefined, "legend");
    keys.append(made("span", "stalled", "key stalled"), " ", made("span", "accesses to SMEM", "key slow"));
    this.ledger = document.createElement("details");
    this.ledgerBody = document.createElement("tbody");
    const table = document.createElement("table");
    table.append(this.ledgerBody);
    const wide = made("div", undefined, "wide");
    wide.append(table);
    this.ledger.append(made("summary", "ledger"), wide);
    this.ledger.addEventListener("toggle", () => this.refresh().catch(failed));
    const figures = [...this.charts.map((one) => one.figure), this.pressure.figure];
    this.element.append(...figures, keys, this.ledger);
  }

  path(what) {
    return `v1/vms/${encodeURIComponent(this.name)}/${what}`;
  }

  async refresh() {
    if (!this.visible) return;
    const behind = this.points.at(-1)?.number ?? 0;
    let answer = await ask(this.path(`history?after=${behind}`));
    if (this.instance !== null && answer.instance !== this.instance) {
      this.points = [];
      answer = await ask(this.path("history"));
    }
    this.instance = answer.instance;
    // Two answers may cross.
    const newest = this.points.at(-1)?.number ?? 0;
    this.points.push(...answer.points.filter((point) => point.number > newest));
    this.points.splice(0, this.points.length - 720);
    const gapMs = 2.5 * answer.interval_ms + 1000;
    this.charts.forEach((one, index) => {
      one.update(this.points, answer.now_ms, gapMs, this.vm.tiers[index]?.total_bytes ?? 1);
    });
    const most = Math.max(...this.points.map((point) => Math.max(point.stalled_permille ?? 0, point.slow_permille ?? 0)), 0);
    this.pressure.update(this.points, answer.now_ms, gapMs, [20, 100, 250, 500].find((top) => top >= most) ?? 1000);
    if (this.ledger.open) {
      const entries = await ask(this.path("ledger"));
      this.ledgerBody.replaceChildren(...entries.reverse().map((entry) =>
        row(
          [new Date(entry.unix_ms).toLocaleTimeString()],
          [entry.what.replaceAll("_", " ")],
          [entry.tier ?? ""],
          [entry.size_bytes === undefined ? "" : bytes(entry.size_bytes), "n"],
          [[entry.outcome, entry.why, entry.left_out ? `${entry.left_out} left out before` : ""].filter(Boolean).join(", "), "words"],
        ),
      ));
    }
  }
}

const seen = new IntersectionObserver((changes) => {
  for (const change of changes) {
    for (const card of cards.values()) {
      if (card.element === change.target) {
        card.visible = change.isIntersecting;
        card.refresh().catch(failed);
      }
    }
  }
}, { rootMargin: "200px" });

function arrange(vms) {
  known = vms;
  const tiersOf = (vm) => vm.tiers.map((tier) => tier.tier).join();
  const names = new Map(vms.map((vm) => [vm.name, vm]));
  for (const [name, card] of cards) {
    if (!names.has(name) || tiersOf(names.get(name)) !== tiersOf(card.vm)) {
      seen.unobserve(card.element);
      card.element.remove();
      cards.delete(name);
    }
  }
  let next = null;
  for (const vm of [...vms].reverse()) {
    if (!cards.has(vm.name)) cards.set(vm.name, new Card(vm));
    const card = cards.get(vm.name);
    card.vm = vm;
    card.problem.textContent = [problems[vm.stage] ? vm.stage : "", vm.problem ?? ""].filter(Boolean).join(": ");
    if (!card.element.isConnected) {
      at("cards").insertBefore(card.element, next);
      seen.observe(card.element);
    }
    next = card.element;
  }
  const wanted = at("filter").value.toLowerCase();
  const shown = vms.filter((vm) => vm.name.toLowerCase().includes(wanted));
  for (const card of cards.values()) card.element.hidden = !shown.includes(card.vm);
  at("now").tBodies[0].replaceChildren(...shown.flatMap(tierRows));
}

async function refresh() {
  const [vms, policy, decisions] = await Promise.all([ask("v1/vms"), ask("v1/policy"), ask("v1/decisions")]);
  at("login").hidden = true;
  at("board").hidden = false;
  const pool = policy.fmem_pool_bytes ? `, ${bytes(policy.fmem_pool_bytes)} of FMEM for all` : "";
  at("policy").textContent = policy.name === "external"
    ? "Policy external: sizes are what the control interface is told."
    : `Policy ${policy.name}${pool}, a decision each ${policy.interval_ms} ms.`;
  arrange(vms);
  at("decisions").tBodies[0].replaceChildren(...decisions.slice(-DECISIONS).reverse().map((one) =>
    row([new Date(one.unix_ms).toLocaleTimeString()], [one.vm], [one.tier], [bytes(one.size_bytes), "n"], [one.why, "words"]),
  ));
  await Promise.all([...cards.values()].map((card) => card.refresh()));
  missed = 0;
  at("state").className = "";
  at("state").textContent = `${vms.length} ${vms.length === 1 ? "guest" : "guests"}, as of ${new Date().toLocaleTimeString()}`;
}

function failed(error) {
  if (error instanceof Refused) {
    leave("This is not the token.");
    return;
  }
  missed += 1;
  // A daemon that is started anew is back soon.
  if (missed > 1) {
    at("state").className = "bad";
    at("state").textContent = "The daemon does not answer; asking again.";
  }
}

function leave(words) {
  token = null;
  round += 1;
  sessionStorage.removeItem("token");
  for (const card of cards.values()) {
    seen.unobserve(card.element);
    card.element.remove();
  }
  cards.clear();
  stalls.clear();
  for (const table of document.querySelectorAll("tbody")) table.replaceChildren();
  at("board").hidden = true;
  at("login").hidden = false;
  at("state").textContent = "";
  at("refused").textContent = words;
}

async function go() {
  const mine = (round += 1);
  while (mine === round) {
    if (!document.hidden) await refresh().catch(failed);
    await new Promise((wake) => setTimeout(wake, PAUSE_MS));
  }
}

function enter(word) {
  // What no header can carry is no token.
  if (!/^[\x21-\x7e]+$/.test(word)) {
    leave("This is not the token.");
    return;
  }
  token = word;
  sessionStorage.setItem("token", word);
  go();
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const word = at("token").value.trim();
  at("token").value = "";
  enter(word);
});
at("filter").addEventListener("input", () => arrange(known));

// A link may bring the token behind '#', which no browser sends; it does not stay there.
const brought = /^#token=(.+)$/.exec(location.hash);
if (brought) history.replaceState(null, "", location.pathname);
const word = brought ? brought[1] : sessionStorage.getItem("token");
if (word) {
  enter(word);
} else {
  leave("");
}
