// Catalogue: the tree of ids, zoomed to a prefix, with what each prefix means and a page of its children.

import { h } from "../lib/dom.js";
import { go, href, tokensOf } from "../lib/address.js";
import { ask, path } from "../lib/api.js";
import { count, counted, fixed, nameOf } from "../lib/text.js";
import { button, card, chips, choice, facts, head, itemList } from "../parts/common.js";
import { icicle } from "../parts/icicle.js";

const COLOURS = { popularity: "popularity", similarity: "similarity", size: "size" };
const ENDS = {
  popularity: ["rarely taken", "often taken"],
  similarity: ["unlike", "alike"],
  size: ["few items", "many"],
};

/** The view. */
export async function view(params, { signal, info, width }) {
  const narrow = width < 700;
  const page = { rows: narrow ? 14 : 12, levels: narrow ? 1 : 2 };
  const state = {
    prefix: params.get("prefix") ?? "",
    from: Math.max(Number.parseInt(params.get("from") ?? "0", 10) || 0, 0),
    of: params.get("of") ?? (info.merges ? "codes" : "tokens"),
    colour: params.get("colour") ?? "popularity",
  };
  const address = (change) => {
    const { prefix, from, of, colour } = { ...state, ...change };
    const said = params.has("of") || change.of ? of : "";
    return href("catalogue", { prefix, from: from || "", of: said, colour: colour === "popularity" ? "" : colour });
  };
  const { prefix, from, of } = state;
  const request = path("v1/tree", { prefix, limit: page.rows, levels: page.levels, offset: from || undefined, of });
  const tree = await ask(request, { signal });

  const panel = h("aside", { class: "panel", "aria-label": "Prefix" });
  const preview = (node) => panel.replaceChildren(about(node, tree, state, address));
  preview(tree);
  const picture = tree.children.length ? drawn(tree, { state, page, width, narrow, address, preview }) : null;
  const sub = "Items whose ids share a prefix are grouped together. Click a box to zoom in.";
  return h(
    "div",
    {},
    head(prefix ? nameOf(tree) : "Catalogue", sub, ...choices(info, state, address)),
    h("div", { class: "split" }, treeCard(tree, { state, address, request, picture }), panel),
  );
}

/** What can be chosen above the tree. */
function choices(info, state, address) {
  const merged = (of) => go(address({ of, prefix: "", from: 0 }));
  return [
    info.merges ? choice("Ids", { codes: "codes", tokens: "merged tokens" }, state.of, merged) : null,
    choice("Shade", COLOURS, state.colour, (colour) => go(address({ colour }))),
  ];
}

function treeCard(tree, { state, address, request, picture }) {
  const exports = {
    name: "id-tree",
    request: () => [request],
    picture: picture ? () => picture : undefined,
    rows: () => [
      ["prefix", "codes", "items", "interactions", "similarity", "words", "example"],
      ...flat(tree).map((n) => [n.prefix, n.codes, n.items, n.taken, n.similarity, n.words, n.examples[0]?.title]),
    ],
  };
  const [low, high] = ENDS[state.colour] ?? ENDS.popularity;
  const legend = picture ? h("p", { class: "legend" }, low, h("i", {}), high) : null;
  return card(
    "Tree of ids",
    { sub: range(tree, state), exports },
    crumbs(tree, address),
    picture ?? bucket(tree),
    legend,
  );
}

/** The tree as a picture that leads to other addresses. */
function drawn(tree, { state, page, width, narrow, address, preview }) {
  const to = (prefix) => go(address({ prefix: prefix.join(","), from: 0 }));
  const out = () => state.prefix && to(tokensOf(state.prefix).slice(0, -1));
  const choose = ({ rest, back, level, node, parent }) => {
    if (rest && level > 1) to(parent.node.prefix);
    else if (rest) go(address({ from: Math.max(state.from + (back ? -page.rows : page.rows), 0) }));
    else if (!level) out();
    else if (node.leaf && node.items === 1) go(href("item", { id: node.examples[0].item }));
    else to(node.prefix);
  };
  // Beside the panel where it stands at the right, inside the card's padding.
  const inner = Math.max(width - (width > 860 ? 304 + 20 : 0) - (narrow ? 30 : 42), 240);
  const after = state.from + tree.children.length < tree.total_children;
  const lines = tree.children.length + (state.from ? 1 : 0) + (after ? 1 : 0);
  const height = Math.max(lines * (narrow ? 44 : 58), 120);
  const { colour, from } = state;
  return icicle(tree, { width: inner, height, levels: page.levels, offset: from, colour, choose, preview, out });
}

function range(tree, { from }) {
  if (!tree.children.length) return counted(tree.items, "item");
  const last = from + tree.children.length;
  const all = counted(tree.total_children, "prefix", "prefixes");
  return last - from === tree.total_children
    ? `${all}, ${counted(tree.items, "item")}`
    : `${count(from + 1)} to ${count(last)} of ${all}, largest first; ${counted(tree.items, "item")} in all`;
}

/** An id that several items share has no children. */
function bucket(tree) {
  const more = tree.items > tree.examples.length ? `; the most popular of ${count(tree.items)}` : "";
  const sub = tree.items === 1 ? "One item has this id:" : `These items share one id${more}:`;
  return h("div", {}, h("p", { class: "sub" }, sub), itemList(tree.examples));
}

const flat = (tree) => tree.children.flatMap((node) => [node, ...(node.children ? flat(node) : [])]);

function crumbs(tree, address) {
  const steps = [...tree.path, ...(tree.prefix.length ? [tree] : [])];
  const link = (node, n) =>
    n === steps.length - 1
      ? h("li", {}, h("span", { "aria-current": "location" }, nameOf(node)))
      : h("li", {}, h("a", { href: address({ prefix: node.prefix.join(","), from: 0 }) }, nameOf(node)));
  if (!steps.length) return null;
  return h(
    "nav",
    { "aria-label": "Prefixes" },
    h(
      "ol",
      { class: "crumbs" },
      h("li", {}, h("a", { href: address({ prefix: "", from: 0 }) }, "All items")),
      steps.map(link),
    ),
  );
}

/** The panel: what a prefix means. */
function about(node, tree, state, address) {
  const whole = !node.prefix.length;
  const actions = [];
  if (!whole && node !== tree && !node.leaf)
    actions.push(h("a", { class: "button", href: address({ prefix: node.prefix.join(","), from: 0 }) }, "Zoom in"));
  if (node === tree && !whole)
    actions.push(button("Zoom out", () => go(address({ prefix: node.prefix.slice(0, -1).join(","), from: 0 }))));
  if (!whole && state.of === "tokens")
    actions.push(
      h("a", { class: "button", href: href("recommend", { prefix: node.prefix.join(",") }) }, "Recommend from here"),
    );
  return card(
    whole ? "All items" : nameOf(node),
    {},
    h(
      "div",
      { class: "stack" },
      node.words.length && !whole ? chips(node.words) : null,
      facts([
        ["Items", count(node.items)],
        [
          "Taken",
          `${count(node.taken)} times`,
          h("br"),
          h("span", { class: "sub" }, `${fixed(node.taken / Math.max(node.items, 1), 1)} per item`),
        ],
        node.similarity === null ? null : ["Similarity", fixed(node.similarity, 2)],
        whole ? null : ["Codes", h("code", {}, node.codes.join(" ") || "–")],
      ]),
      h("div", {}, h("h3", {}, "Most popular"), itemList(node.examples)),
      actions.length ? h("div", { class: "buttons" }, actions) : null,
    ),
  );
}
