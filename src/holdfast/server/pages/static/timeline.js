// The axis of a timeline in the reader's own zone. The drawing is the server's.

const DAY_MS = 86_400_000;
const MINUTE_MS = 60_000;
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const second = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** Write the reader's times at the marks below `root`. */
export function showAxis(root = document) {
  for (const mark of root.querySelectorAll("text[data-at]")) {
    const step = Number(mark.dataset.step);
    const format = step >= DAY_MS ? day : step >= MINUTE_MS ? minute : second;
    mark.textContent = format.format(Number(mark.dataset.at));
  }
}
