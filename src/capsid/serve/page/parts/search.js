// A field that searches items by title or id and offers what it finds: a combobox with a list below it.

import { h, icon, unique } from "../lib/dom.js";
import { ask, path } from "../lib/api.js";
import { count } from "../lib/text.js";

const WAIT = 120;

/** The field; `choose({ item, title })` is called with the chosen item. */
export function search(options) {
  return new Search(options).node;
}

class Search {
  items = [];
  active = -1;
  timer = 0;
  request = null;
  // Enter was pressed before the results were there: the best one is taken when they are.
  hurried = false;

  constructor({ label, placeholder, choose, focus = "" }) {
    this.id = unique("search");
    this.choose = choose;
    this.list = h("ul", {
      id: `${this.id}-list`,
      role: "listbox",
      class: "found",
      hidden: true,
      "aria-label": "Found items",
    });
    this.more = h("p", { class: "found-note", hidden: true });
    const events = {
      input: () => this.#typed(),
      focus: () => this.list.hidden && this.#find(),
      blur: () => this.#close(),
      keydown: (event) => this.#pressed(event),
    };
    const aria = {
      "aria-label": label,
      "aria-expanded": "false",
      "aria-controls": this.list.id,
      "aria-autocomplete": "list",
    };
    const quiet = { autocomplete: "off", spellcheck: "false" };
    this.input = h("input", {
      type: "text",
      role: "combobox",
      placeholder,
      ...quiet,
      ...aria,
      "data-focus": focus,
      on: events,
    });
    const below = h("div", { class: "found-box" }, this.list, this.more);
    this.node = h("div", { class: "search" }, icon("search"), this.input, below);
  }

  #typed() {
    this.#close();
    this.timer = setTimeout(() => this.#find(), WAIT);
  }

  async #find() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.request?.abort();
    const { signal } = (this.request = new AbortController());
    try {
      const found = await ask(path("v1/items", { q: this.input.value.trim(), limit: 8 }), { signal });
      if (signal.aborted) return;
      this.request = null;
      this.#show(found);
      if (this.hurried && found.items.length) this.#take(found.items[0]);
      this.hurried = false;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.request = null;
      this.hurried = false;
      this.#say(error.message);
    }
  }

  #show({ items, total }) {
    this.items = items;
    this.list.replaceChildren(...items.map((one, n) => this.#option(one, n)));
    this.list.hidden = !items.length;
    this.input.setAttribute("aria-expanded", items.length ? "true" : "false");
    if (!items.length) this.#say("No item has all of these words.");
    else this.#say(total > items.length ? `${count(total)} items; more words find fewer.` : "");
    this.#mark(items.length ? 0 : -1);
  }

  #option(one, n) {
    const pointerdown = (event) => {
      event.preventDefault();
      this.#take(one);
    };
    const props = { id: `${this.id}-${n}`, role: "option", "aria-selected": "false", on: { pointerdown } };
    return h("li", props, h("span", { class: "found-title" }, one.title), h("code", {}, one.item));
  }

  #mark(n) {
    this.active = n;
    [...this.list.children].forEach((option, at) => option.setAttribute("aria-selected", at === n ? "true" : "false"));
    if (n < 0) return this.input.removeAttribute("aria-activedescendant");
    this.input.setAttribute("aria-activedescendant", this.list.children[n].id);
    this.list.children[n].scrollIntoView({ block: "nearest" });
  }

  #say(text) {
    this.more.textContent = text;
    this.more.hidden = !text;
  }

  #take(one) {
    this.#close();
    this.input.value = "";
    this.choose(one);
  }

  #close() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.request?.abort();
    this.request = null;
    this.hurried = false;
    this.list.hidden = this.more.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.#mark(-1);
  }

  #hurry() {
    this.hurried = this.input.value.trim() !== "";
    if (this.timer) this.#find();
  }

  #pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const count = this.items.length;
    if (step && count && !this.list.hidden) this.#mark((this.active + step + count) % count);
    else if (event.key === "Enter" && this.active >= 0) this.#take(this.items[this.active]);
    else if (event.key === "Enter" && (this.timer || this.request)) this.#hurry();
    else if (event.key === "Escape") this.input.blur();
    else return;
    event.preventDefault();
  }
}
