// Compare: what several runs recommend after one history, and their metrics with intervals.

import { h } from "../lib/dom.js";
import { asked, go, href } from "../lib/address.js";
import { ask } from "../lib/api.js";
import { count, counted, fixed, signed } from "../lib/text.js";
import { card, choice, empty, head, itemLink, scroller } from "../parts/common.js";
import { intervals } from "../parts/charts.js";
import { historyCard } from "../parts/history.js";
import { chance } from "../parts/ranked.js";

/** The view. */
export async function view(params, { signal, info, width }) {
  const state = { ...asked(params), metric: params.get("metric") ?? "", how: params.get("how") ?? "" };
  const change = (part) => {
    const next = { ...state, ...part };
    go(href("compare", { ...next, k: next.k === 10 ? "" : next.k }));
  };
  const body = { history: state.h, k: state.k, filter_history: !state.repeat };
  const [answer, { runs }] = await Promise.all([ask("v1/compare", { body, signal }), ask("v1/runs", { signal })]);
  const room = width > 900 ? width - 340 : width;
  const alone =
    runs.length < 2
      ? card(
          "Other runs",
          {},
          empty(
            "Only one run is served.",
            h("p", {}, "Name others when you start the service, and they appear here side by side:"),
            h("code", {}, `capsid serve ${info.run} --compare OTHER-RUN`),
          ),
        )
      : null;
  return h(
    "div",
    {},
    head("Compare", `${counted(runs.length, "run")} on one history. Point at an item to see where else it is.`),
    h(
      "div",
      { class: "stack" },
      h(
        "div",
        { class: "split left" },
        historyCard({ state, shown: answer.history, info, change, curlOf: () => ["v1/compare", body] }),
        h("div", { class: "stack" }, metrics(runs, state, change, room), alone),
      ),
      lists(answer, state, body),
    ),
  );
}

/** How many of a list are also in the first one. */
const common = (runs, n) => runs[n].items.filter((i) => runs[0].items.some((j) => j.item === i.item)).length;

function lists(answer, state, body) {
  const { runs } = answer;
  const table = h(
    "div",
    { class: "columns", style: { "--runs": runs.length } },
    runs.map((run, n) => column(run, n, runs, state)),
  );
  table.addEventListener("pointerover", (event) => mark(table, event));
  table.addEventListener("focusin", (event) => mark(table, event));
  return card(
    "Lists",
    {
      sub: "A bar at the left: the item is in every list.",
      exports: {
        name: "compare",
        request: () => ["v1/compare", body],
        rows: () => [
          ["run", "rank", "item", "title", "score"],
          ...runs.flatMap((run) => run.items.map((i, n) => [run.run, n + 1, i.item, i.title, i.score])),
        ],
      },
    },
    scroller("Lists of all runs", table),
  );
}

function mark(table, event) {
  const item = event.target.closest("[data-item]")?.dataset.item;
  for (const row of table.querySelectorAll("[data-item]")) row.classList.toggle("lit", row.dataset.item === item);
}

function column(run, n, runs, state) {
  const everywhere = (item) => runs.length > 1 && runs.every((r) => r.items.some((i) => i.item === item));
  const sub = n ? `${count(common(runs, n))} of ${count(run.items.length)} as in ${runs[0].run}` : "the served run";
  const body = run.problem
    ? h("p", { class: "sub" }, run.problem)
    : h(
        "ol",
        { class: "compared" },
        run.items.map((one, rank) =>
          h(
            "li",
            { "data-item": one.item, class: everywhere(one.item) ? "all" : "" },
            h("span", { class: "muted num" }, String(rank + 1)),
            h("span", {}, itemLink(one), one.item === state.t ? h("span", { class: "tag hit" }, "taken next") : null),
            h("span", { class: "muted num" }, chance(one.score)),
          ),
        ),
      );
  return h(
    "section",
    { "aria-label": run.run },
    h(
      "h3",
      {},
      run.run,
      h(
        "span",
        { class: "sub block" },
        run.personal || run.problem ? sub : "popular items: nothing known in the history",
      ),
    ),
    body,
  );
}

function metrics(runs, state, change, room) {
  const known = runs.filter((run) => run.metrics.plain || run.metrics.filtered);
  if (!known.length) {
    return card(
      "Metrics",
      {},
      empty(
        "No run has been evaluated.",
        h("p", {}, "Evaluate the runs, and their metrics appear here:"),
        h("code", {}, "capsid evaluate RUN"),
      ),
    );
  }
  const hows = { plain: "all items", filtered: "history filtered" };
  const how = state.how in hows ? state.how : known.some((run) => run.metrics.filtered) ? "filtered" : "plain";
  const names = [...new Set(known.flatMap((run) => Object.keys(run.metrics[how] ?? {})))].filter(
    (name) => !name.includes(":"),
  );
  const metric = names.includes(state.metric) ? state.metric : names.includes("recall@10") ? "recall@10" : names[0];
  const rows = known
    .filter((run) => run.metrics[how]?.[metric])
    .map((run) => {
      const { mean, error } = run.metrics[how][metric];
      return {
        label: run.run,
        mean,
        error,
        kind: run.served ? "won" : "",
        text: `${fixed(mean, 4)} ± ${fixed(1.96 * error, 4)}`,
      };
    });
  const picture = intervals(rows, { width: room - 42, label: `${metric} of every run with 95 % intervals` });
  const missing = runs.length - rows.length;
  return card(
    "Metrics",
    {
      sub: `Mean over test users with 95 % intervals${missing ? `; ${counted(missing, "run")} not evaluated this way` : ""}`,
      exports: {
        name: "metrics",
        request: () => ["v1/runs"],
        picture: () => picture,
        rows: () => [
          ["run", "protocol", "metric", "mean", "standard error", "difference", "low", "high", "p"],
          ...known.flatMap((run) =>
            Object.keys(hows).flatMap((one) =>
              Object.entries(run.metrics[one] ?? {}).map(([name, m]) => {
                const d = run.differences[one]?.[name];
                return [run.run, one, name, m.mean, m.error, d?.difference, d?.low, d?.high, d?.p];
              }),
            ),
          ),
        ],
      },
    },
    h(
      "div",
      { class: "pickers" },
      choice("Metric", Object.fromEntries(names.map((name) => [name, name])), metric, (name) =>
        change({ metric: name }),
      ),
      choice("Ranked", hows, how, (name) => change({ how: name })),
    ),
    picture,
    differences(known, how, metric, runs[0]),
  );
}

function differences(runs, how, metric, served) {
  const rows = runs
    .filter((run) => !run.served && run.differences[how]?.[metric])
    .map((run) => {
      const { difference, low, high, p } = run.differences[how][metric];
      return h(
        "tr",
        {},
        h("td", {}, run.run),
        h("td", { class: "num" }, signed(difference, 4)),
        h("td", { class: "num" }, `${signed(low, 4)} to ${signed(high, 4)}`),
        h("td", { class: "num" }, p < 0.001 ? "< 0.001" : fixed(p, 3)),
        h("td", {}, low > 0 ? "better" : high < 0 ? "worse" : "no clear difference"),
      );
    });
  if (!rows.length) return null;
  return h(
    "div",
    { class: "below" },
    h("h3", {}, `Difference to ${served.run}, the same users`),
    scroller(
      "Differences",
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "Run"),
            ["Difference", "95 % interval", "p"].map((t) => h("th", { scope: "col", class: "num" }, t)),
            h("th", { scope: "col" }, "Verdict"),
          ),
        ),
        h("tbody", {}, rows),
      ),
    ),
  );
}
