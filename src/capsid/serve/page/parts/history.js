// The history editor that Recommend and Compare share: search, order, remove, a test user's history, how many items.

import { h } from "../lib/dom.js";
import { ask } from "../lib/api.js";
import { announce } from "../lib/announce.js";
import { count, counted, signed } from "../lib/text.js";
import { button, card, iconButton, itemLink } from "./common.js";
import { search } from "./search.js";

/** `state` as `asked` reads it; `shown` are items with titles; `change(part)` goes to the changed state. */
export function historyCard({ state, shown, info, change, curlOf, influences = [], of = "" }) {
  const largest = Math.max(...influences.map((i) => Math.abs(i.value)), 1e-9);
  const moved = (from, to) => {
    const items = state.h.slice();
    items.splice(to, 0, ...items.splice(from, 1));
    change({ h: items, t: state.t });
  };
  const rows = shown.map((one, n) =>
    row(one, n, shown.length, {
      state,
      change,
      moved,
      influence: influences.find((i) => i.item === one.item),
      largest,
    }),
  );
  const find = search({
    label: "Add an item to the history",
    placeholder: "Add an item",
    focus: "history",
    choose: ({ item }) => change({ h: [...state.h, item], t: state.t }),
  });
  const list = rows.length
    ? h("ol", { class: "history", "aria-label": "History, oldest first" }, rows)
    : h("p", { class: "sub history-empty" }, "No items yet. Without a history, popular items are recommended.");
  return card(
    "History",
    {
      sub: rows.length ? `${counted(rows.length, "item")}, oldest first` : null,
      kind: "over",
      exports: {
        name: "history",
        request: curlOf,
        rows: () => [
          ["item", "title", "influence"],
          ...shown.map((one) => [one.item, one.title, influences.find((i) => i.item === one.item)?.value]),
        ],
      },
    },
    find,
    list,
    influences.length && rows.length
      ? h("p", { class: "sub hint" }, `Bars: how much ${of || "the recommended items"} would lose without the item.`)
      : null,
    h(
      "div",
      { class: "buttons tools" },
      info.histories ? button("A test user", () => drawn(info, change), { "data-focus": "dice" }) : null,
      rows.length ? button("Clear", () => change({ h: [], t: "" }), { "data-focus": "clear" }) : null,
    ),
    options(state, change),
  );
}

function row(one, n, total, { change, state, moved, influence, largest }) {
  const label = one.title || one.item;
  const without = () => change({ h: state.h.filter((_, place) => place !== n), t: state.t });
  const bar = influence
    ? h(
        "span",
        { class: "influence" },
        h("i", {
          class: influence.value < 0 ? "against" : "",
          style: { width: `${Math.max((64 * Math.abs(influence.value)) / largest, 2)}px` },
        }),
        h("span", {}, signed(influence.value, 2)),
      )
    : null;
  return h(
    "li",
    {
      draggable: "true",
      on: {
        dragstart: (event) => event.dataTransfer.setData("text/plain", String(n)),
        dragover: (event) => event.preventDefault(),
        drop: (event) => {
          event.preventDefault();
          moved(Number(event.dataTransfer.getData("text/plain")), n);
        },
      },
    },
    h(
      "div",
      { class: "history-title" },
      one.known === false ? h("span", {}, one.item, h("span", { class: "tag" }, "unknown")) : itemLink(one),
      bar,
    ),
    h(
      "div",
      { class: "history-tools" },
      iconButton("up", `Move ${label} up`, () => moved(n, n - 1), {
        disabled: n === 0,
        "data-focus": `up-${one.item}`,
      }),
      iconButton("down", `Move ${label} down`, () => moved(n, n + 1), {
        disabled: n === total - 1,
        "data-focus": `down-${one.item}`,
      }),
      iconButton("remove", `Remove ${label}`, without, { "data-focus": `remove-${one.item}` }),
    ),
  );
}

function options(state, change) {
  const list = h(
    "select",
    {
      id: "k",
      class: "field",
      "data-focus": "k",
      on: { change: (event) => change({ k: Number(event.target.value), t: state.t }) },
    },
    [...new Set([5, 10, 20, 50, state.k])]
      .sort((a, b) => a - b)
      .map((n) => h("option", { value: n, selected: n === state.k }, String(n))),
  );
  const repeat = h("input", {
    type: "checkbox",
    checked: Boolean(state.repeat),
    "data-focus": "repeat",
    on: { change: (event) => change({ repeat: event.target.checked ? "1" : "", t: state.t }) },
  });
  return h(
    "div",
    { class: "options" },
    h("label", { class: "check" }, "Items", list),
    h("label", { class: "check" }, repeat, "may repeat the history"),
  );
}

async function drawn(info, change) {
  const number = Math.floor(Math.random() * info.histories);
  try {
    const told = await ask(`v1/histories/${number}`);
    announce(`test user ${count(number + 1)} of ${count(told.total)}`);
    change({ h: told.history.map((one) => one.item).slice(-20), t: told.next.item });
  } catch (error) {
    announce(error.message);
  }
}
