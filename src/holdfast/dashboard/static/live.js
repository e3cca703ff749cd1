// @ts-check
// What looks different now, for any page: `subscribe` is told rows as they change, and whether they are live.
//
//   import { subscribe } from "./live.js";
//   const leave = subscribe({
//     load(seq) {},               // load everything now; what is told afterwards is newer than record `seq`, if it is known
//     rows(frame) {},             // {seq, now, rows, beats, gone, kept, totals}, see types.d.ts
//     status(status) {},          // {kind, since, why}, see stream.js
//   });
//
// The word for it in the head of the page is written here.
//
// All tabs of one who is signed in share one stream. It is read by a shared worker, and where there is none by one of
// the tabs: whoever holds a lock reads, and tells the others over a channel. When that tab closes, another has the lock.

import { showSignedOut, workerAddress } from "./api.js";
import { learnServerTime, serverNow } from "./clock.js";
import { showLive, showTotals } from "./page.js";
import { Stream } from "./stream.js";

/** @type {Set<Subscriber>} */
const subscribers = new Set();
/** @type {LiveStatus} */
let status = { kind: "reconnecting", since: Date.now(), why: "" };
/** @type {OfWorker | OfTabs | OfOne | null} */
let source = null;

/** @param {Subscriber} subscriber */
export function subscribe(subscriber) {
  subscribers.add(subscriber);
  subscriber.status?.(status);
  if (source === null) {
    source = newSource();
    source.open();
  } else if (status.kind === "live") {
    subscriber.load?.();
  }
  return () => subscribers.delete(subscriber);
}

/** Try again immediately. */
export function again() {
  source?.again();
}

export function liveStatus() {
  return status;
}

// A message takes time to arrive, so what it says of the server's clock is late, never early: the latest is the best.
// Where all is to be looked at anew, that clock may have been set: what is heard next is believed, whatever it says.
let isTimeOpen = false;

/** @param {number} serverMs */
export function heardAt(serverMs, isFirst = false) {
  if (!isFirst && !isTimeOpen && serverMs <= serverNow()) return;
  isTimeOpen = false;
  learnServerTime(serverMs);
}

// A page that was just opened is as new as can be: that its stream is still being opened is said when it takes long.
const OPENING_MS = 1_000;
let wasLive = false;

function tellStatus() {
  wasLive ||= status.kind === "live";
  const openingMs = Date.now() - status.since;
  if (!wasLive && status.kind === "reconnecting" && openingMs < OPENING_MS) setTimeout(showStatus, OPENING_MS - openingMs);
  else showStatus();
  for (const each of subscribers) each.status?.(status);
}

function showStatus() {
  // When it was by the server's clock, as all times here: the reader's own may be wrong.
  showLive(status.kind, status.kind === "live" ? undefined : status.since + serverNow() - Date.now());
  document.getElementById("live")?.setAttribute("title", status.why);
  if (status.kind === "signed-out") showSignedOut();
}

/** @param {StreamMessage} message */
function hear(message) {
  if (message.kind === "status") {
    ({ status } = message);
    tellStatus();
  } else if (message.kind === "hello") {
    const { now, seq } = message.data ? JSON.parse(message.data) : message;
    if (now !== undefined) heardAt(now, true);
    for (const each of subscribers) each.load?.(seq);
  } else if (message.kind === "resync") {
    isTimeOpen = true;
    for (const each of subscribers) each.load?.();
  } else if (message.kind === "rows") {
    const frame = JSON.parse(message.data);
    for (const kind of ["rows", "beats", "gone", "kept"]) frame[kind] ??= [];
    heardAt(frame.now);
    if (frame.totals) showTotals(frame.totals);
    for (const each of subscribers) each.rows?.(frame);
  }
}

// Who reads the stream.

function newSource() {
  // Named after who is signed in: another one's tabs must not be told what this one may see.
  const { may, prefix } = document.body.dataset;
  const name = ["holdfast", document.querySelector("#menu summary")?.textContent ?? "", may, prefix ?? "*"].join(" ");
  if (typeof SharedWorker === "function") {
    try {
      return new OfWorker(name);
    } catch {
      // Forbidden here: the tabs do it among themselves.
    }
  }
  return typeof BroadcastChannel === "function" && navigator.locks ? new OfTabs(name) : new OfOne();
}

class OfWorker {
  #port;

  /** @param {string} name */
  constructor(name) {
    const worker = new SharedWorker(workerAddress("stream.js"), { type: "module", name });
    this.#port = worker.port;
    this.#port.onmessage = ({ data }) => hear(data);
    worker.onerror = () => this.#fallBack();
    addEventListener("pagehide", () => this.#port.postMessage("leave"));
    addEventListener("pageshow", (event) => event.persisted && this.open());
  }

  open() {
    this.#port.postMessage("enter");
  }

  again() {
    this.#port.postMessage("again");
  }

  #fallBack() {
    if (source !== this) return;
    source = new OfOne();
    source.open();
  }
}

class OfTabs {
  #channel;
  /** @type {Stream | null} */
  #stream = null;
  #name;

  /** @param {string} name */
  constructor(name) {
    this.#name = name;
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = ({ data }) => {
      if (data === "again") this.#stream?.again();
      else if (data !== "enter") hear(data);
      else if (this.#stream !== null) this.#greet(this.#stream);
    };
  }

  open() {
    this.#channel.postMessage("enter");
    navigator.locks.request(this.#name, () => {
      this.#stream = new Stream((message) => {
        this.#channel.postMessage(message);
        hear(message);
      });
      // Never over: the lock is held until the tab is gone.
      return this.#stream.run();
    });
  }

  again() {
    this.#stream?.again();
    this.#channel.postMessage("again");
  }

  /** @param {Stream} stream */
  #greet(stream) {
    this.#channel.postMessage({ kind: "status", status: stream.status });
    if (stream.status.kind === "live") this.#channel.postMessage(stream.greeting);
  }
}

class OfOne {
  #stream = new Stream(hear);

  open() {
    this.#stream.run();
  }

  again() {
    this.#stream.again();
  }
}

addEventListener("online", again);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && again());
