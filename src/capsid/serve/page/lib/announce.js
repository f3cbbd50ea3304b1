// One line at the foot of the page that says what has just happened, also to screen readers.

const line = document.createElement("div");
line.className = "announce";
line.setAttribute("role", "status");
let timer = 0;

/** The line itself, for the shell to place. */
export const announcer = line;

/** Say something for a few seconds. */
export function announce(text) {
  line.textContent = text;
  line.classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => line.classList.remove("shown"), 2500);
}
