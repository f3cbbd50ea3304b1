// Item: its id token by token, how it was routed at each depth, why the id ended, its neighbours and its attributes.

import { h } from "../lib/dom.js";
import { go, href } from "../lib/address.js";
import { ask } from "../lib/api.js";
import { count, counted, fixed, percent } from "../lib/text.js";
import { card, chips, empty, facts, itemList } from "../parts/common.js";
import { bars } from "../parts/charts.js";
import { search } from "../parts/search.js";

const CAUSES = {
  confidence: "The routing was sure enough",
  residual: "The residual is small",
  cap: "It reached the longest length",
  prefix: "Its prefix became unique",
};

/** The view. */
export async function view(params, { signal, info, width }) {
  const id = params.get("id");
  if (!id) return start();
  const request = `v1/items/${encodeURIComponent(id)}`;
  const item = await ask(request, { signal });
  // The tree of codes begins with the tokens before merging.
  const way = item.unmerged ?? item.tokens;
  const room = Math.min(width, 1480);
  const columns = width >= 980 ? 3 : width >= 640 ? 2 : 1;
  const chart = (room - 20 * (columns - 1)) / columns - (width < 700 ? 30 : 42);
  return h(
    "div",
    {},
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h1", {}, item.title),
        h(
          "p",
          { class: "sub" },
          "Item ",
          h("code", {}, item.item),
          item.retired ? h("span", { class: "tag" }, "retired: never recommended") : null,
        ),
      ),
      h(
        "div",
        { class: "head-tools buttons" },
        h("a", { class: "button main", href: href("recommend", { h: id }) }, "Recommend after it"),
        h(
          "a",
          {
            class: "button",
            href: href("catalogue", { prefix: way.slice(0, -1).join(","), of: info.merges ? "codes" : "" }),
          },
          "Show in the tree",
        ),
      ),
    ),
    h(
      "div",
      { class: "stack" },
      idCard(item, request),
      side(columns, [
        ...(item.depths ?? []).map((depth) => routing(depth, chart)),
        attributes(item),
        neighbours(item),
        item.subwords ? merges(item) : null,
      ]),
    ),
  );
}

/** Cards in columns, each below the shortest so far in number of cards. */
function side(columns, cards) {
  const stacks = Array.from({ length: columns }, () => h("div", { class: "stack" }));
  cards.filter(Boolean).forEach((one, n) => stacks[n % columns].append(one));
  return h("div", { class: `grid by-${columns}` }, stacks);
}

function start() {
  const find = search({
    label: "Item",
    placeholder: "Title or id",
    focus: "item",
    choose: ({ item }) => go(href("item", { id: item })),
  });
  return h(
    "div",
    {},
    h("h1", {}, "Item"),
    empty(
      "Which item?",
      h("p", {}, "See how it was routed, why its id ended, and which items share it."),
      h("div", { class: "empty-search" }, find),
    ),
  );
}

/** What each code stands for: the words of the capsule, or its nearest items. */
function meaning(depth) {
  const winner = depth.capsules.find((c) => c.code === depth.code) ?? depth.capsules[0];
  return winner?.words.length ? winner.words.slice(0, 3).join(" · ") : (winner?.nearest[0]?.title ?? "");
}

function idCard(item, request) {
  const steps = item.codes.map((code, n) => {
    const depth = item.depths?.[n],
      shared = item.prefixes[n];
    return h(
      "li",
      { class: "step" },
      h("span", { class: "step-depth" }, `Depth ${n + 1}`),
      h("strong", {}, depth ? meaning(depth) || "no common words" : (shared?.examples[0]?.title ?? item.title)),
      h("span", { class: "sub" }, shared?.items > 1 ? counted(shared.items, "item") : "only this item"),
      h("code", {}, code < 0 ? "absent" : `code ${code}`),
    );
  });
  const why = item.stopped
    ? [
        h("strong", {}, `${CAUSES[item.stopped.cause] ?? item.stopped.cause}. `),
        h("span", { class: "muted" }, `The id has ${counted(item.stopped.depth, "code")}: ${item.stopped.because}.`),
      ]
    : [
        h(
          "span",
          { class: "muted" },
          `The id has ${counted(item.codes.length, "code")}. This tokenizer does not route, so there are no confidences to show.`,
        ),
      ];
  return card(
    "Semantic ID",
    {
      sub: `${counted(item.tokens.length, "token")}: ${item.tokens.join(" ")}`,
      exports: {
        name: `item-${item.item}`,
        request: () => [request],
        rows: () => [
          ["depth", "code", "confidence", "items sharing the prefix"],
          ...item.codes.map((code, n) => [n + 1, code, item.confidences?.[n], item.prefixes[n]?.items]),
        ],
      },
    },
    h("ol", { class: "steps" }, steps),
    h("p", { class: "why" }, why),
  );
}

