// The state of the page is its address: #/view?name=value. Lists repeat a name; prefixes are tokens with commas.

const DEFAULT = "catalogue";

/** The view and its parameters. */
export function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: path || DEFAULT, params: new URLSearchParams(query ?? "") };
}

/** The address of a view. Empty values are left out. */
export function href(view, values = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "" && one !== false) params.append(name, one);
    }
  }
  const query = params.toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Go to an address; the shell shows it. */
export function go(address) {
  if (location.hash === address) dispatchEvent(new HashChangeEvent("hashchange"));
  else location.hash = address;
}

/** Change the address without a new entry in the history and without showing it again. */
export function note(address) {
  history.replaceState(null, "", address);
}

/** Tokens of a prefix as the address holds them. */
export const tokensOf = (text) => (text ? text.split(",").map(Number).filter(Number.isInteger) : []);

/** What Recommend and Compare share: a history and how it is asked about. */
export function asked(params) {
  return {
    h: params.getAll("h"),
    k: Math.min(Math.max(Number.parseInt(params.get("k") ?? "10", 10) || 10, 1), 100),
    repeat: params.get("repeat") ? "1" : "",
    t: params.get("t") ?? "",
  };
}
