// What every view is built from: cards with their exports, empty and failed states, links to items and prefixes.

import { h, icon, unique } from "../lib/dom.js";
import { href } from "../lib/address.js";
import { curl } from "../lib/api.js";
import { copy, saveCsv, saveSvg } from "../lib/keep.js";

/** A button; `quiet` ones have no frame. */
export function button(text, click, { quiet = false, ...more } = {}) {
  return h("button", { type: "button", class: quiet ? "button quiet" : "button", on: { click }, ...more }, text);
}

/** A button that shows an icon and names itself to screen readers. */
export function iconButton(name, label, click, more = {}) {
  return h(
    "button",
    { type: "button", class: "button quiet square", "aria-label": label, title: label, on: { click }, ...more },
    icon(name),
  );
}

/** "Copy as curl", "CSV" and "SVG" of what a card shows; each only where it is given. */
export function exports_({ name, request, rows, picture }) {
  const out = [];
  if (request)
    out.push(
      button([h("span", { class: "long" }, "Copy as "), "curl"], () => copy(curl(...request()), "curl line"), {
        quiet: true,
        "aria-label": "Copy as curl",
      }),
    );
  if (rows) out.push(button("CSV", () => saveCsv(name, rows()), { quiet: true, "aria-label": `Save ${name} as CSV` }));
  if (picture)
    out.push(button("SVG", () => saveSvg(name, picture()), { quiet: true, "aria-label": `Save ${name} as SVG` }));
  return h("div", { class: "actions" }, out);
}

/** A titled part of a view. */
export function card(title, { sub, exports, wide = false, kind = "" } = {}, ...body) {
  const id = unique("card");
  const head = h(
    "header",
    { class: "card-head" },
    h("div", {}, h("h2", { id }, title), sub ? h("p", { class: "sub" }, sub) : null),
    exports ? exports_(exports) : null,
  );
  return h("section", { class: `card${wide ? " wide" : ""} ${kind}`, "aria-labelledby": id }, head, body);
}

/** The head of a view: its name, a sentence, and what can be chosen. */
export function head(title, sub, ...tools) {
  const shown = tools.filter(Boolean);
  return h(
    "div",
    { class: "head" },
    h("div", {}, h("h1", {}, title), h("p", { class: "sub" }, sub)),
    shown.length ? h("div", { class: "head-tools" }, shown) : null,
  );
}

/** What a view says when there is nothing to show, and what to do about it. */
export function empty(title, ...more) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), more);
}

/** What a view says when the service refused. */
export function failed(error, again) {
  return h(
    "div",
    { class: "empty failed", role: "alert" },
    h("p", { class: "empty-title" }, sentence(error.message)),
    error.hint ? h("p", {}, sentence(error.hint)) : null,
    again ? button("Try again", again) : null,
  );
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

/** A link to an item by its title. */
export function itemLink({ item, title, retired }) {
  return h(
    "a",
    { href: href("item", { id: item }), class: retired ? "item retired" : "item", title: title || item },
    title || item,
    retired ? h("span", { class: "tag" }, "retired") : null,
  );
}

/** A list of items by their titles. */
export function itemList(items) {
  return h(
    "ul",
    { class: "titles" },
    items.map((item) => h("li", {}, itemLink(item))),
  );
}

/** Words in small frames. */
export function chips(words) {
  return h(
    "ul",
    { class: "chips", "aria-label": "words" },
    words.map((word) => h("li", {}, word)),
  );
}

/** A region that scrolls sideways where the window is narrow, reachable by keyboard. */
export function scroller(label, ...children) {
  return h("div", { class: "scroller", tabindex: 0, role: "group", "aria-label": label }, children);
}

/** Pairs of names and values. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([name, ...value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** A choice of a few, as radio buttons in a row. */
export function choice(label, options, chosen, change) {
  const name = unique("choice");
  return h(
    "fieldset",
    { class: "choice" },
    h("legend", {}, label),
    Object.entries(options).map(([value, text]) => {
      const input = h("input", {
        type: "radio",
        name,
        value,
        checked: value === chosen,
        "data-focus": `${label}-${value}`,
        on: { change: () => change(value) },
      });
      return h("label", {}, input, h("span", {}, text));
    }),
  );
}
