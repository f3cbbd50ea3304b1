// The shell: a rail of views, a search over all items, and the view that the address names.

import { h, icon } from "./lib/dom.js";
import { asked, go, href, read } from "./lib/address.js";
import { Refused, ask, key } from "./lib/api.js";
import { announcer } from "./lib/announce.js";
import { apply, theme, turn } from "./lib/theme.js";
import { counted } from "./lib/text.js";
import { button, empty, failed } from "./parts/common.js";
import { search } from "./parts/search.js";

const VIEWS = {
  catalogue: { name: "Catalogue", load: () => import("./views/catalogue.js") },
  item: { name: "Item", load: () => import("./views/item.js") },
  recommend: { name: "Recommend", load: () => import("./views/recommend.js") },
  compare: { name: "Compare", load: () => import("./views/compare.js") },
  health: { name: "Health", load: () => import("./views/health.js") },
};
const KEYS = [
  ["/", "search all items"],
  ["1 to 5", "go to a view"],
  ["arrows, Enter, Backspace", "move in the tree, zoom in, zoom out"],
  ["t", "light, dark, or as the system"],
  ["?", "this list"],
  ["Esc", "close"],
];

const main = h("main", { id: "main", tabindex: -1 });
const where = h("p", { class: "served" });
let present = null;
let info = null;

function rail() {
  const links = Object.entries(VIEWS).map(([id, view], n) =>
    h(
      "li",
      {},
      h("a", { href: href(id), "data-view": id, title: `${view.name} (${n + 1})` }, icon(id), h("span", {}, view.name)),
    ),
  );
  const turned = () => `Colours: ${theme()}`;
  const colours = h("button", {
    type: "button",
    class: "rail-button",
    id: "theme",
    on: {
      click: () => {
        turn();
        label.textContent = turned();
      },
    },
  });
  const label = h("span", {}, turned());
  colours.append(icon("theme"), label);
  return h(
    "header",
    { class: "rail" },
    h(
      "a",
      { class: "brand", href: href("catalogue"), "aria-label": "capsid explorer" },
      h("img", { src: "page/icon.svg", alt: "", width: 28, height: 28 }),
      h("span", {}, "capsid"),
    ),
    h("nav", { "aria-label": "Views" }, h("ul", {}, links)),
    h(
      "div",
      { class: "rail-foot" },
      where,
      colours,
      h("button", { type: "button", class: "rail-button", on: { click: help } }, icon("keys"), h("span", {}, "Keys")),
      h("a", { class: "rail-button", href: "openapi.json" }, icon("item"), h("span", {}, "API document")),
    ),
  );
}

function shell() {
  const find = search({
    label: "Search items",
    placeholder: "Search items by title or id   /",
    focus: "everywhere",
    choose: ({ item }) => {
      // Keys are keys again, not letters of the field.
      main.focus({ preventScroll: true });
      go(href("item", { id: item }));
    },
  });
  find.id = "everywhere";
  document.body.append(
    h(
      "a",
      {
        class: "skip",
        href: "#main",
        on: {
          click: (event) => {
            event.preventDefault();
            main.focus();
          },
        },
      },
      "Skip to content",
    ),
    rail(),
    h("div", { class: "page" }, h("div", { class: "top", role: "search" }, find), main),
    announcer,
  );
}

