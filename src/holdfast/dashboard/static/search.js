// @ts-check
// What the search field understands, and how the list is sorted. dashboard/rows.py reads a search the same way, for
// lists that are too long for a browser, and says what each term means.

const CHARS_MAX = 512;
const TERMS_MAX = 16;
const UNFINISHED = new Set(["prefix:", "owner:", "label:"]);

/**
 * @typedef {{
 *   prefix: string, outside: boolean, owners: string[], labels: [key: string, value: string | null][], words: string[]
 * }} Search
 * @typedef {{ kind: string, isReversed: boolean }} Sort
 * @typedef {{
 *   name: string, owner: string, note: string, labels: Record<string, string>, fields: [string, string][], text?: string
 * }} Searched
 */

/** @param {string} text */
export function readSearch(text) {
  /** @type {Search} */
  const search = { prefix: "", outside: false, owners: [], labels: [], words: [] };
  const terms = text.slice(0, CHARS_MAX).matchAll(/(?:(prefix|owner|label):)?(?:"([^"]*)"?|(\S+))/g);
  let number = 0;
  for (const [, kind, quoted, plain] of terms) {
    if (number++ >= TERMS_MAX) break;
    const value = quoted ?? plain ?? "";
    if (!value || (kind === undefined && UNFINISHED.has(value))) continue;
    if (kind === "prefix") {
      search.outside ||= !(value.startsWith(search.prefix) || search.prefix.startsWith(value));
      if (value.length > search.prefix.length) search.prefix = value;
    } else if (kind === "owner") {
      search.owners.push(value.toLowerCase());
    } else if (kind === "label") {
      const colon = value.indexOf(":");
      search.labels.push(colon < 0 ? [value, null] : [value.slice(0, colon), value.slice(colon + 1)]);
    } else {
      search.words.push(value.toLowerCase());
    }
  }
  return search;
}

/**
 * The one name that was typed, alone or behind `prefix:`; empty if it is another search.
 * @param {string} text
 */
export function nameIn(text) {
  const term = /^(?:(prefix|owner|label):)?(?:"([^"]*)"?|(\S+))$/.exec(text.trim());
  if (term === null || term[1] === "owner" || term[1] === "label") return "";
  return term[2] ?? term[3] ?? "";
}

/** @param {Search} search */
export function isEmpty(search) {
  return !search.prefix && !search.owners.length && !search.labels.length && !search.words.length;
}

/**
 * @param {Search} search
 * @param {Searched} row
 */
export function fits(search, row) {
  if (search.outside || !row.name.startsWith(search.prefix)) return false;
  if (search.owners.length) {
    const owner = row.owner.toLowerCase();
    if (!search.owners.every((each) => owner.startsWith(each))) return false;
  }
  for (const [key, value] of search.labels) {
    const has = Object.hasOwn(row.labels, key);
    if (!has || (value !== null && row.labels[key] !== value)) return false;
  }
  if (!search.words.length) return true;
  const text = (row.text ??= textOf(row));
  return search.words.every((word) => text.includes(word));
}

/** @param {Searched} row */
function textOf(row) {
  const labels = Object.entries(row.labels).map(([key, value]) => `${key}:${value}`);
  const fields = row.fields.map(([key, value]) => `${key}=${value}`);
  return [row.name, row.owner, row.note, ...labels, ...fields].join("\n").toLowerCase();
}

/**
 * By code point: a locale would take long, and differs from browser to browser.
 * @param {{ name: string }} a
 * @param {{ name: string }} b
 */
const byName = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);

/**
 * What an operator looks for first comes first: held longest, heard of longest ago, ending first, most waited for.
 * @type {Record<string, (a: Required<JobRow>, b: Required<JobRow>) => number>}
 */
const ORDERS = {
  name: byName,
  owner: (a, b) => (a.owner < b.owner ? -1 : a.owner > b.owner ? 1 : byName(a, b)),
  held: (a, b) => a.since - b.since || byName(a, b),
  heartbeat: (a, b) => a.beat - b.beat || byName(a, b),
  time_left: (a, b) => a.until - b.until || byName(a, b),
  queue: (a, b) => b.line - a.line || byName(a, b),
};

/**
 * @param {string} text
 * @returns {Sort}
 */
export function readSort(text) {
  const kind = text.replace(/^-/, "");
  return Object.hasOwn(ORDERS, kind) ? { kind, isReversed: text.startsWith("-") } : { kind: "name", isReversed: false };
}

/** @param {Sort} sort */
export function writeSort({ kind, isReversed }) {
  return (isReversed ? "-" : "") + kind;
}

/**
 * @param {Sort} sort
 * @returns {(a: Required<JobRow>, b: Required<JobRow>) => number}
 */
export function orderOf({ kind, isReversed }) {
  const order = ORDERS[kind] ?? byName;
  return isReversed ? (a, b) => order(b, a) : order;
}
