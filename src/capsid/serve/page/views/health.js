// Health: is the service ready, what does it do this second, which versions does it keep, and how good are the ids.

import { h } from "../lib/dom.js";
import { ask, events } from "../lib/api.js";
import { count, counted, fixed, percent } from "../lib/text.js";
import { card, empty, facts, failed, head } from "../parts/common.js";
import { bars, columns, line } from "../parts/charts.js";

const SECONDS = 60;
const CAUSES = {
  confidence: "confidence reached",
  residual: "little residual left",
  cap: "longest length",
  prefix: "prefix unique",
};

/** The view. The report of a large catalogue takes a while to make: its cards come when it is there. */
export async function view(params, { signal, info, width }) {
  const across = width >= 980 ? 3 : width >= 640 ? 2 : 1;
  const room = (Math.min(width, 1424) - 20 * (across - 1)) / across - (width < 700 ? 30 : 42);
  const waiting = card("Quality of the ids", {}, empty("The report is being made.", h("p", {}, "Once per version.")));
  const grid = h("div", { class: `grid by-${across}` }, versions(info), waiting);
  ask("v1/report", { signal })
    .then((report) => waiting.replaceWith(...reported(report, room)))
    .catch((error) => !signal.aborted && waiting.replaceChildren(failed(error)));
  const sub = `${info.recipe} on ${info.dataset}: ${info.about}.`;
  return h("div", {}, head("Health", sub), h("div", { class: "stack" }, live(signal, width), grid));
}

const reported = (report, room) => [
  quality(report),
  ...[lengths, stops, winners, use].map((part) => part(report, room)),
];

function tile(name) {
  const value = h("strong", {}, "–"),
    sub = h("span", { class: "sub" });
  return { node: h("div", { class: "tile" }, h("span", { class: "sub" }, name), value, sub), value, sub };
}

const ms = (seconds) => (seconds === null ? "–" : `${fixed(1000 * seconds, seconds < 0.01 ? 1 : 0)} ms`);

/** What each tile says of this second: its value and the line below it. */
const TILES = {
  Service: (now) => [now.ready ? "ready" : "not ready", `version ${now.version}`],
  "Requests per second": (now, before) => [
    count(before ? Math.max(now.requests - before.requests, 0) : 0),
    `${count(now.requests)} since the start`,
  ],
  "Median time": (now) => [ms(now.p50), "latest 1,000 requests"],
  "99th percentile": (now) => [ms(now.p99), "latest 1,000 requests"],
  Waiting: (now) => [count(now.queue), `${counted(now.refused, "request")} refused`],
  "Queries per search": (now, before) => {
    const since = before && now.batches > before.batches ? before : { searched: 0, batches: 0 };
    const mean = (now.searched - since.searched) / (now.batches - since.batches);
    return [now.batches ? fixed(mean, 1) : "–", `${counted(now.searched, "query", "queries")} in all`];
  },
};

function live(signal, width) {
  const tiles = Object.entries(TILES).map(([name, tell]) => ({ ...tile(name), tell }));
  const spark = h("div", { class: "spark" });
  const note = h("p", { class: "sub", hidden: true });
  const seen = [];
  const show = (now) => {
    for (const { value, sub, tell } of tiles) [value.textContent, sub.textContent] = tell(now, seen.at(-1));
    seen.push(now);
    if (seen.length > SECONDS + 1) seen.shift();
    const rates = seen.slice(1).map((one, n) => Math.max(one.requests - seen[n].requests, 0));
    const label = `Requests per second over the last ${rates.length} seconds`;
    spark.replaceChildren(line(rates, { width: Math.min(width, 1480) - (width < 700 ? 30 : 42), label, most: 5 }));
  };
  follow(show, signal).catch((error) => {
    if (signal.aborted) return;
    note.hidden = false;
    note.textContent = `Live numbers stopped: ${error.message}.`;
    tiles[0].value.textContent = "not reached";
  });
  const names = ["requests", "searched", "batches", "refused", "queue", "p50", "p99", "version"];
  const rows = () => [["second", ...names], ...seen.map((one, n) => [n, ...names.map((name) => one[name])])];
  const exports = { name: "live", request: () => ["v1/events"], rows, picture: () => spark.querySelector("svg") };
  const all = h(
    "div",
    { class: "tiles" },
    tiles.map((t) => t.node),
  );
  return card("Now", { sub: "This process, once a second", exports }, all, spark, note);
}

