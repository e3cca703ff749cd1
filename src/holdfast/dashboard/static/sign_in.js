// @ts-check
// The sign-in page asks once whether its reader is signed in already: with a link from another site the browser sent no
// cookie, and sends it with what this page asks. Until that is known the field is not shown.
"use strict";
(() => {
  const root = document.documentElement;
  const MARK = "holdfast-loaded-again";
  const AGAIN_AFTER_MS = 10_000;

  function isFresh() {
    try {
      const last = Number(sessionStorage.getItem(MARK) ?? 0);
      return Date.now() - last > AGAIN_AFTER_MS;
    } catch {
      return false; // Where nothing is kept, it could go round in a circle.
    }
  }

  function show() {
    delete root.dataset.asking;
    document.getElementById("token")?.focus();
  }

  async function ask() {
    try {
      const answer = await fetch("/ui/here", { cache: "no-store", signal: AbortSignal.timeout(3_000) });
      const said = await answer.json();
      if (said.signed_in === true && document.querySelector(".notice") === null) {
        sessionStorage.setItem(MARK, String(Date.now()));
        location.reload();
        return;
      }
    } catch {
      // Whatever is wrong, the field is what helps.
    }
    show();
  }

  if (location.pathname !== "/ui/sign-in" && isFresh()) {
    root.dataset.asking = "";
    document.addEventListener("DOMContentLoaded", ask);
  }
})();
