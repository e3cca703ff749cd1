// @ts-check
// Asking the server: the same API that everybody uses, with the cookie of this page and the header that only it can send.

const WORKER = /^[a-z_-]+\.js$/;
const HERE_EVERY_MS = 1_800_000;

/** An answer that is a refusal. `code` and `details` are the server's; `status` is 0 if there was no answer. */
export class Refusal extends Error {
  /**
   * @param {number} status
   * @param {string} code
   * @param {string} details
   */
  constructor(status, code, details) {
    super(details);
    this.status = status;
    this.code = code;
  }
}

/**
 * Ask for `path`. Returns the JSON that came, or throws a `Refusal`.
 * @param {string} path
 * @param {{ signal?: AbortSignal }} options
 */
export async function ask(path, { signal } = {}) {
  const headers = { "X-Holdfast-Page": "1", Accept: "application/json" };
  let answer;
  try {
    answer = await fetch(path, { headers, signal, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal(0, "away", "The server cannot be reached.");
  }
  const text = await answer.text();
  const said = text === "" ? null : parsed(text);
  if (answer.ok) return said;
  if (answer.status === 401) showSignedOut();
  throw new Refusal(answer.status, said?.code ?? "unknown", said?.details ?? `The server answered ${answer.status}.`);
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/**
 * The address of a job's page. Browsers take the name `.` for this folder, however it is written.
 * @param {string} name
 */
export function jobPath(name) {
  if (name === ".") return "/ui/jobs?name=.";
  return `/ui/jobs/${encodeURIComponent(name)}`;
}

/** Tell the reader that nothing will be answered any more until they sign in again. */
export function showSignedOut() {
  const notice = document.getElementById("signed-out");
  if (notice !== null) notice.hidden = false;
  document.dispatchEvent(new CustomEvent("holdfast:signed-out"));
}

/** Renew the cookie now and then: a page on a wall asks for no other page. */
export function staySignedIn() {
  setInterval(async () => {
    try {
      const said = await ask("/ui/here");
      if (said?.signed_in === false) showSignedOut();
    } catch {
      // The server is away: whoever listens to it says so.
    }
  }, HERE_EVERY_MS);
}

/** @param {string} name */
function workerURL(name) {
  if (!WORKER.test(name)) throw new TypeError(`${name} is not one of our workers`);
  return new URL(name, import.meta.url).href;
}

const policy = globalThis.trustedTypes?.createPolicy("holdfast", { createScriptURL: workerURL });

/**
 * The address of a worker's module beside this one, as `new SharedWorker(…)` takes it under our policy.
 * @param {string} name
 * @returns {string}
 */
export function workerAddress(name) {
  // A browser takes a TrustedScriptURL wherever it takes this string; TypeScript does not know that.
  return policy === undefined ? workerURL(name) : /** @type {any} */ (policy.createScriptURL(name));
}