async function follow(show, signal) {
  for await (const now of events("v1/events", signal)) show(now);
}

function versions(info) {
  return card(
    "Catalogue",
    {
      exports: {
        name: "info",
        request: () => ["v1/info"],
        rows: () =>
          Object.entries(info).map(([k, v]) => [k, typeof v === "object" && !Array.isArray(v) ? JSON.stringify(v) : v]),
      },
    },
    facts([
      ["Run", info.run],
      ["Version", count(info.version)],
      ["Kept versions", info.versions.length ? info.versions.join(", ") : "none yet"],
      ["Items", count(info.items)],
      ["Retired", count(info.retired)],
      ["Tokens", count(info.vocabulary)],
      ["Merges", count(info.merges)],
      ["Package", info.package],
    ]),
  );
}

function quality(report) {
  const pairs = [
    ["Codes in use", percent(report.utilization, 1), "codes that at least one item has"],
    ["Collisions", percent(report.collision_rate, 2), "items whose codes another item has"],
    ["Sharing an id", counted(report.items_sharing_an_id, "item"), null],
    ["Inequality", fixed(report.gini, 2), "Gini coefficient of code usage"],
    ["Similarity", fixed(report.intra_code_similarity, 2), "mean cosine of items with the same first code"],
    [
      "Mean length",
      `${fixed(report.mean_length, 2)} codes`,
      report.mean_tokens === undefined ? null : `${fixed(report.mean_tokens, 2)} tokens after merging`,
    ],
  ];
  return card(
    "Quality of the ids",
    {
      exports: {
        name: "report",
        request: () => ["v1/report"],
        rows: () => [["measure", "value"], ...Object.entries(report).filter(([, v]) => typeof v === "number")],
      },
    },
    facts(pairs.map(([name, value, sub]) => [name, value, sub ? h("span", { class: "sub block" }, sub) : null])),
  );
}

function picture(title, name, rows, draw, sub) {
  const drawn = rows.length ? draw(rows) : null;
  return card(
    title,
    {
      sub,
      exports: drawn
        ? {
            name,
            request: () => ["v1/report"],
            picture: () => drawn,
            rows: () => [[name, "value"], ...rows.map((r) => [r.label, r.value])],
          }
        : undefined,
    },
    drawn ?? empty("This tokenizer has no such figures."),
  );
}

function lengths(report, width) {
  const rows = Object.entries(report.length_histogram ?? {}).map(([length, n]) => ({
    label: length,
    value: n,
    text: count(n),
  }));
  return picture(
    "Lengths",
    "codes",
    rows,
    (r) => columns(r, { width, label: "Items by number of codes" }),
    "Items by number of codes",
  );
}

function stops(report, width) {
  const rows = Object.entries(report.stop_causes ?? {})
    .filter(([, share]) => share !== null)
    .map(([cause, share]) => ({ label: CAUSES[cause] ?? cause, value: share, text: percent(share, 1) }));
  return picture(
    "Why ids end",
    "cause",
    rows,
    (r) => bars(r, { width, most: 1, label: "Share of items by cause" }),
    "Share of items",
  );
}

function winners(report, width) {
  const rows = (report.winner_mass ?? []).map((mass, n) => ({
    label: `Depth ${n + 1}`,
    value: mass,
    text: fixed(mass, 2),
  }));
  return picture(
    "Routing",
    "winner",
    rows,
    (r) => bars(r, { width, most: 1, label: "Mean weight of the winning capsule by depth" }),
    "Mean weight of the winning capsule",
  );
}

function use(report, width) {
  const rows = (report.utilization_by_depth ?? []).map((share, n) => ({
    label: `Depth ${n + 1}`,
    value: share,
    text: percent(share, 1),
    note: report.gini_by_depth ? `Gini ${fixed(report.gini_by_depth[n], 2)}` : "",
  }));
  return picture(
    "Use of codes",
    "depth",
    rows,
    (r) => bars(r, { width, most: 1, label: "Share of codes in use by depth" }),
    "Share of codes in use",
  );
}
