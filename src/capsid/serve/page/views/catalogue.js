// Catalogue: the tree of ids, zoomed to a prefix, with what each prefix means and a page of its children.

import { h } from "../lib/dom.js";
import { go, href, tokensOf } from "../lib/address.js";
import { ask, path } from "../lib/api.js";
import { count, counted, fixed, nameOf } from "../lib/text.js";
import { button, card, chips, choice, facts, itemList } from "../parts/common.js";
import { icicle } from "../parts/icicle.js";

const COLOURS = { popularity: "popularity", similarity: "similarity", size: "size" };
const ENDS = { popularity: ["rarely taken", "often taken"], similarity: ["unlike", "alike"], size: ["few items", "many"] };

/** The view. */
export async function view(params, { signal, info, width }) {
  const narrow = width < 700;
  const state = {
    prefix: params.get("prefix") ?? "",
    from: Math.max(Number.parseInt(params.get("from") ?? "0", 10) || 0, 0),
    of: params.get("of") ?? (info.merges ? "codes" : "tokens"),
    colour: params.get("colour") ?? "popularity",
  };
  const rows = narrow ? 14 : 12, levels = narrow ? 1 : 2;
  const address = (change) => {
    const next = { ...state, ...change };
    return href("catalogue", { prefix: next.prefix, from: next.from || "", of: params.has("of") || change.of ? next.of : "",
      colour: next.colour === "popularity" ? "" : next.colour });
  };
  const request = path("v1/tree", { prefix: state.prefix, limit: rows, levels, offset: state.from || undefined, of: state.of });
  const tree = await ask(request, { signal });

  const panel = h("aside", { class: "panel", "aria-label": "Prefix", "aria-live": "off" });
  const preview = (node) => panel.replaceChildren(about(node, tree, state, address));
  const out = () => { if (state.prefix) go(address({ prefix: tokensOf(state.prefix).slice(0, -1).join(","), from: 0 })); };
  const choose = (box) => {
    if (box.rest && box.level === 1) go(address({ from: box.back ? Math.max(state.from - rows, 0) : state.from + rows }));
    else if (box.rest) go(address({ prefix: box.parent.node.prefix.join(","), from: 0 }));
    else if (!box.level) out();
    else if (box.node.leaf && box.node.items === 1) go(href("item", { id: box.node.examples[0].item }));
    else go(address({ prefix: box.node.prefix.join(","), from: 0 }));
  };
  const panelled = width > 860;
  const drawn = Math.max(width - (panelled ? 304 + 20 : 0) - (narrow ? 30 : 42), 240);
  const lines = tree.children.length + (state.from ? 1 : 0) + (state.from + tree.children.length < tree.total_children ? 1 : 0);
  const height = Math.max(lines * (narrow ? 44 : 58), 120);
  const picture = tree.children.length
    ? icicle(tree, { width: drawn, height, levels, offset: state.from, colour: state.colour, choose, preview, out })
    : null;
  preview(tree);
  const merged = info.merges ? choice("Ids", { codes: "codes", tokens: "merged tokens" }, state.of, (of) => go(address({ of, prefix: "", from: 0 }))) : null;
  const exports = {
    name: "id-tree", request: () => [request], picture: picture ? () => picture : undefined,
    rows: () => [["prefix", "codes", "items", "interactions", "similarity", "words", "example"],
      ...flat(tree).map((n) => [n.prefix, n.codes, n.items, n.taken, n.similarity, n.words, n.examples[0]?.title])],
  };
  const title = state.prefix ? nameOf(tree) : "Catalogue";
  const legend = h("p", { class: "legend" }, ENDS[state.colour]?.[0], h("i", {}), ENDS[state.colour]?.[1]);
  return h("div", {},
    h("div", { class: "head" }, h("div", {}, h("h1", {}, title),
      h("p", { class: "sub" }, "Items whose ids share a prefix are grouped together. Click a box to zoom in.")),
    h("div", { class: "head-tools" }, merged, choice("Shade", COLOURS, state.colour, (colour) => go(address({ colour }))))),
    h("div", { class: "split" },
      card("Tree of ids", { sub: range(tree, state), exports }, crumbs(tree, address), picture ?? bucket(tree), legend),
      panel));
}

function range(tree, { from }) {
  if (!tree.children.length) return counted(tree.items, "item");
  const last = from + tree.children.length;
  const all = counted(tree.total_children, "prefix", "prefixes");
  return last - from === tree.total_children ? `${all}, ${counted(tree.items, "item")}`
    : `${count(from + 1)} to ${count(last)} of ${all}, largest first; ${counted(tree.items, "item")} in all`;
}

/** An id that several items share has no children. */
function bucket(tree) {
  return h("div", {}, h("p", { class: "sub" }, tree.items === 1 ? "One item has this id:" : "These items share one id:"), itemList(tree.examples));
}

const flat = (tree) => tree.children.flatMap((node) => [node, ...(node.children ? flat(node) : [])]);

function crumbs(tree, address) {
  const steps = [...tree.path, ...(tree.prefix.length ? [tree] : [])];
  const link = (node, n) => n === steps.length - 1
    ? h("li", {}, h("span", { "aria-current": "location" }, nameOf(node)))
    : h("li", {}, h("a", { href: address({ prefix: node.prefix.join(","), from: 0 }) }, nameOf(node)));
  if (!steps.length) return null;
  return h("nav", { "aria-label": "Prefixes" }, h("ol", { class: "crumbs" },
    h("li", {}, h("a", { href: address({ prefix: "", from: 0 }) }, "All items")), steps.map(link)));
}

/** The panel: what a prefix means. */
function about(node, tree, state, address) {
  const whole = !node.prefix.length;
  const actions = [];
  if (!whole && node !== tree && !node.leaf) actions.push(h("a", { class: "button", href: address({ prefix: node.prefix.join(","), from: 0 }) }, "Zoom in"));
  if (node === tree && !whole) actions.push(button("Zoom out", () => go(address({ prefix: node.prefix.slice(0, -1).join(","), from: 0 }))));
  if (!whole && state.of === "tokens") actions.push(h("a", { class: "button", href: href("recommend", { prefix: node.prefix.join(",") }) }, "Recommend from here"));
  return card(whole ? "All items" : nameOf(node), {},
    h("div", { class: "stack" },
      node.words.length && !whole ? chips(node.words) : null,
      facts([
        ["Items", count(node.items)],
        ["Taken", `${count(node.taken)} times`, h("br"), h("span", { class: "sub" }, `${fixed(node.taken / Math.max(node.items, 1), 1)} per item`)],
        node.similarity === null ? null : ["Similarity", fixed(node.similarity, 2)],
        whole ? null : ["Codes", h("code", {}, node.codes.join(" ") || "–")],
      ]),
      h("div", {}, h("h3", {}, "Most popular"), itemList(node.examples)),
      actions.length ? h("div", { class: "buttons" }, actions) : null));
}

