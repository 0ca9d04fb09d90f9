/**
 * Decisions as server-sent events (the format of the HTML standard). A client first gets what it has missed, as fast as
 * it reads, and from then on what is written. One that does not read is dropped: its events would otherwise fill the
 * memory, and it can come back for them with Last-Event-ID.
 */
import type { ServerResponse } from 'node:http';
import { KvError } from '../../native/index.ts';
import type { ToldDecision } from './follow.ts';
import type { LogReader } from './reader.ts';

/** Limits of clients that follow decisions. */
export interface StreamRules {
  /** Clients at one time. */
  readonly clientsMax: number;
  /** A client that has not taken what waits for it after so long is dropped. */
  readonly stalledMs: number;
  /** A comment is sent so often, so that nobody between takes the connection for dead. */
  readonly heartbeatMs: number;
}

/** How many places whoever asks may have. */
export interface Places {
  readonly who: string;
  readonly most: number;
}

/** Throws 'busy' where no place is left, or none for whoever asks. taken: who has one, each as often as they have. */
export function checkPlaces({ who, most }: Places, clientsMax: number, taken: Iterable<string>, what: string): void {
  const all = [...taken];
  const hint = 'try again later';
  if (all.length >= clientsMax)
    throw new KvError('busy', `${clientsMax} clients follow ${what} already`, { values: { clientsMax }, hint });
  if (all.filter((one) => one === who).length >= most)
    throw new KvError('busy', `${most} clients of this key follow ${what} already`, {
      values: { streamsMax: most },
      hint,
    });
}

/** Missed decisions that are read from the log at once. */
const BACKLOG_ROWS = 500;
/** A client that was cut off waits so long before it comes back. */
const RETRY_MS = 2000;

export interface StreamRequest extends Places {
  readonly after: string | null;
  readonly session?: string;
}

const eventText = ({ id, row }: ToldDecision): string => `id: ${id}\nevent: decision\ndata: ${JSON.stringify(row)}\n\n`;

export class Streams {
  readonly #reader: LogReader;
  readonly #rules: StreamRules;
  readonly #onDropped: () => void;
  readonly #responses = new Map<ServerResponse, string>();

  /** `onDropped` is called for every client that was too slow. */
  constructor(reader: LogReader, rules: StreamRules, onDropped: () => void) {
    this.#reader = reader;
    this.#rules = rules;
    this.#onDropped = onDropped;
  }

  /** Cuts off all of them: nothing more will be told. */
  end(): void {
    for (const response of this.#responses.keys()) response.destroy();
  }

  /** Clients that are connected. */
  get open(): number {
    return this.#responses.size;
  }

  /** Serves one client until it goes. Throws before anything was sent: 'busy', and what Follower.after throws. */
  async serve(
    { after, session, ...places }: StreamRequest,
    response: ServerResponse,
    headers: Readonly<Record<string, string>>,
  ): Promise<void> {
    const { clientsMax, heartbeatMs, stalledMs } = this.#rules;
    checkPlaces(places, clientsMax, this.#responses.values(), 'the decisions');
    this.#responses.set(response, places.who);
    const place = { id: after, isLive: false };
    let onBehind = (): void => {};
    let fullSinceMs: number | null = null;
    const write = (text: string): void => {
      if (!response.write(text)) fullSinceMs ??= performance.now();
    };
    const tell = (decisions: readonly ToldDecision[]): void => {
      const wanted = decisions.filter(({ row }) => session === undefined || row.session === session);
      if (wanted.length > 0) write(wanted.map(eventText).join(''));
    };
    response.on('drain', () => {
      fullSinceMs = null;
    });
    // Before the log is asked, so that it goes on telling while this client catches up.
    const leave = this.#reader.watch((decisions) => {
      if (!place.isLive) return;
      tell(decisions);
      place.id = decisions.at(-1)!.id;
      // What follows is read from the log again when this has been taken, so no more than one piece ever waits here.
      place.isLive = fullSinceMs === null;
      if (!place.isLive) onBehind();
    });
    const gone = new Promise<void>((resolve) => response.once('close', resolve));
    const heart = setInterval(
      () => {
        if (fullSinceMs === null) {
          if (response.headersSent) write(':\n\n');
        } else if (performance.now() - fullSinceMs > stalledMs) {
          this.#onDropped();
          response.destroy();
        }
      },
      Math.min(heartbeatMs, stalledMs),
    );
    try {
      while (!response.destroyed) {
        const told = await this.#reader.ask('after', {
          id: place.id,
          limit: BACKLOG_ROWS,
          ...(session === undefined ? {} : { session }),
        });
        if (!response.headersSent) {
          response.writeHead(200, headers);
          write(`retry: ${RETRY_MS}\n\n`);
        }
        tell(told.decisions);
        Object.assign(place, { id: told.id, isLive: told.isLive && fullSinceMs === null });
        const behind = new Promise<void>((resolve) => {
          onBehind = resolve;
        });
        if (place.isLive) await Promise.race([gone, behind]);
        if (fullSinceMs !== null) await Promise.race([gone, new Promise((resolve) => response.once('drain', resolve))]);
      }
    } finally {
      clearInterval(heart);
      leave();
      this.#responses.delete(response);
    }
  }
}
