// Small charts as SVG: bars with their labels above them, intervals, and a line of recent values.

import { s } from "../lib/dom.js";
import { fitted, font, widthOf } from "../lib/text.js";

const ROW = 40;

/** Bars. Rows: { label, value, text, note, kind }; `most` is the value of a full bar. */
export function bars(rows, { width, label, most = Math.max(...rows.map((r) => Math.abs(r.value)), 1e-9) }) {
  const height = rows.length * ROW;
  const small = font(12),
    plain = font(13);
  const drawn = rows.map((row, n) => {
    const y = n * ROW,
      value = row.text ?? String(row.value);
    const room = width - widthOf(value, small) - 12;
    const name = fitted(row.label, room, plain);
    const left = room - widthOf(name, plain) - 10;
    return s(
      "g",
      {},
      s("title", {}, `${row.label}: ${value}${row.note ? `; ${row.note}` : ""}`),
      s("text", { x: 0, y: y + 14 }, name),
      row.note && left > 40
        ? s("text", { class: "small", x: widthOf(name, plain) + 8, y: y + 14 }, fitted(row.note, left, small))
        : null,
      s("text", { class: "small end", x: width, y: y + 14 }, value),
      s("rect", { class: "track", x: 0, y: y + 21, width, height: 6, rx: 3 }),
      s("rect", {
        class: `bar ${row.kind ?? ""}`,
        x: 0,
        y: y + 21,
        width: Math.max((width * Math.abs(row.value)) / most, 1.5),
        height: 6,
        rx: 3,
      }),
    );
  });
  return s(
    "svg",
    { class: "picture", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    drawn,
  );
}

/** Columns over a few names, such as lengths of ids. */
export function columns(rows, { width, label, height = 150 }) {
  const most = Math.max(...rows.map((r) => r.value), 1e-9);
  const step = Math.min(width / Math.max(rows.length, 1), 96),
    small = font(12);
  const drawn = rows.map((row, n) => {
    const tall = Math.max(((height - 44) * row.value) / most, row.value ? 2 : 0),
      x = n * step;
    return s(
      "g",
      {},
      s("title", {}, `${row.label}: ${row.text}`),
      s(
        "text",
        { class: "small", x: x + step / 2, y: height - 28 - tall, "text-anchor": "middle" },
        fitted(row.text, step - 4, small),
      ),
      s("rect", { class: "bar", x: x + step * 0.18, y: height - 22 - tall, width: step * 0.64, height: tall, rx: 3 }),
      s(
        "text",
        { class: "small", x: x + step / 2, y: height - 6, "text-anchor": "middle" },
        fitted(row.label, step - 4, small),
      ),
    );
  });
  return s(
    "svg",
    { class: "picture", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    drawn,
  );
}

/** Means with 95 % intervals on one scale. Rows: { label, mean, error, text, kind }. */
export function intervals(rows, { width, label }) {
  const small = font(12),
    plain = font(13),
    row = 44;
  const ends = rows.flatMap(({ mean, error }) => [mean - 1.96 * error, mean + 1.96 * error]);
  const low = Math.min(0, ...ends),
    high = Math.max(...ends, 1e-9);
  const at = (value) => 6 + ((width - 12) * (value - low)) / (high - low);
  const drawn = rows.map((r, n) => {
    const y = n * row;
    return s(
      "g",
      {},
      s("title", {}, `${r.label}: ${r.text}`),
      s("text", { x: 0, y: y + 14 }, fitted(r.label, width - widthOf(r.text, small) - 12, plain)),
      s("text", { class: "small end", x: width, y: y + 14 }, r.text),
      s("line", { class: "axis", x1: 0, x2: width, y1: y + 28, y2: y + 28 }),
      s("line", {
        class: "whisker",
        x1: at(r.mean - 1.96 * r.error),
        x2: at(r.mean + 1.96 * r.error),
        y1: y + 28,
        y2: y + 28,
      }),
      s("circle", { class: `dot ${r.kind ?? ""}`, cx: at(r.mean), cy: y + 28, r: 5 }),
    );
  });
  const height = rows.length * row;
  return s(
    "svg",
    { class: "picture", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    drawn,
  );
}

/** The last values of something, newest at the right. */
export function line(values, { width, height = 64, label, most }) {
  const top = Math.max(most ?? 0, ...values, 1e-9),
    step = width / Math.max(values.length - 1, 1);
  const points = values.map((v, n) => `${(n * step).toFixed(1)},${(height - 3 - ((height - 8) * v) / top).toFixed(1)}`);
  return s(
    "svg",
    { class: "picture", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    s("line", { class: "axis", x1: 0, x2: width, y1: height - 3, y2: height - 3 }),
    values.length > 1 ? s("polyline", { class: "curve", points: points.join(" ") }) : null,
  );
}
