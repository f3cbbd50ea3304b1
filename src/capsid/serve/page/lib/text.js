// Numbers and texts as they are shown.

const context = document.createElement("canvas").getContext("2d");
const widths = new Map();

/** How wide a text is in a font, in pixels. */
export function widthOf(text, font) {
  const name = `${font}|${text}`;
  if (!widths.has(name)) {
    if (widths.size > 20_000) widths.clear();
    context.font = font;
    widths.set(name, context.measureText(text).width);
  }
  return widths.get(name);
}

/** The text, cut with an ellipsis so that it is at most this wide; empty if hardly anything would be left. */
export function fitted(text, width, font) {
  if (widthOf(text, font) <= width) return text;
  const letters = [...text];
  let low = 0,
    high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (widthOf(`${letters.slice(0, middle).join("").trimEnd()}…`, font) <= width) low = middle;
    else high = middle - 1;
  }
  return low < 2 ? "" : `${letters.slice(0, low).join("").trimEnd()}…`;
}

/** The page's font at a size, for measuring. */
export const font = (size, weight = 400) => `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;

const whole = new Intl.NumberFormat("en");
/** 12,345 */
export const count = (n) => whole.format(n);
/** "1 item", "2,000 items" */
export const counted = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
/** A number with this many digits after the point; "–" for null. */
export const fixed = (x, digits = 3) =>
  x === null || x === undefined
    ? "–"
    : x
        .toFixed(digits)
        .replace(/^-(?=0\.?0*$)/, "")
        .replace("-", "−");
/** A share as percent. */
export const percent = (x, digits = 0) => (x === null || x === undefined ? "–" : `${(100 * x).toFixed(digits)} %`);
/** A number with its sign. */
export const signed = (x, digits = 3) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(digits)}`;
/** What a prefix is called: the words of its items, or its most popular item. */
export const nameOf = (node) =>
  node.words?.length ? node.words.slice(0, 3).join(" · ") : (node.examples?.[0]?.title ?? "");
