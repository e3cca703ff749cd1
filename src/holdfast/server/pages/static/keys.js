// Keys. A room adds its own with `addKey`; the list of all of them is one key away.

const keys = new Map();

/** Let a key do something, and stand in the list as `text`. Never while the reader is writing. */
export function addKey(key, text, action) {
  keys.set(key, { text, action });
}

/** Take a key back. */
export function removeKey(key) {
  keys.delete(key);
}

// A slider or a box to tick takes no letters.
function isWriting(target) {
  const fields = "input:not([type=range], [type=checkbox], [type=radio]), textarea, select";
  return target instanceof HTMLElement && (target.isContentEditable || target.matches(fields));
}

/** Show the list of all keys. */
export function showKeys() {
  const dialog = document.getElementById("keys");
  if (dialog === null || dialog.open) return;
  const list = dialog.querySelector("dl");
  list.replaceChildren();
  for (const [key, { text }] of keys) {
    const term = document.createElement("dt");
    const cap = document.createElement("kbd");
    cap.textContent = key;
    term.append(cap);
    const meaning = document.createElement("dd");
    meaning.textContent = text;
    list.append(term, meaning);
  }
  dialog.showModal();
}

function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (isWriting(event.target)) {
    if (event.key === "Escape") {
      // A browser would empty the field, and the search would be lost.
      event.preventDefault();
      event.target.blur();
    }
    return;
  }
  if (document.querySelector("dialog[open]") !== null) return;
  const known = keys.get(event.key);
  if (known === undefined) return;
  // On a link or a button, Enter is its own.
  if (event.key === "Enter" && event.target instanceof HTMLElement && event.target.matches("a, button, summary")) return;
  event.preventDefault();
  known.action(event);
}

/** Begin. */
export function startKeys() {
  addKey("?", "all keys", showKeys);
  document.addEventListener("keydown", pressed);
  document.getElementById("show-keys")?.addEventListener("click", showKeys);
  document.getElementById("keys")?.addEventListener("click", (event) => {
    if (event.target === event.currentTarget) event.currentTarget.close();
  });
}
