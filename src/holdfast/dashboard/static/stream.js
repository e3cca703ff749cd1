// @ts-check
// The page's stream, once for a browser: opens it, reads its frames, and opens it again when it breaks.
// There is no document here: this runs in a shared worker (the end of this file), or in the one tab that reads for all
// (live.js). HTTP/1.1 allows six connections to a server, and every tab with a stream of its own would take one for good.
//
// tell({kind: "status", status}) says how it is:
//   live          what is shown is how things are
//   reconnecting  it broke, and is being opened again
//   away          that did not go well for AWAY_MS
//   signed-out    the server does not know us any more
//   refused       it knows us and has a reason, which is in `why`
// tell({kind: "hello" | "rows" | "resync", data}) passes frames on, their JSON as text.
//
// `greeting` is a hello for whoever comes later: it says as of which record the last frame was.

const QUIET_MS = 40_000; // The server says something every 15 seconds. After so long without it the line is dead.
const AWAY_MS = 8_000;
const REST_MS = [250, 500, 1_000, 2_000, 4_000, 8_000];
const REST_SIGNED_OUT_MS = 20_000;
const SEQ = /^\{"seq":(\d+)/; // Each frame begins with it: the whole of it is read by those who show it.

export class Stream {
  #tell;
  #tries = 0;
  #isOver = false;
  /** @type {AbortController | null} */
  #abort = null;
  /** @type {(() => void) | null} */
  #wake = null;
  /** @type {number | null} */
  #away = null;
  /** @type {number | undefined} */
  #seq;
  /** @type {LiveStatus} */
  status = { kind: "reconnecting", since: Date.now(), why: "" };

  /** @param {(message: StreamMessage) => void} tell */
  constructor(tell) {
    this.#tell = tell;
  }

  async run() {
    this.#broke();
    while (!this.#isOver) {
      let rest = 0;
      try {
        rest = await this.#once();
      } catch {
        // It could not be opened, or it broke. Both are told by the status.
      }
      if (this.#isOver) return;
      this.#broke();
      await this.#pause(rest || this.#nextRest());
    }
  }

  stop() {
    this.#isOver = true;
    if (this.#away !== null) clearTimeout(this.#away);
    this.#abort?.abort();
    this.#wake?.();
  }

  /** Try immediately: somebody looks, or the network is back. */
  again() {
    if (this.status.kind !== "live") {
      this.#tries = 0;
      this.#wake?.();
    }
  }

  /** @returns {StreamMessage} */
  get greeting() {
    return { kind: "hello", data: "", seq: this.#seq };
  }

  /** Open it and read it to its end. Returns how long to rest, 0 for the usual time. */
  async #once() {
    const abort = (this.#abort = new AbortController());
    let quiet = setTimeout(() => abort.abort(), QUIET_MS);
    const heard = () => {
      clearTimeout(quiet);
      quiet = setTimeout(() => abort.abort(), QUIET_MS);
    };
    try {
      const answer = await fetch("/ui/live", {
        headers: { Accept: "text/event-stream" },
        cache: "no-store",
        credentials: "same-origin",
        redirect: "error",
        signal: abort.signal,
      });
      if (answer.status === 401) return this.#stay("signed-out", "");
      if (answer.status === 403 || answer.status === 429) return this.#stay("refused", await reasonOf(answer));
      if (answer.ok && isStream(answer) && answer.body) await this.#read(answer.body, heard);
      return 0;
    } finally {
      clearTimeout(quiet);
      abort.abort();
    }
  }

  /**
   * @param {ReadableStream<Uint8Array<ArrayBuffer>>} body
   * @param {() => void} heard
   */
  async #read(body, heard) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    /** @type {string[]} */
    let pieces = [];
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      // A frame may come in many pieces: they are joined when its end is there, not before.
      const tail = pieces.at(-1)?.slice(-1) ?? "";
      if (!(tail + value).includes("\n\n")) {
        pieces.push(value);
        continue;
      }
      const frames = (pieces.join("") + value).split("\n\n");
      pieces = [frames.pop() ?? ""];
      for (const frame of frames) this.#frame(frame);
    }
  }

  /** @param {string} text */
  #frame(text) {
    let kind = "";
    let data = "";
    for (const line of text.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (!data) return;
    const seq = SEQ.exec(data);
    if (seq !== null) this.#seq = Number(seq[1]);
    if (kind === "hello") {
      this.#tries = 0;
      this.#say("live");
    }
    if (kind === "hello" || kind === "rows" || kind === "resync") this.#tell({ kind, data });
  }

  #broke() {
    if (this.status.kind === "live" || this.#away === null) this.#say("reconnecting");
    if (this.status.kind === "reconnecting" && this.#away === null) {
      this.#away = setTimeout(() => this.#say("away", "", this.status.since), AWAY_MS);
    }
  }

  /**
   * @param {LiveStatus["kind"]} kind
   * @param {string} why
   */
  #stay(kind, why) {
    if (this.status.kind !== kind) this.#say(kind, why);
    return REST_SIGNED_OUT_MS;
  }

  /** @param {LiveStatus["kind"]} kind */
  #say(kind, why = "", since = Date.now()) {
    if (kind !== "reconnecting" && this.#away !== null) clearTimeout(this.#away);
    if (kind === "live") this.#away = null;
    this.status = { kind, since, why };
    this.#tell({ kind: "status", status: this.status });
  }

  #nextRest() {
    const most = REST_MS[Math.min(this.#tries, REST_MS.length - 1)] ?? 0;
    this.#tries += 1;
    // Not all browsers of a house at the same moment.
    return most * (0.5 + Math.random() / 2);
  }

  /**
   * @param {number} ms
   * @returns {Promise<void>}
   */
  #pause(ms) {
    return new Promise((done) => {
      const timer = setTimeout(done, ms);
      this.#wake = () => {
        clearTimeout(timer);
        done();
      };
    });
  }
}

/** @param {Response} answer */
function isStream(answer) {
  return (answer.headers.get("Content-Type") || "").startsWith("text/event-stream");
}

/** @param {Response} answer */
async function reasonOf(answer) {
  try {
    return String((await answer.json()).details || "");
  } catch {
    return "";
  }
}

// As a shared worker: one stream for all tabs of a browser.

function serveTabs() {
  /** @type {Set<MessagePort>} */
  const ports = new Set();
  /** @type {Stream | null} */
  let stream = null;

  /** @param {MessagePort} port */
  function enter(port) {
    ports.add(port);
    if (stream === null) {
      stream = new Stream((message) => ports.forEach((each) => each.postMessage(message)));
      stream.run();
      return;
    }
    port.postMessage({ kind: "status", status: stream.status });
    // Whatever comes from here on reaches this tab too: it may load what there is.
    if (stream.status.kind === "live") port.postMessage(stream.greeting);
  }

  /** @param {MessagePort} port */
  function leave(port) {
    ports.delete(port);
    if (ports.size > 0) return;
    stream?.stop();
    stream = null;
  }

  addEventListener("connect", (event) => {
    const [port] = /** @type {MessageEvent} */ (event).ports;
    if (port === undefined) return;
    port.onmessage = ({ data }) => {
      if (data === "enter") enter(port);
      else if (data === "leave") leave(port);
      else if (data === "again") stream?.again();
    };
  });
}

if (!("document" in globalThis)) serveTabs();
