/**
 * Calls across threads. A thread answers with a table of handlers (`ThreadServer`); whoever started it holds a client
 * that is typed by that table (`ThreadClient`). Parameters, answers, events and news cross as plain data, and a KvError
 * keeps its code, values and hint on the way. A call tells events while it is being answered; news belong to no call.
 */
import type { MessagePort, Worker } from 'node:worker_threads';
import { show } from './arguments.ts';
import { assert, KvError, type KvErrorCode, refusedBySystem } from './error.ts';

/** Who waits for an answer, as a handler sees him. */
export interface Caller<Event> {
  tell(event: Event): void;
  /** Aborts when the answer is not wanted any more. */
  readonly signal: AbortSignal;
}

type Handler = (params: never, caller: Caller<never>) => unknown;

/**
 * A table of handlers by the names of their calls. What a call is given, answers and tells is what its handler takes,
 * returns and tells.
 */
export type Handlers<Calls> = { readonly [Name in keyof Calls]: Handler };

/** What a call with this handler is given. */
export type ParamsOf<One> = One extends (...given: infer Given) => unknown ? Given[0] : never;
/** What it is answered. */
export type AnswerOf<One> = One extends (...given: never) => infer Answer ? Awaited<Answer> : never;
/** What it is told on the way. */
type EventOf<One> = One extends (...given: infer Given) => unknown
  ? Given extends readonly [unknown, Caller<infer Event>]
    ? Event
    : never
  : never;

type NameOf<Calls> = keyof Calls & string;

interface Request {
  readonly id: number;
  readonly name: string;
  readonly params: unknown;
}

/** Told when nobody waits for the answer of a request any more. */
interface Abort {
  readonly abort: number;
}

type Reply =
  | { readonly id: number; readonly kind: 'value'; readonly value: unknown }
  | { readonly id: number; readonly kind: 'error'; readonly error: WireError }
  | { readonly id: number; readonly kind: 'event'; readonly event: unknown };

/** News come under this id, which no call has. */
const NEWS = 0;

interface WireError {
  /** null: not a KvError but a fault of ours. */
  readonly code: KvErrorCode | null;
  readonly message: string;
  readonly values: Readonly<Record<string, unknown>>;
  readonly hint: string | null;
  readonly stack: string | null;
}

function toWire(thrown: unknown): WireError {
  // What makes such errors known does not cross.
  const error = refusedBySystem(thrown) ?? thrown;
  if (error instanceof KvError) {
    return {
      code: error.code,
      message: error.message,
      values: { ...error.values },
      hint: error.hint ?? null,
      stack: null,
    };
  }
  const fault = faultOf(error);
  return { code: null, message: fault.message, values: {}, hint: null, stack: fault.stack ?? null };
}

function fromWire(wire: WireError): Error {
  if (wire.code !== null) {
    return new KvError(wire.code, wire.message, { values: wire.values, hint: wire.hint ?? undefined });
  }
  const fault = new Error(wire.message);
  if (wire.stack !== null) fault.stack = wire.stack;
  return fault;
}

const faultOf = (error: unknown): Error => (error instanceof Error ? error : new Error(show(error)));

/** The side of the thread that answers. */
export class ThreadServer<News = never> {
  readonly #port: MessagePort;
  readonly #running = new Map<number, AbortController>();

  /** port: `parentPort` of the thread. */
  constructor(port: MessagePort | null) {
    assert(port !== null, 'calls are served in a worker thread only');
    this.#port = port;
  }

  tell(news: News): void {
    this.#send({ id: NEWS, kind: 'event', event: news });
  }

  /**
   * Answers each call when its work is done. Where the table is a promise, calls wait for it, and throw what it rejects
   * with. `around` does the work of a call where something must hold meanwhile. After the answer to the call `last` no
   * more are taken, which lets the thread end.
   */
  serve<Calls extends Handlers<Calls>>(
    table: Calls | Promise<Calls>,
    options: { around?: <T>(work: () => Promise<T>) => Promise<T>; last?: NameOf<Calls> } = {},
  ): void {
    const { around = (work) => work(), last } = options;
    const opening = Promise.resolve(table);
    // The first call reports it; without this line an early failure would end the thread unheard.
    opening.catch(() => {});
    const answer = async (handlers: Calls, { name, params }: Request, caller: Caller<unknown>): Promise<unknown> => {
      assert(Object.hasOwn(handlers, name), `the thread has no call '${name}'`);
      const handler: Handler = handlers[name as keyof Calls];
      // What crosses has no types, but those of the client are of this table.
      return handler(params as never, caller);
    };
    const serveOne = async (request: Request): Promise<void> => {
      const { id, name } = request;
      const abort = new AbortController();
      this.#running.set(id, abort);
      const tell = (event: unknown): void => this.#send({ id, kind: 'event', event });
      try {
        const handlers = await opening;
        const value = await around(() => answer(handlers, request, { tell, signal: abort.signal }));
        this.#send({ id, kind: 'value', value });
        if (name === last) this.#port.close();
      } catch (error) {
        this.#send({ id, kind: 'error', error: toWire(error) });
      } finally {
        this.#running.delete(id);
      }
    };
    this.#port.on('message', (message: Request | Abort) => {
      if ('abort' in message) this.#running.get(message.abort)?.abort();
      else void serveOne(message);
    });
  }

  #send(reply: Reply): void {
    this.#port.postMessage(reply);
  }
}

