// A shared worker: one stream for all tabs of a browser. HTTP/1.1 allows six connections to a server, and every tab
// with a stream of its own would take one of them for good.

import { Stream } from "./stream.js";

const ports = new Set();
let stream = null;

function tell(message) {
  for (const port of ports) port.postMessage(message);
}

function enter(port) {
  ports.add(port);
  if (stream === null) {
    stream = new Stream(tell);
    stream.run();
    return;
  }
  port.postMessage({ kind: "status", status: stream.status });
  // Whatever comes from here on reaches this tab too: it may load what there is.
  if (stream.status.kind === "live") port.postMessage(stream.greeting);
}

function leave(port) {
  ports.delete(port);
  if (ports.size === 0 && stream !== null) {
    stream.stop();
    stream = null;
  }
}

self.onconnect = (event) => {
  const port = event.ports[0];
  port.onmessage = ({ data }) => {
    if (data === "enter") enter(port);
    else if (data === "leave") leave(port);
    else if (data === "again") stream?.again();
  };
};
