/** What crosses between the caller's thread and the model's: calls, replies, events, and errors that keep their code. */
import { KvError, type KvErrorCode, show } from '../../native/index.ts';

export interface Call {
  readonly id: number;
  readonly method: string;
  readonly params: unknown;
}

/** Events of the loading of the model come under this id, which no call has. */
export const LOADING = 0;

export interface AbortCall {
  readonly abort: number;
}

export type Reply =
  | { readonly id: number; readonly kind: 'value'; readonly value: unknown }
  | { readonly id: number; readonly kind: 'error'; readonly error: WireError }
  | { readonly id: number; readonly kind: 'event'; readonly event: unknown };

export interface WireError {
  /** null: not a KvError but a fault of ours. */
  readonly code: KvErrorCode | null;
  readonly message: string;
  readonly values: Readonly<Record<string, unknown>>;
  readonly hint: string | null;
  readonly stack: string | null;
}

export function toWire(error: unknown): WireError {
  if (error instanceof KvError) {
    return {
      code: error.code,
      message: error.message,
      values: { ...error.values },
      hint: error.hint ?? null,
      stack: null,
    };
  }
  const fault = error instanceof Error ? error : new Error(show(error));
  return { code: null, message: fault.message, values: {}, hint: null, stack: fault.stack ?? null };
}

export function fromWire(wire: WireError): Error {
  if (wire.code !== null) {
    return new KvError(wire.code, wire.message, { values: wire.values, hint: wire.hint ?? undefined });
  }
  const fault = new Error(wire.message);
  if (wire.stack !== null) fault.stack = wire.stack;
  return fault;
}
