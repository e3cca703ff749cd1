// Forms of a job's page: they work without this. With it, one that was sent cannot be sent twice, and a link leads to it.

/** Open the form that the address names, and let its reader write the reason. */
export function openNamed() {
  const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!(wanted instanceof HTMLDetailsElement)) return;
  wanted.open = true;
  wanted.scrollIntoView({ block: "nearest" });
  wanted.querySelector("input:not([type=hidden]), textarea")?.focus();
}

/** Open the form for a verb, if it is offered. */
export function openOffer(verb) {
  const offer = document.getElementById(verb);
  if (!(offer instanceof HTMLDetailsElement)) return false;
  location.hash = verb;
  openNamed();
  return true;
}

function sent(event) {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || form.closest(".offer") === null) return;
  if (form.dataset.sent !== undefined) {
    event.preventDefault();
    return;
  }
  form.dataset.sent = "";
  for (const button of form.querySelectorAll("button")) button.setAttribute("aria-disabled", "true");
}

document.addEventListener("submit", sent);
addEventListener("hashchange", openNamed);
// A page that the browser kept, and shows again after "back", can be sent once more.
addEventListener("pageshow", (event) => {
  if (event.persisted) for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});
openNamed();
// The browser itself goes to where the address leads when all is loaded, and takes the focus away from the field.
addEventListener("load", () => setTimeout(() => { if (document.activeElement === document.body) openNamed(); }));
