// Makes elements. Text from data only ever becomes text nodes or attribute values, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** An HTML element: h("p", { class: "lede" }, "text", child). */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Small line icons, 20 x 20. */
const ICONS = {
  catalogue: "M3 3h4v14H3zM9 3h4v8H9zM9 13h4v4H9zM15 3h2v4h-2zM15 9h2v3h-2zM15 14h2v3h-2z",
  item: "M4 5l6-3 6 3v9l-6 4-6-4zM4 5l6 4 6-4M10 9v9",
  recommend: "M4 16h3V9H4zM8.5 16h3V4h-3zM13 16h3v-5h-3z",
  compare: "M4 4h5v12H4zM11 4h5v12h-5zM6 8h1M6 11h1M13 7h1M13 10h1M13 13h1",
  health: "M2 11h4l2-6 4 10 2-4h4",
  search: "M9 3a6 6 0 1 0 0 12A6 6 0 0 0 9 3zM13.5 13.5L18 18",
  up: "M5 12l5-5 5 5",
  down: "M5 8l5 5 5-5",
  remove: "M5 5l10 10M15 5L5 15",
  theme: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14",
  keys: "M2 5h16v10H2zM5 8h1M8 8h1M11 8h1M14 8h1M6 12h8",
  dice: "M4 4h12v12H4zM7.5 7.5h.1M12.5 12.5h.1M12.5 7.5h.1M7.5 12.5h.1",
};

/** An icon that screen readers skip. */
export function icon(name) {
  const path = s("path", {
    d: ICONS[name],
    fill: "none",
    stroke: "currentColor",
    "stroke-width": 1.5,
    "stroke-linejoin": "round",
    "stroke-linecap": "round",
  });
  return s("svg", { class: "icon", viewBox: "0 0 20 20", width: 20, height: 20, "aria-hidden": "true" }, path);
}

/** An id that no other element of the page has. */
let count = 0;
export const unique = (stem) => `${stem}-${++count}`;
