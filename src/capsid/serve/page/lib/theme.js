// Light, dark, or as the system says. The choice is kept in this browser.

const KEY = "capsid-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

/** The present choice. */
export const theme = () => localStorage.getItem(KEY) ?? "system";

/** Apply the choice to the page. */
export function apply() {
  const chosen = theme();
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

/** Choose the next one. */
export function turn() {
  localStorage.setItem(KEY, NEXT[theme()]);
  apply();
  return theme();
}
