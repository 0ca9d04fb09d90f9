/**
 * Snapshots of what a server does, as server-sent events: sessions, pools and the engine's load. One is made a second,
 * for all readers together, and only while somebody reads.
 */
import type { ServerResponse } from 'node:http';
import { KvError } from '../../native/index.ts';
import type { Snapshot } from './page/snapshot.ts';
import type { LogReader } from './reader.ts';
import { checkPlaces, type Places, type StreamRules } from './stream.ts';
import { EngineLooks, metricsIn } from './top-metrics.ts';

const EVERY_MS = 1000;

/** What snapshots are made of. */
export interface LiveSources {
  readonly model: string | null;
  /** Text of the engine's metrics; null: there is no engine. */
  readonly metrics: (() => Promise<string>) | null;
  /** null: there is no log. */
  readonly reader: LogReader | null;
}

/** Who reads. */
interface LiveRequest extends Places {
  /** null: it sees all; else the sessions of its own answers. */
  readonly own: ReadonlySet<string> | null;
}

interface Client extends Pick<LiveRequest, 'own' | 'who'> {
  readonly response: ServerResponse;
  fullSinceMs: number | null;
}

export class Live {
  readonly #sources: LiveSources;
  readonly #rules: StreamRules;
  #looks = new EngineLooks();
  readonly #clients = new Set<Client>();
  readonly #onDropped: () => void;
  #isMaking = false;
  #wake: (() => void) | null = null;

  /** `onDropped` is called for every client that was too slow. */
  constructor(sources: LiveSources, rules: StreamRules, onDropped: () => void) {
    this.#sources = sources;
    this.#rules = rules;
    this.#onDropped = onDropped;
  }

  /** True while snapshots are made. */
  get isMaking(): boolean {
    return this.#isMaking;
  }

  /** Cuts off all readers. */
  end(): void {
    for (const { response } of this.#clients) response.destroy();
  }

  /** Serves one reader until it goes. Throws 'busy'. */
  async serve(
    { own, ...places }: LiveRequest,
    response: ServerResponse,
    headers: Readonly<Record<string, string>>,
  ): Promise<void> {
    const { clientsMax } = this.#rules;
    checkPlaces(
      places,
      clientsMax,
      [...this.#clients].map(({ who }) => who),
      'this server',
    );
    const client: Client = { response, own, who: places.who, fullSinceMs: null };
    const gone = new Promise<void>((resolve) => response.once('close', resolve));
    response.on('drain', () => {
      client.fullSinceMs = null;
    });
    response.writeHead(200, headers);
    response.flushHeaders();
    this.#clients.add(client);
    this.#wake?.();
    if (!this.#isMaking) void this.#make();
    await gone;
    this.#clients.delete(client);
    if (this.#clients.size === 0) this.#wake?.();
  }

  async #make(): Promise<void> {
    this.#isMaking = true;
    // Rates are those of a second, not of the time in which nobody looked.
    this.#looks = new EngineLooks();
    while (this.#clients.size > 0) {
      const told = await this.#snapshot().catch((error: unknown) => problem(error));
      for (const client of this.#clients) this.#tell(client, told);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, EVERY_MS);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      this.#wake = null;
    }
    this.#isMaking = false;
  }

  /** No more than one snapshot ever waits for a reader: one that has not taken it misses those that follow. */
  #tell(client: Client, told: Snapshot | { readonly error: string }): void {
    const { response, own, fullSinceMs } = client;
    if (fullSinceMs !== null) {
      if (performance.now() - fullSinceMs <= this.#rules.stalledMs) return;
      this.#onDropped();
      response.destroy();
      return;
    }
    const shown = 'error' in told || own === null ? told : ownOf(told, own);
    if (!response.write(`event: ${'error' in shown ? 'problem' : 'snapshot'}\ndata: ${JSON.stringify(shown)}\n\n`))
      client.fullSinceMs = performance.now();
  }

  async #snapshot(): Promise<Snapshot> {
    const { model, metrics, reader } = this.#sources;
    const timeMs = Date.now();
    const [text, top] = await Promise.all([metrics?.() ?? null, reader?.ask('top', { nowMs: timeMs }) ?? null]);
    const engine = text === null ? null : this.#looks.next(metricsIn(text), timeMs);
    return {
      timeMs,
      model,
      hasLog: reader !== null,
      seesAll: true,
      engine,
      pools: top?.pools ?? [],
      sessions: top?.sessions ?? [],
    };
  }
}

const problem = (error: unknown): { readonly error: string } => ({
  error: error instanceof KvError ? error.message : 'the server failed',
});

/** Of a snapshot what one key is told of: neither other sessions nor what all have in common. */
const ownOf = (told: Snapshot, own: ReadonlySet<string>): Snapshot => ({
  ...{ ...told, seesAll: false, engine: null, pools: [] },
  sessions: told.sessions.filter(({ session }) => own.has(session)),
});
