// Calls the service. Addresses are relative, so the page also works below a path of another server.

const KEY = "capsid-key";

/** An answer that is not 2xx, in the words of the service. */
export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `the service answered ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
    this.hint = error?.hint ?? "";
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

function headers(body) {
  const out = {};
  if (body !== undefined) out["content-type"] = "application/json";
  if (key.get()) out.authorization = `Bearer ${key.get()}`;
  return out;
}

/** Ask for a path; with a body it is a POST. */
export async function ask(path, { body, signal } = {}) {
  const options = { headers: headers(body), signal };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  const answer = await fetch(path, options).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { message: "the service cannot be reached", hint: "is it still running?" });
  });
  const value = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, value?.error);
  return value;
}

/** Server-sent events of a path; unlike EventSource, fetch can send a key. */
export async function* events(path, signal) {
  const answer = await fetch(path, { headers: headers(), signal });
  if (!answer.ok) throw new Refused(answer.status, (await answer.json().catch(() => null))?.error);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
  }
}

/** The same request as a line for a shell. */
export function curl(path, body) {
  const parts = ["curl -s", quoted(new URL(path, document.baseURI).href)];
  if (key.get()) parts.push('-H "authorization: Bearer $CAPSID_API_KEY"');
  if (body !== undefined) parts.push("-H 'content-type: application/json'", "-d", quoted(JSON.stringify(body)));
  return parts.join(" ");
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A path with a query; undefined values are left out. */
export function path(base, query = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== "") params.set(name, value);
  return params.size ? `${base}?${params}` : base;
}