interface Pending {
  resolve(value: unknown): void;
  reject(error: Error): void;
  event(event: unknown): void;
  /** What the caller's own code threw when it was told of an event: the call is being aborted, and ends with this. */
  thrown?: { readonly error: Error };
}

export interface ThreadClientOptions<News> {
  /** What the thread is called in errors, such as "the model's thread". */
  readonly thread: string;
  /** What calls throw once the thread has ended without an error of its own. */
  readonly ended: () => Error;
  readonly onNews?: (news: News) => void;
  /** When the thread keeps the process alive. Default 'always'. */
  readonly keepsAlive?: 'always' | 'while called';
}

export interface CallOptions<Event> {
  readonly onEvent?: (event: Event) => void;
  readonly signal?: AbortSignal | undefined;
}

/** The side of whoever started the thread. */
export class ThreadClient<Calls extends Handlers<Calls>, News = never> {
  readonly #worker: Worker;
  readonly #thread: string;
  readonly #onNews: (news: News) => void;
  readonly #pending = new Map<number, Pending>();
  readonly #isLeftIdle: boolean;
  #nextId = 1;
  #ended: Error | null = null;

  constructor(worker: Worker, { thread, ended, onNews = () => {}, keepsAlive }: ThreadClientOptions<News>) {
    this.#isLeftIdle = keepsAlive === 'while called';
    this.#worker = worker;
    this.#thread = thread;
    this.#onNews = onNews;
    worker.on('message', (reply: Reply) => this.#receive(reply));
    worker.on('error', (error) => this.end(faultOf(error)));
    worker.on('exit', () => this.end(ended()));
  }

  /** Calls that have no answer yet. */
  get waiting(): number {
    return this.#pending.size;
  }

  /** What ended the calls; null: they can be made. */
  get ended(): Error | null {
    return this.#ended;
  }

  /** Fails the calls that have no answer yet, and all later ones, with `error`, or with what ended them before. */
  end(error: Error): void {
    this.#ended ??= error;
    for (const pending of this.#pending.values()) pending.reject(this.#ended);
    this.#pending.clear();
  }

  /**
   * Asks the thread. Throws what the handler throws, what `onEvent` throws, 'bad-argument' for parameters that are no
   * plain data, 'aborted' when the signal was aborted before; a handler decides what an abort does later. After the end
   * of the thread it throws what ended it.
   */
  call<Name extends NameOf<Calls>>(
    name: Name,
    params: ParamsOf<Calls[Name]>,
    { onEvent = () => {}, signal }: CallOptions<EventOf<Calls[Name]>> = {},
  ): Promise<AnswerOf<Calls[Name]>> {
    if (this.#ended !== null) return Promise.reject(this.#ended);
    if (signal?.aborted) return Promise.reject(new KvError('aborted', `aborted before ${name} began`));
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#post({ id, name, params });
      const abort = (): void => this.#abort(id);
      const settle = (): void => signal?.removeEventListener('abort', abort);
      this.#pending.set(id, {
        resolve: (value) => {
          settle();
          resolve(value as AnswerOf<Calls[Name]>);
        },
        reject: (error) => {
          settle();
          reject(error);
        },
        event: (event) => onEvent(event as EventOf<Calls[Name]>),
      });
      signal?.addEventListener('abort', abort, { once: true });
      if (this.#isLeftIdle) this.#worker.ref();
    });
  }

  #post(request: Request): void {
    try {
      this.#worker.postMessage(request);
    } catch (cause) {
      throw new KvError(
        'bad-argument',
        `what was given to ${request.name} cannot be sent to ${this.#thread}: ${faultOf(cause).message}`,
        { hint: 'options are plain data', cause },
      );
    }
  }

  #abort(id: number): void {
    const message: Abort = { abort: id };
    this.#worker.postMessage(message);
  }

  #receive(reply: Reply): void {
    if (reply.kind === 'event' && reply.id === NEWS) {
      this.#onNews(reply.event as News);
      return;
    }
    const pending = this.#pending.get(reply.id);
    if (pending === undefined) return;
    if (reply.kind === 'event') {
      this.#tell(reply.id, pending, reply.event);
      return;
    }
    this.#pending.delete(reply.id);
    if (this.#isLeftIdle && this.#pending.size === 0) this.#worker.unref();
    if (pending.thrown !== undefined) pending.reject(pending.thrown.error);
    else if (reply.kind === 'value') pending.resolve(reply.value);
    else pending.reject(fromWire(reply.error));
  }

  #tell(id: number, pending: Pending, event: unknown): void {
    if (pending.thrown !== undefined) return;
    try {
      pending.event(event);
    } catch (error) {
      pending.thrown = { error: error as Error };
      this.#abort(id);
    }
  }
}
