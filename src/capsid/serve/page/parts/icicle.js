// A part of the id tree as columns of boxes: a level per column, height by items, every label inside its box.

import { s } from "../lib/dom.js";
import { count, counted, fitted, font, nameOf, widthOf } from "../lib/text.js";

const LEAST = 20,
  PAD = 8;

/** Heights that add up to `total`: each at least `least`, what is left in proportion to the sizes. */
export function heights(sizes, total, least) {
  const sum = sizes.reduce((a, b) => a + b, 0) || 1;
  const spare = Math.max(total - least * sizes.length, 0);
  return sizes.map((size) => least + (spare * size) / sum);
}

/** What a box's shade means, from 0 to 1; null where it is unknown. */
const SHADES = {
  popularity: (node) => Math.log1p(node.taken / Math.max(node.items, 1)),
  similarity: (node) => node.similarity,
  size: (node) => Math.log1p(node.items),
};

function everyNode(node) {
  return [node, ...(node.children ?? []).flatMap(everyNode)];
}

/** A function from a node to its shade. */
export function shading(tree, colour) {
  const value = SHADES[colour] ?? SHADES.popularity;
  const seen = tree.children
    .flatMap(everyNode)
    .map(value)
    .filter((v) => v !== null && v !== undefined);
  const low = Math.min(...seen),
    high = Math.max(...seen);
  return (node) => {
    const v = value(node);
    if (v === null || v === undefined || !(high > low)) return 0.15;
    return Math.min(Math.max((v - low) / (high - low), 0), 1);
  };
}

/** Boxes of all levels: { node, x, y, width, height, level, parent }; `rest` boxes stand for children not listed. */
export function layout(tree, { width, height, levels, offset }) {
  // There is no room for the prefix itself on a phone; the line above the picture names it.
  const root = width < 480 ? 0 : Math.min(120, width * 0.16);
  const column = (width - root) / levels;
  const out = [{ node: tree, x: 0, y: 0, width: root, height, level: 0, parent: null }];
  const place = (parent, children, total, level, least, skipped) => {
    if (level > levels) return;
    let shown = children.slice();
    const entries = () => {
      const after = total - skipped - shown.length;
      return [
        ...(skipped ? [{ rest: skipped, back: true }] : []),
        ...shown.map((node) => ({ node })),
        ...(after > 0 ? [{ rest: after }] : []),
      ];
    };
    while (shown.length > 1 && entries().length * least > parent.height + 0.5) shown.pop();
    const list = entries();
    if (!list.length || list.length * least > parent.height + 0.5) return;
    // The rest counts as one line, however many there are: the page below shows them.
    const sizes = list.map(({ node }) => (node ? node.items : 0));
    const tall = heights(sizes, parent.height, least);
    let y = parent.y;
    list.forEach((entry, n) => {
      const box = { ...entry, x: root + (level - 1) * column, y, width: column, height: tall[n], level, parent };
      out.push(box);
      y += tall[n];
      if (entry.node?.children?.length) place(box, entry.node.children, entry.node.total_children, level + 1, LEAST, 0);
    });
  };
  place(out[0], tree.children, tree.total_children, 1, LEAST, offset);
  return out;
}

function labelled(box, sizes) {
  const inner = box.width - 2 * PAD;
  const lines = box.height >= 40 ? 2 : 1;
  const middle = box.y + box.height / 2 + (lines === 2 ? -4 : 4.5);
  if (box.rest) {
    const text = box.back
      ? `↑ ${counted(box.rest, "larger prefix", "larger prefixes")}`
      : `${counted(box.rest, "more prefix", "more prefixes")} ↓`;
    return [
      s("text", { class: "small", x: box.x + PAD, y: box.y + box.height / 2 + 4 }, fitted(text, inner, sizes.small)),
    ];
  }
  const number = count(box.node.items);
  const room = inner - widthOf(number, sizes.small) - 10;
  const name = box.level ? nameOf(box.node) || "(no title)" : "All items";
  const out = [
    s(
      "text",
      { class: box.level < 2 ? "bold" : "", x: box.x + PAD, y: middle },
      fitted(
        box.level || !box.node.prefix.length ? name : nameOf(box.node),
        box.level ? room : inner,
        box.level < 2 ? sizes.bold : sizes.plain,
      ),
    ),
  ];
  if (box.level) out.push(s("text", { class: "small end", x: box.x + box.width - PAD, y: middle }, number));
  if (lines === 2) {
    const below = box.level
      ? box.node.words.length
        ? (box.node.examples[0]?.title ?? "")
        : (box.node.examples[1]?.title ?? "")
      : counted(box.node.items, "item");
    out.push(s("text", { class: "small", x: box.x + PAD, y: middle + 17 }, fitted(below, inner, sizes.small)));
  }
  return out;
}

