/**
 * The error for everything that a caller, a file or the machine can cause. Our own mistakes fail an `assert` instead.
 * The list of codes is closed, every code has one meaning, and the command line exits with 2 for any of them.
 */

/** Every code and its meaning in one line. */
export const KV_ERROR_CODES = {
  'bad-argument': 'an argument has the wrong type or is out of range',
  'bad-shape': 'an array has the wrong length for the shape it is given for',
  'bad-value': 'a number is NaN, infinite or beyond what f16 holds',
  'bad-config': 'a setting in a file, flag or environment variable cannot be used',
  'bad-file': 'a file is truncated, contradicts itself or is of no known kind',
  'bad-model': 'a model file is readable but cannot be run',
  'bad-tokenizer': 'a tokenizer or chat template cannot be used',
  'bad-thresholds': 'a threshold file breaks its schema or its ranges',
  'bad-signature': 'a signature is missing, does not fit its file, or is of a key that is not trusted',
  'bad-pack': 'a kernel pack is no module that is served, or broke what it promises',
  'bad-log': 'the witness log is damaged or was changed',
  'bad-index': 'an index file does not match its manifest',
  'checksum-mismatch': 'bytes do not have the digest they must have',
  'model-mismatch': 'a file belongs to another model',
  unsupported: 'a valid request that this build, model or format does not serve',
  'budget-too-small': 'the budget cannot hold the window, or no legal move frees enough',
  'budget-exceeded': 'the pool has no room for this page',
  'context-too-long': 'the prompt and the answer do not fit the model context',
  closed: 'the object was closed',
  busy: 'the object is in use by another call',
  locked: 'another process holds the state folder',
  'not-found': 'a file, model, session or entry does not exist',
  'not-allowed': 'a server does not answer this client, or wants a token that it knows',
  'missing-dependency': 'an optional package or program is not installed',
  sealed: 'what the log says of a session cannot be read: it was erased, or its key is not here',
  held: 'a legal hold keeps a session',
  'log-unwritable': 'the witness log cannot be written and the mode forbids going on',
  database: 'the SQL database or the vector server refused',
  network: 'a download failed, or a server was not reached',
  io: 'the operating system refused',
  aborted: 'the caller aborted',
} as const;

/** One of KV_ERROR_CODES. */
export type KvErrorCode = keyof typeof KV_ERROR_CODES;

/** The details of a KvError besides its message. */
export interface KvErrorDetail {
  /** The numbers and names that a person needs to act. */
  readonly values?: Readonly<Record<string, unknown>>;
  /** What to do about it, one sentence. */
  readonly hint?: string | undefined;
  /** The error that this one came from. */
  readonly cause?: unknown;
}

/** The only error that is thrown for a mistake of a caller, a fault in a file or a failure of the machine. */
export class KvError extends Error {
  /** Always 'KvError'. */
  override readonly name = 'KvError';
  /** The kind of error. Programs can rely on it: codes do not change. */
  readonly code: KvErrorCode;
  /** The numbers and names that a person needs to act. */
  readonly values: Readonly<Record<string, unknown>>;
  /** What to do about it, one sentence. */
  readonly hint: string | undefined;

  constructor(code: KvErrorCode, message: string, detail: KvErrorDetail = {}) {
    super(message, detail.cause === undefined ? undefined : { cause: detail.cause });
    this.code = code;
    this.values = detail.values ?? {};
    this.hint = detail.hint;
  }
}

/** What the operating system refused, as such an error; null: this is something else. */
export function refusedBySystem(error: unknown): KvError | null {
  const { code, syscall, path } = (error ?? {}) as NodeJS.ErrnoException;
  if (!(error instanceof Error) || typeof code !== 'string' || syscall === undefined) return null;
  return new KvError('io', error.message, { values: { path }, cause: error });
}

/** Throws an internal error if a condition that must always hold does not. */
export function assert(condition: boolean, message: string): asserts condition {
  if (!condition) throw new Error(`palimpsest internal error: ${message}`);
}