function help() {
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-label": "Keys" },
    h("h2", {}, "Keys"),
    h(
      "dl",
      { class: "keys" },
      KEYS.map(([k, what]) => h("div", {}, h("dt", {}, h("kbd", {}, k)), h("dd", {}, what))),
    ),
    button("Close", () => dialog.close()),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function askForKey() {
  const input = h("input", { type: "password", id: "key", class: "field", autocomplete: "off", "data-focus": "key" });
  const open = h("button", { class: "button", type: "submit" }, "Open");
  const send = (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    // The answer replaces this form, so nothing may be typed into it until then.
    input.readOnly = open.disabled = true;
    show();
  };
  return h(
    "form",
    { class: "empty", on: { submit: send } },
    h("p", { class: "empty-title" }, key.get() ? "This key is not the right one." : "This service needs a key."),
    h("label", { for: "key" }, "API key"),
    input,
    open,
    h("p", { class: "sub" }, "It stays in this tab and is sent with every request."),
  );
}

async function describe(signal) {
  info = await ask("v1/info", { signal });
  where.replaceChildren(
    h("strong", {}, info.run),
    h("span", {}, counted(info.items, "item")),
    h("span", {}, `version ${info.version}`),
  );
  return info;
}

/** Show what the address says. What was there stays until the new view is ready. */
async function show() {
  present?.abort();
  const mine = (present = new AbortController());
  const { view, params } = read();
  const same = main.dataset.view === view;
  const held = document.activeElement?.dataset?.focus;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else if (link.tagName === "A") link.removeAttribute("aria-current");
  }
  main.setAttribute("aria-busy", "true");
  const late = setTimeout(() => {
    if (!same) main.replaceChildren(skeleton());
  }, 150);
  try {
    if (!VIEWS[view]) throw new Refused(404, { message: `there is no view ${view}`, hint: "choose one from the rail" });
    const [module, about] = await Promise.all([VIEWS[view].load(), describe(mine.signal)]);
    const node = await module.view(params, { signal: mine.signal, info: about, width: inside(main) });
    if (mine.signal.aborted) return;
    main.replaceChildren(node);
    document.title = `${main.querySelector("h1")?.textContent ?? VIEWS[view].name} · capsid`;
  } catch (error) {
    if (mine.signal.aborted || error.name === "AbortError") return;
    main.replaceChildren(problem(error));
  } finally {
    clearTimeout(late);
    if (mine === present) main.removeAttribute("aria-busy");
  }
  main.dataset.view = view;
  remember(view, params);
  if (held) main.querySelector(`[data-focus="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
  if (!same) scrollTo(0, 0);
}

/** The rail leads back to where each view was; Recommend and Compare share their history. */
function remember(view, params) {
  const shared = { recommend: "compare", compare: "recommend" }[view];
  document.querySelector(`a[data-view="${CSS.escape(view)}"]`)?.setAttribute("href", location.hash || href(view));
  if (shared) document.querySelector(`a[data-view="${shared}"]`).setAttribute("href", href(shared, asked(params)));
}

function problem(error) {
  if (error.status === 401) return askForKey();
  if (error.status === 503) {
    setTimeout(show, 1000);
    return empty("The run is still being loaded.", h("p", {}, "This page opens as soon as it is there."));
  }
  if (!(error instanceof Refused)) console.error(error);
  return h("div", {}, h("h1", { class: "sr" }, "Problem"), failed(error, show));
}

/** The width that a view has, without padding. */
function inside(element) {
  const { paddingLeft, paddingRight } = getComputedStyle(element);
  return element.clientWidth - Number.parseFloat(paddingLeft) - Number.parseFloat(paddingRight);
}

function skeleton() {
  return h(
    "div",
    { class: "skeleton", role: "status", "aria-label": "Loading" },
    h("div", {}),
    h("div", {}),
    h("div", {}),
  );
}

function keyboard(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const views = Object.keys(VIEWS);
  if (event.key === "/") document.querySelector("#everywhere input").focus();
  else if (event.key === "?") help();
  else if (event.key === "t") document.querySelector("#theme").click();
  else if (views[Number(event.key) - 1])
    document.querySelector(`a[data-view="${views[Number(event.key) - 1]}"]`).click();
  else return;
  event.preventDefault();
}

let width = innerWidth,
  settle = 0;
function resized() {
  if (innerWidth === width) return;
  width = innerWidth;
  clearTimeout(settle);
  settle = setTimeout(show, 150);
}

apply();
shell();
addEventListener("hashchange", show);
addEventListener("keydown", keyboard);
addEventListener("resize", resized);
show();
