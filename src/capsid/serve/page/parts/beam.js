// The search as a picture: a column per depth, what was kept, what was cut and why. A click searches below a prefix.

import { s } from "../lib/dom.js";
import { count, counted, fitted, fixed, font, widthOf } from "../lib/text.js";

export const FATES = {
  result: "among the results",
  kept: "kept and extended",
  width: "cut: more promising prefixes filled the beam",
  bound: "cut: cannot reach the list any more",
  filter: "cut: filtered",
};
const SHORT = { result: "result", kept: "kept", width: "width", bound: "bound", filter: "filter" };
const SURVIVORS = 12,
  CUT = 4,
  HEAD = 44,
  NODE = 40,
  GAP = 6,
  BETWEEN = 44;

/** The prefixes drawn in each column, near their parents; and how many are not drawn, by fate. */
export function columnsOf(steps, paths) {
  const ways = new Set(paths.flatMap((path) => path.map((_, d) => path.slice(0, d + 1).join())));
  let above = new Map();
  return steps.map((step) => {
    const survived = step.prefixes.filter((p) => p.fate === "result" || p.fate === "kept");
    const first = survived.filter((p) => ways.has(p.tokens.join())),
      rest = survived.filter((p) => !ways.has(p.tokens.join()));
    const cut = step.prefixes.filter((p) => !(p.fate === "result" || p.fate === "kept")).slice(0, CUT);
    const parent = (p) => above.get(p.tokens.slice(0, -1).join()) ?? 99;
    const kept = [...first, ...rest].slice(0, SURVIVORS).sort((a, b) => parent(a) - parent(b) || b.score - a.score);
    const drawn = [...kept, ...cut];
    above = new Map(drawn.map((p, n) => [p.tokens.join(), n]));
    const left = { ...step.counts };
    for (const p of drawn) left[p.fate] -= 1;
    return {
      step,
      drawn,
      left: Object.entries(left).filter(([, n]) => n > 0),
      total: Object.values(step.counts).reduce((a, b) => a + b, 0),
    };
  });
}

/** The picture. `chosen` are the tokens of a result whose way is marked; `force(tokens)` searches below a prefix. */
export function beam(steps, paths, { width, chosen = [], force }) {
  const columns = columnsOf(steps, paths);
  const box = Math.max(Math.min((width - BETWEEN * (columns.length - 1)) / columns.length, 420), 220);
  const wide = Math.max(columns.length * box + (columns.length - 1) * BETWEEN, 220);
  const rows = Math.max(...columns.map((c) => c.drawn.length), 1);
  const height = HEAD + rows * (NODE + GAP) + 34;
  const at = (column, n) => [column * (box + BETWEEN), HEAD + n * (NODE + GAP)];
  const on = (tokens) => chosen.length >= tokens.length && tokens.every((token, d) => token === chosen[d]);
  const edges = columns.flatMap((column, c) =>
    c
      ? column.drawn.map((p, n) => {
          const from = columns[c - 1].drawn.findIndex((q) => q.tokens.join() === p.tokens.slice(0, -1).join());
          if (from < 0) return null;
          const [x0, y0] = at(c - 1, from),
            [x1, y1] = at(c, n),
            middle = x1 - BETWEEN / 2;
          return s("path", {
            class: `edge ${on(p.tokens) ? "on" : ""}`,
            d: `M${x0 + box} ${y0 + NODE / 2}C${middle} ${y0 + NODE / 2} ${middle} ${y1 + NODE / 2} ${x1} ${y1 + NODE / 2}`,
          });
        })
      : [],
  );
  const drawn = columns.map((column, c) => drawColumn(column, c, { at, box, height, on, force }));
  return s(
    "svg",
    {
      class: "picture beam",
      width: wide,
      height,
      viewBox: `0 0 ${wide} ${height}`,
      role: "group",
      "aria-label": "Search, depth by depth",
    },
    edges,
    drawn,
  );
}

function drawColumn(column, c, { at, box, on, force }) {
  const small = font(12),
    plain = font(13),
    [x] = at(c, 0);
  const nodes = column.drawn.map((p, n) => {
    const [, y] = at(c, n),
      fate = SHORT[p.fate];
    const room = box - 20 - widthOf(fate, small) - 12;
    const go = () => force(p.tokens);
    return s(
      "g",
      {
        class: `cell node ${p.fate} ${on(p.tokens) ? "on" : ""}`,
        role: "button",
        tabindex: 0,
        "data-focus": `node-${p.tokens.join("-")}`,
        "aria-label": `${p.example}, ${counted(p.items, "item")}, ${FATES[p.fate]}: search only below this prefix`,
        on: {
          click: go,
          keydown: (event) => {
            if (event.key === "Enter" || event.key === " ") {
              event.preventDefault();
              go();
            }
          },
        },
      },
      s("title", {}, `${p.example}\n${FATES[p.fate]}\nscore ${fixed(p.score, 3)}, tokens ${p.tokens.join(" ")}`),
      s("rect", { x, y, width: box, height: NODE, rx: 6 }),
      s("rect", { class: "mark", x, y, width: 5, height: NODE, rx: 2.5 }),
      s("text", { x: x + 14, y: y + 17 }, fitted(p.example, box - 22, plain)),
      s(
        "text",
        { class: "small", x: x + 14, y: y + 33 },
        fitted(`${counted(p.items, "item")} · score ${fixed(p.score, 2)}`, room, small),
      ),
      s("text", { class: "small end fate", x: x + box - 8, y: y + 33 }, fate),
    );
  });
  const left = column.left.map(([fate, n]) => `${count(n)} ${fate}`).join(", ");
  const [, foot] = at(c, column.drawn.length);
  return [
    s("text", { class: "bold", x, y: 16 }, `Depth ${column.step.depth + 1}`),
    s(
      "text",
      { class: "small", x, y: 34 },
      fitted(`${counted(column.total, "prefix", "prefixes")} weighed`, box, small),
    ),
    nodes,
    left ? s("text", { class: "small", x, y: foot + 14 }, fitted(`Not drawn: ${left}`, box, small)) : null,
  ];
}
