/**
 * Server-sent events of one answer, or lines of JSON: written as fast as they are read, and given up where nobody reads
 * them.
 */
import type { StreamingApi } from 'hono/utils/stream';

/** A reader that takes nothing for so long does not get the rest. */
export const STALLED_MS = 15_000;
/** How often a comment is sent, so that nobody between takes the connection for dead while a long prompt is read. */
const HEARTBEAT_MS = 10_000;

export const EVENT_HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'x-accel-buffering': 'no',
} as const;

export const LINE_HEADERS = { ...EVENT_HEADERS, 'content-type': 'application/x-ndjson' } as const;

export class EventStream {
  readonly #out: StreamingApi;
  readonly #leave: () => void;
  readonly #stalledMs: number;
  readonly #heart: NodeJS.Timeout | undefined;
  readonly #isLines: boolean;
  #queue: Promise<void> = Promise.resolve();

  /** `leave` is called once the reader has taken nothing for `stalledMs`. isLines: each is a line of JSON, no event. */
  constructor(out: StreamingApi, leave: () => void, stalledMs: number = STALLED_MS, isLines = false) {
    this.#isLines = isLines;
    this.#out = out;
    this.#leave = leave;
    this.#stalledMs = stalledMs;
    // Lines of JSON have no comments.
    if (!isLines) this.#heart = setInterval(() => void this.#write(': keep-alive\n\n'), HEARTBEAT_MS);
  }

  /** Sends one event, behind those before it. Resolves when it was taken. */
  send(data: object | '[DONE]', event?: string): Promise<void> {
    const text = typeof data === 'string' ? data : JSON.stringify(data);
    if (this.#isLines) return this.#write(`${text}\n`);
    return this.#write(`${event === undefined ? '' : `event: ${event}\n`}data: ${text}\n\n`);
  }

  /** What follows the last event is nothing. */
  async end(): Promise<void> {
    clearInterval(this.#heart);
    await this.#queue;
  }

  #write(text: string): Promise<void> {
    this.#queue = this.#queue.then(async () => {
      if (this.#out.aborted) return;
      const stalled = setTimeout(() => {
        this.#leave();
        this.#out.abort();
      }, this.#stalledMs);
      try {
        await this.#out.write(text);
      } finally {
        clearTimeout(stalled);
      }
    });
    return this.#queue;
  }
}
