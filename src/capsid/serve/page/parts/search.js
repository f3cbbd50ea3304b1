// A field that searches items by title or id and offers what it finds: a combobox with a list below it.

import { h, icon, unique } from "../lib/dom.js";
import { ask, path } from "../lib/api.js";
import { count } from "../lib/text.js";

const WAIT = 120;

/** `choose({ item, title })` is called with the chosen item. */
export function search({ label, placeholder, choose, focus = "" }) {
  const id = unique("search");
  const list = h("ul", { id: `${id}-list`, role: "listbox", class: "found", hidden: true, "aria-label": "Found items" });
  const more = h("p", { class: "found-note", hidden: true });
  const input = h("input", { id, type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", placeholder,
    "aria-label": label, "aria-expanded": "false", "aria-controls": `${id}-list`, "aria-autocomplete": "list", "data-focus": focus });
  let items = [], active = -1, timer = 0, request = null;

  const mark = (n) => {
    active = n;
    [...list.children].forEach((option, place) => option.setAttribute("aria-selected", place === n ? "true" : "false"));
    if (n >= 0) {
      input.setAttribute("aria-activedescendant", list.children[n].id);
      list.children[n].scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };
  const close = () => {
    list.hidden = more.hidden = true;
    input.setAttribute("aria-expanded", "false");
    mark(-1);
  };
  const take = (found) => {
    close();
    input.value = "";
    choose(found);
  };
  const say = (text) => {
    more.textContent = text;
    more.hidden = !text;
  };
  const show = ({ items: found, total }) => {
    items = found;
    list.replaceChildren(...found.map((one, n) => h("li", { id: `${id}-${n}`, role: "option", "aria-selected": "false",
      on: { pointerdown: (event) => { event.preventDefault(); take(one); } } },
    h("span", { class: "found-title" }, one.title), h("code", {}, one.item))));
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", found.length ? "true" : "false");
    if (!found.length) say("No item has all of these words.");
    else say(total > found.length ? `${count(total)} items; more words find fewer.` : "");
    mark(found.length ? 0 : -1);
  };
  const find = async () => {
    request?.abort();
    request = new AbortController();
    try {
      show(await ask(path("v1/items", { q: input.value.trim(), limit: 8 }), { signal: request.signal }));
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(find, WAIT);
  });
  input.addEventListener("focus", () => { if (list.hidden) find(); });
  input.addEventListener("blur", () => { clearTimeout(timer); request?.abort(); close(); });
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && items.length && !list.hidden) mark((active + step + items.length) % items.length);
    else if (event.key === "Enter" && active >= 0) take(items[active]);
    else if (event.key === "Escape") { close(); input.blur(); }
    else return;
    event.preventDefault();
  });
  return h("div", { class: "search" }, icon("search"), input, h("div", { class: "found-box" }, list, more));
}
