// Takes what is on the page away: CSV, SVG, and requests as curl lines.

import { announce } from "./announce.js";

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Rows (arrays) as CSV. A text that a spreadsheet would run as a formula gets an apostrophe in front. */
export function csvText(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    let text = Array.isArray(value) ? value.join(" ") : String(value);
    if (typeof value !== "number" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

/** Save rows as a file. */
export function saveCsv(name, rows) {
  download(`${name}.csv`, "text/csv", csvText(rows));
}

const STYLES = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
];

/** An SVG of the page as a file of its own: the styles that the page's sheet gave it are written into it. */
export function svgText(source) {
  const copy = source.cloneNode(true);
  const from = [source, ...source.querySelectorAll("*")],
    to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, n) => {
    const seen = getComputedStyle(element);
    for (const name of STYLES) if (element.tagName !== "title") to[n].setAttribute(name, seen.getPropertyValue(name));
    for (const name of ["class", "style", "tabindex"]) to[n].removeAttribute(name);
  });
  const back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ width: "100%", height: "100%" })) back.setAttribute(name, value);
  back.setAttribute("fill", getComputedStyle(document.documentElement).getPropertyValue("background-color"));
  copy.prepend(back);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

/** Save a picture as a file. */
export function saveSvg(name, source) {
  download(`${name}.svg`, "image/svg+xml", svgText(source));
}

/** Put a text on the clipboard and say so. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without permission, or over plain HTTP: the old way.
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  announce(`${what} copied`);
}