/** What a screen reader says of a box. */
function spoken(box) {
  if (box.rest) return box.back ? "larger prefixes" : counted(box.rest, "more prefix", "more prefixes");
  const { words, examples, items, prefix } = box.node;
  const name = prefix.length
    ? [words.slice(0, 3).join(", "), examples[0]?.title].filter(Boolean).join("; ")
    : "All items";
  return `${name}: ${counted(items, "item")}`;
}

/** The picture. `choose(box)` is called by click and Enter, `preview(node)` when a box is pointed at or focused. */
export function icicle(tree, { width, height, levels, offset, colour, choose, preview, out }) {
  const boxes = layout(tree, { width, height, levels, offset }).filter((box) => box.width > 0);
  const shade = shading(tree, colour);
  const sizes = { small: font(12), plain: font(13), bold: font(13, 600) };
  const cells = boxes.map((box, n) => {
    const amount = box.rest ? 0 : box.level ? 8 + 50 * shade(box.node) : 14;
    const fill = box.rest ? "var(--sunken)" : `color-mix(in srgb, var(--tint) ${amount.toFixed(0)}%, var(--surface))`;
    const key = box.rest ? `rest-${box.level}-${n}` : `cell-${box.node.prefix.join("-")}`;
    return s(
      "g",
      {
        class: "cell",
        role: "treeitem",
        tabindex: n ? -1 : 0,
        "aria-level": box.level + 1,
        "aria-label": spoken(box),
        "aria-selected": "false",
        "data-focus": key,
        on: {
          click: () => choose(box),
          pointerenter: () => box.node && preview(box.node),
          focus: () => box.node && preview(box.node),
        },
      },
      s("rect", {
        x: box.x,
        y: box.y,
        width: Math.max(box.width, 1),
        height: Math.max(box.height, 1),
        rx: 4,
        style: { fill },
      }),
      labelled(box, sizes),
    );
  });
  const picture = s(
    "svg",
    {
      class: "picture icicle",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "tree",
      "aria-label": "Tree of ids",
      on: { keydown: (event) => walk(event, boxes, cells, choose, out) },
    },
    cells,
  );
  return picture;
}

/** Arrow keys move between boxes; one of them is in the tab order. */
function walk(event, boxes, cells, choose, out) {
  const at = cells.indexOf(document.activeElement);
  if (at < 0) return;
  const box = boxes[at];
  const beside = (step) => {
    const row = boxes.filter((b) => b.level === box.level);
    return boxes.indexOf(row[row.indexOf(box) + step]);
  };
  const to = {
    ArrowLeft: () => boxes.indexOf(box.parent),
    ArrowRight: () => boxes.findIndex((b) => b.parent === box),
    ArrowUp: () => beside(-1),
    ArrowDown: () => beside(1),
    Home: () => 0,
  }[event.key];
  if (event.key === "Enter" || event.key === " ") choose(box);
  else if (event.key === "Backspace" || event.key === "Escape") out();
  else if (to) {
    const next = to();
    if (next >= 0) {
      cells[at].setAttribute("tabindex", -1);
      cells[next].setAttribute("tabindex", 0);
      cells[next].focus();
    }
  } else return;
  event.preventDefault();
}
