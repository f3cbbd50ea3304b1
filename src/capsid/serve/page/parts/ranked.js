// Ranked lists: titles with scores, the way through the tree, and what changed against another list.

import { h } from "../lib/dom.js";
import { counted, fixed, percent } from "../lib/text.js";
import { itemLink } from "./common.js";

/** Probability of a log-probability. */
export const chance = (score) => percent(Math.exp(score), score > -2.3 ? 0 : score > -4.6 ? 1 : 2);

/** How an item's rank changed: { text, kind, spoken }. */
export function change(item, n, before) {
  const was = before.findIndex((one) => one.item === item);
  if (was < 0) return { text: "new", kind: "up", spoken: "not in the other list" };
  if (was === n) return { text: "=", kind: "same", spoken: "same rank" };
  const by = Math.abs(was - n);
  return was > n
    ? { text: `▲ ${by}`, kind: "up", spoken: `${by} higher` }
    : { text: `▼ ${by}`, kind: "down", spoken: `${by} lower` };
}

/** The prefixes on the way to a result, without the id itself; each with its most popular item. */
function way(result, steps, force) {
  const prefixes = result.tokens?.slice(0, -1).map((_, d) => result.tokens.slice(0, d + 1)) ?? [];
  const known = prefixes
    .map((tokens, d) => steps[d]?.prefixes.find((p) => p.tokens.join() === tokens.join()))
    .filter(Boolean);
  if (!known.length) return null;
  return h(
    "span",
    { class: "way" },
    "via ",
    known.map((p) => [
      h(
        "button",
        { type: "button", class: "link", title: "Only search below this prefix", on: { click: () => force(p.tokens) } },
        p.example,
      ),
      h("span", { class: "muted" }, ` (${counted(p.items, "item")}) `),
    ]),
  );
}

/** A list. `before` is the list to compare with, `next` the item that was taken. */
export function ranked(items, { steps = [], before, next, chosen, choose, force, label }) {
  const best = Math.max(...items.map((i) => Math.exp(i.score)), 1e-12);
  return h(
    "ol",
    { class: "ranked", "aria-label": label },
    items.map((one, n) => {
      const moved = before ? change(one.item, n, before) : null;
      const rank = choose
        ? h(
            "button",
            {
              type: "button",
              class: "rank",
              "aria-pressed": n === chosen ? "true" : "false",
              "aria-label": `Explain rank ${n + 1}: ${one.title}`,
              "data-focus": `rank-${n}`,
              on: { click: () => choose(n === chosen ? -1 : n) },
            },
            String(n + 1),
          )
        : h("span", { class: "rank" }, String(n + 1));
      return h(
        "li",
        { class: n === chosen ? "chosen" : "" },
        rank,
        h(
          "div",
          { class: "ranked-body" },
          h("div", {}, itemLink(one), one.item === next ? h("span", { class: "tag hit" }, "taken next") : null),
          force ? way(one, steps, force) : null,
          h(
            "span",
            { class: "meter", "aria-hidden": "true" },
            h("i", { style: { width: `${Math.max((100 * Math.exp(one.score)) / best, 0.5)}%` } }),
          ),
        ),
        h(
          "div",
          { class: "score" },
          moved ? h("span", { class: `moved ${moved.kind}`, title: moved.spoken }, moved.text) : null,
          h("strong", {}, chance(one.score)),
          h("span", { class: "muted" }, fixed(one.score, 2)),
        ),
      );
    }),
  );
}
