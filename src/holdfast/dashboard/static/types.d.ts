// The data that the server sends to the page's scripts, and what they make of it. Read by `tsc` alone; never served.

/** A held job, as `rows.JobRow` in dashboard/rows.py: fields with their default value are left out. */
interface JobRow {
  name: string;
  owner: string;
  token: number;
  since: number;
  beat: number;
  until: number;
  ttl: number;
  line?: number;
  unnamed?: boolean;
  note?: string;
  labels?: Record<string, string>;
  fields?: [key: string, value: string][];
  session?: string;
  bound?: boolean;
  own?: number;
}

/** A name, its fencing token, its last heartbeat, its end, its ttl, and when it would end without its session. */
type HeartbeatUpdate = [name: string, token: number, beat: number, until: number, ttl: number, own: number];

interface FreeJob {
  name: string;
  how?: string;
  owner?: string;
  by?: string;
  reason?: string;
  token?: number;
  at?: number;
}

/** A session and when it ends now; 0: it is over. */
type Kept = [session: string, until: number];

interface Totals {
  jobs: number;
  waiting: number;
  sessions: number;
}

/** An event `rows` of `/ui/live`. */
interface Frame {
  seq: number;
  now: number;
  rows: JobRow[];
  beats: HeartbeatUpdate[];
  gone: FreeJob[];
  kept: Kept[];
  totals?: Totals;
}

/** A page of `/ui/rows`. */
interface RowsReply {
  seq: number;
  now: number;
  rows: JobRow[];
  total: number;
  next_after?: string;
  totals?: Totals;
}

/** What a lease lives by, whoever shows it. */
interface Life {
  beat: number;
  until: number;
  ttl: number;
  own: number;
  ended: { how: string; by: string; at: number } | null;
}

/** A job in the list: a row with all its fields, and what the list knows of it. */
interface Job extends Required<JobRow>, Life {
  /** Counts changes: a row of the document with another version is written again. */
  version: number;
  isFresh: boolean;
  shownAt: number;
  goneAt: number;
  /** Everything that a word of a search may be found in; made when first needed. */
  text: string | undefined;
  /** In which round it was last put into the view. */
  round: number;
}

/** How the page is connected, see stream.js. */
interface LiveStatus {
  kind: "live" | "reconnecting" | "away" | "signed-out" | "refused";
  since: number;
  why: string;
}

type StreamMessage =
  | { kind: "status"; status: LiveStatus }
  | { kind: "hello" | "rows" | "resync"; data: string; seq?: number; now?: number };

interface Subscriber {
  /** Load everything now: what is told afterwards is newer than record `seq`, if it is known. */
  load?(seq?: number): void;
  rows?(frame: Frame): void;
  status?(status: LiveStatus): void;
}

interface TrustedScriptURL {}

interface Window {
  trustedTypes?: {
    createPolicy(
      name: string,
      rules: { createScriptURL(name: string): string },
    ): { createScriptURL(name: string): TrustedScriptURL };
  };
}

declare var trustedTypes: Window["trustedTypes"];