function routing(depth, width) {
  const rows = depth.capsules.map((c) => ({
    label: c.words.length ? c.words.slice(0, 3).join(" · ") : (c.nearest[0]?.title ?? "no items"),
    value: c.weight,
    text: percent(c.weight),
    note: counted(c.items, "item"),
    kind: c.code === depth.code ? "won" : "",
  }));
  const picture = bars(rows, { width, most: 1, label: `Weights of the strongest capsules at depth ${depth.depth}` });
  const winner = depth.capsules.find((c) => c.code === depth.code);
  return card(
    `Routing at depth ${depth.depth}`,
    {
      exports: {
        name: `routing-${depth.depth}`,
        picture: () => picture,
        rows: () => [
          ["capsule", "weight", "items", "words", "nearest"],
          ...depth.capsules.map((c) => [c.code, c.weight, c.items, c.words, c.nearest.map((n) => n.title).join("; ")]),
        ],
      },
    },
    picture,
    facts([
      ["Confidence", fixed(depth.confidence, 2)],
      ["Residual", `${fixed(depth.residual.soft, 2)} soft, ${fixed(depth.residual.hard, 2)} hard`],
    ]),
    winner?.nearest.length
      ? h("div", { class: "below" }, h("h3", {}, "Most typical of the winner"), itemList(winner.nearest))
      : null,
  );
}

function neighbours(item) {
  const levels = item.prefixes.map((prefix, n) =>
    h(
      "li",
      {},
      h(
        "h3",
        {},
        `Same first ${counted(n + 1, "code")}`,
        h("span", { class: "muted" }, ` · ${counted(prefix.items - 1, "other item")}`),
      ),
      prefix.examples.length
        ? itemList(prefix.examples)
        : h("p", { class: "sub" }, "No other item: the prefix is unique."),
    ),
  );
  return card(
    "Neighbours",
    {
      sub: "Items whose ids begin like this one",
      exports: {
        name: `neighbours-${item.item}`,
        rows: () => [
          ["codes", "items", "item", "title"],
          ...item.prefixes.flatMap((p) => p.examples.map((e) => [p.codes, p.items, e.item, e.title])),
        ],
      },
    },
    h("ol", { class: "levels" }, levels),
  );
}

function merges(item) {
  const rows = item.subwords.map((word) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, word.token)),
      h("td", {}, h("code", {}, word.codes.join(" ") || "–")),
      h("td", {}, word.merged ? "merged" : "single"),
      h("td", { class: "num" }, count(word.items)),
      h("td", { class: "num" }, count(word.taken)),
    ),
  );
  return card(
    "Merges",
    {
      sub:
        item.tokens.length < item.unmerged.length
          ? `${item.unmerged.length} codes became ${counted(item.tokens.length, "token")}`
          : "No two of its codes are merged",
      exports: {
        name: `merges-${item.item}`,
        rows: () => [
          ["token", "codes", "merged", "items", "taken"],
          ...item.subwords.map((w) => [w.token, w.codes, w.merged, w.items, w.taken]),
        ],
      },
    },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Token", "Codes", "Kind"].map((t) => h("th", { scope: "col" }, t)),
          ["Items", "Taken"].map((t) => h("th", { scope: "col", class: "num" }, t)),
        ),
      ),
      h("tbody", {}, rows),
    ),
  );
}

function attributes(item) {
  const pairs = Object.entries(item.attributes).filter(([name]) => name !== "title");
  if (!pairs.length) return null;
  const shown = (value) => (Array.isArray(value) ? chips(value.map(String)) : String(value));
  return card(
    "Attributes",
    { exports: { name: `attributes-${item.item}`, rows: () => [["attribute", "value"], ...pairs] } },
    facts(pairs.map(([name, value]) => [name, shown(value)])),
  );
}
