/**
 * What went wrong, as clients of OpenAI servers read it: a status that says whether trying again can help, and
 * `{ error: { message, type, param, code } }`. They try 408, 409, 429 and all from 500 on again, so what stays as it is
 * has another status, or says `x-should-retry: false`.
 */
import { given, KvError, type KvErrorCode } from '../../native/index.ts';

/** An answer other than the one that was asked for. */
export class Refusal extends Error {
  readonly status: number;
  readonly error: KvError;
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, error: KvError, headers: Readonly<Record<string, string>> = {}) {
    super(error.message);
    this.status = status;
    this.error = error;
    this.headers = headers;
  }
}

/** What a client gets in place of an answer. */
export interface Failure {
  readonly status: number;
  readonly error: {
    readonly message: string;
    readonly type: string;
    /** Where in the request it is, such as `messages[1].content`; null: nowhere in it. */
    readonly param: string | null;
    /** A code of KvError, or the one that clients know for it; null: a fault of ours. */
    readonly code: string | null;
    readonly values: Readonly<Record<string, unknown>>;
    readonly hint: string | null;
  };
  readonly headers: Readonly<Record<string, string>>;
}

/** Seconds after which a client that found no room may come back. */
export const RETRY_SECONDS = 1;

const ASKED_WRONGLY = { status: 400, type: 'invalid_request_error' } as const;
const NOT_THERE = { status: 404, type: 'not_found_error' } as const;
const GONE = { status: 410, type: 'not_found_error' } as const;
const TOO_LARGE = { status: 413, type: 'invalid_request_error' } as const;
const OVERLOADED = { status: 503, type: 'overloaded_error' } as const;
/** The sessions of one key hold what they may. */
const FULL_GROUP = { status: 429, type: 'rate_limit_error' } as const;
const OURS = { status: 500, type: 'server_error' } as const;

/** By code of KvError. What is not here is a fault of the machine or of its files. */
const KINDS: Readonly<Partial<Record<KvErrorCode, { readonly status: number; readonly type: string }>>> = {
  'bad-argument': ASKED_WRONGLY,
  'bad-shape': ASKED_WRONGLY,
  'bad-value': ASKED_WRONGLY,
  'bad-tokenizer': ASKED_WRONGLY,
  unsupported: ASKED_WRONGLY,
  'missing-dependency': { status: 501, type: 'server_error' },
  'context-too-long': { status: 400, type: 'exceed_context_size_error' },
  'budget-too-small': TOO_LARGE,
  'budget-exceeded': OVERLOADED,
  busy: OVERLOADED,
  closed: OVERLOADED,
  'not-allowed': { status: 403, type: 'permission_error' },
  'not-found': NOT_THERE,
  sealed: GONE,
  'bad-file': GONE,
  aborted: { status: 499, type: 'request_aborted' },
};

/** Codes that clients look for by name, in place of those of KvError. */
export const KNOWN_CODES = ['context_length_exceeded', 'model_not_found'] as const;

function codeOf({ code, values }: KvError): string {
  if (code === 'context-too-long') return 'context_length_exceeded' satisfies (typeof KNOWN_CODES)[number];
  if (code === 'not-found' && 'model' in values) return 'model_not_found' satisfies (typeof KNOWN_CODES)[number];
  return code;
}

/** The types of errors that go with a status given by other reasons than a code. */
const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  429: 'rate_limit_error',
  500: OURS.type,
};

/** What a client is told of what was thrown. */
export function failureOf(thrown: unknown): Failure {
  if (thrown instanceof Refusal) {
    const failure = failureWith(thrown.error, thrown.status);
    return { ...failure, headers: { ...failure.headers, ...thrown.headers } };
  }
  return failureWith(thrown);
}

function failureWith(thrown: unknown, status?: number): Failure {
  // What is no KvError is a fault of ours, and its text may tell what nobody asked for.
  if (!(thrown instanceof KvError))
    return {
      ...OURS,
      error: {
        message: 'a fault of ours: the answer could not be made',
        type: OURS.type,
        param: null,
        code: null,
        values: {},
        hint: null,
      },
      headers: { 'x-should-retry': 'false' },
    };
  const { code, message, values, hint = null } = thrown;
  const kind = code === 'budget-exceeded' && 'kvGroup' in values ? FULL_GROUP : (KINDS[code] ?? OURS);
  const found = status ?? kind.status;
  const { param, ...rest } = values;
  return {
    status: found,
    error: {
      message,
      type: TYPES[found] ?? kind.type,
      param: typeof param === 'string' ? param : null,
      code: codeOf(thrown),
      values: rest,
      hint,
      ...(code === 'context-too-long' ? contextNumbers(values) : {}),
    },
    headers: headersOf(found, kind === OVERLOADED || kind === FULL_GROUP),
  };
}

/** How long a prompt is and how long it may be, as llama-server names them. */
const contextNumbers = ({ tokens, contextTokens, prompt, contextLength }: KvError['values']) =>
  given({ n_prompt_tokens: tokens ?? prompt, n_ctx: contextTokens ?? contextLength });

function headersOf(status: number, canPass: boolean): Readonly<Record<string, string>> {
  if (canPass) return { 'retry-after': String(RETRY_SECONDS) };
  return status >= 500 ? { 'x-should-retry': 'false' } : {};
}
