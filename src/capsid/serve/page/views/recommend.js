// Recommend: a history, the list that follows from it, and the search behind the list. A click forces a prefix; a pinned
// list stays beside the new one, with what changed.

import { h } from "../lib/dom.js";
import { asked, go, href, note, tokensOf } from "../lib/address.js";
import { ask } from "../lib/api.js";
import { button, card, empty, head, scroller } from "../parts/common.js";
import { FATES, beam } from "../parts/beam.js";
import { historyCard } from "../parts/history.js";
import { ranked } from "../parts/ranked.js";

/** The view. */
export async function view(params, { signal, info, width }) {
  const state = {
    ...asked(params),
    prefix: params.get("prefix") ?? "",
    b: params.getAll("b"),
    pinned: params.get("pinned") ?? "",
    r: Number(params.get("r") ?? 0),
  };
  const address = (part) => {
    const next = { ...state, r: 0, ...part };
    return href("recommend", { ...next, k: next.k === 10 ? "" : next.k, r: next.r > 0 ? next.r : "" });
  };
  const change = (part) => go(address(part));
  const body = {
    history: state.h,
    k: state.k,
    filter_history: !state.repeat,
    prefix: tokensOf(state.prefix),
    shown: 8,
  };
  const [told, before] = await Promise.all([explained(body, signal), pinned(state, signal)]);
  const stage = h("div", { class: "stack" });
  const side = h("div", {});
  const room = width > 900 ? width - 340 : width;
  // Choosing a result only marks its way and its influences: nothing is asked again.
  const draw = (chosen) => {
    note(address({ r: chosen + 1 }));
    side.replaceChildren(editor(told, state, info, change, body, chosen));
    stage.replaceChildren(...results(told, before, state, { body, change, chosen, draw: redraw, room }));
  };
  const redraw = (chosen) => {
    draw(chosen);
    stage.querySelector(`[data-focus="rank-${Math.max(chosen, 0)}"]`)?.focus({ preventScroll: true });
  };
  draw(state.r - 1 < told.items.length ? state.r - 1 : -1);
  return h(
    "div",
    {},
    head("Recommend", "What comes after a history, and how it was found."),
    h("div", { class: "split left" }, side, stage),
  );
}

/** The answer with its search; decoders that do not search step by step give the list alone. */
async function explained(body, signal) {
  try {
    return await ask("v1/explain", { body, signal });
  } catch (error) {
    if (error.status !== 409 && error.status !== 422) throw error;
    const { prefix, shown, ...plain } = body;
    if (prefix.length) throw error;
    const answer = await ask("v1/recommend", { body: plain, signal });
    return {
      ...answer,
      steps: [],
      influences: [],
      prefix: [],
      history: body.history.map((item) => ({ item, title: item })),
      reason: error.message,
    };
  }
}

/** The list to compare with: the pinned history, or this one without the forced prefix. */
async function pinned(state, signal) {
  if (!state.pinned && !state.prefix) return null;
  const history = state.pinned ? state.b : state.h;
  return ask("v1/recommend", { body: { history, k: state.k, filter_history: !state.repeat }, signal });
}

function editor(told, state, info, change, body, chosen) {
  const influences = told.influences.map((i) => ({ item: i.item, value: chosen < 0 ? i.mean : i.results[chosen] }));
  return historyCard({
    state,
    shown: told.history,
    info,
    change,
    influences,
    of: chosen < 0 ? "" : told.items[chosen].title,
    curlOf: () => ["v1/explain", body],
  });
}

function results(told, before, state, { body, change, chosen, draw, room }) {
  const force = (tokens) => change({ prefix: tokens.join(",") });
  const forced = state.prefix
    ? h(
        "p",
        { class: "forced" },
        h("span", {}, "Only ids that begin like ", h("strong", {}, exampleOf(told) || state.prefix), "."),
        button("Search everywhere", () => change({ prefix: "" })),
      )
    : null;
  const list = told.items.length
    ? ranked(told.items, {
        steps: told.steps,
        before: before?.items,
        next: state.t,
        chosen,
        choose: told.steps.length ? draw : undefined,
        force,
        label: "Recommended items",
      })
    : empty("Nothing can be recommended.", h("p", {}, "Every item is filtered: allow repeats, or search everywhere."));
  const name = "Recommended";
  const pin = state.pinned
    ? button("Unpin", () => change({ b: [], pinned: "" }))
    : button("What if …", () => change({ b: state.h, pinned: "1" }), { title: "Keep this list beside the next one" });
  const mine = card(
    name,
    {
      sub: told.personal ? "probability and log-probability" : "No known item in the history: these are popular items.",
      exports: {
        name: "recommended",
        request: () => ["v1/recommend", (({ prefix, shown, ...plain }) => plain)(body)],
        rows: () => [
          ["rank", "item", "title", "score", "tokens"],
          ...told.items.map((i, n) => [n + 1, i.item, i.title, i.score, i.tokens]),
        ],
      },
    },
    h("div", { class: "buttons tools" }, pin),
    forced,
    list,
  );
  const other = before
    ? card(
        state.pinned ? "Pinned" : "Without the prefix",
        {
          sub: state.pinned ? "Change the history and compare" : "The same history, searched everywhere",
          exports: {
            name: "pinned",
            rows: () => [
              ["rank", "item", "title", "score"],
              ...before.items.map((i, n) => [n + 1, i.item, i.title, i.score]),
            ],
          },
        },
        state.pinned
          ? h(
              "div",
              { class: "buttons tools" },
              button("Back to it", () => change({ h: state.b, b: [], pinned: "", prefix: "" })),
            )
          : null,
        ranked(before.items, { next: state.t, label: "Items to compare with" }),
      )
    : null;
  const lists = other ? h("div", { class: "grid by-two" }, mine, other) : mine;
  return [lists, searchCard(told, { body, chosen, force, room })].filter(Boolean);
}

const exampleOf = (told) =>
  told.steps[told.prefix.length - 1]?.prefixes.find((p) => p.tokens.join() === told.prefix.join())?.example;

function searchCard(told, { body, chosen, force, room }) {
  if (!told.steps.length) {
    return told.personal
      ? card(
          "Search",
          {},
          empty("This run does not search step by step.", told.reason ? h("p", {}, told.reason) : null),
        )
      : null;
  }
  const paths = told.items.map((i) => i.tokens);
  const picture = beam(told.steps, paths, { width: room - 42, chosen: chosen < 0 ? [] : paths[chosen], force });
  const fates = Object.entries(FATES).map(([fate, text]) =>
    h(
      "li",
      {},
      h("i", { class: `swatch ${fate}` }),
      h("span", {}, h("strong", {}, fate), ` ${text.replace("cut: ", "")}`),
    ),
  );
  return card(
    "Search",
    {
      sub: "Each box is a prefix with its most popular item. Click one to search only below it.",
      exports: {
        name: "search",
        request: () => ["v1/explain", body],
        picture: () => picture,
        rows: () => [
          ["depth", "tokens", "codes", "score", "fate", "items", "example"],
          ...told.steps.flatMap((step) =>
            step.prefixes.map((p) => [step.depth + 1, p.tokens, p.codes, p.score, p.fate, p.items, p.example]),
          ),
        ],
      },
    },
    scroller("Search, depth by depth", picture),
    h("ul", { class: "fates" }, fates),
  );
}
