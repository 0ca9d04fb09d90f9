/** What a receipt claims of an answer: a note of its session has it, and the receipt repeats it. */
import { count, noun, nullable, one, real, record, text, whole } from './type.ts';

/** What is claimed of an answer. Digests are SHA-256 in base64url (docs/receipts.md). */
export interface ReceiptClaims {
  /** Of the format. */
  readonly version: 1;
  /** Digest of the weights. */
  readonly model: string;
  /** Digest of the chat template; null: the prompt went through none. */
  readonly template: string | null;
  /** What was asked. */
  readonly request: {
    /** Tokens that the cache held when the answer began. */
    readonly tokens: number;
    /** Digest of these tokens and of all options of the answer. */
    readonly digest: string;
  };
  /** What was answered. */
  readonly answer: {
    /** How many tokens. */
    readonly tokens: number;
    /** Digest of their ids. */
    readonly digest: string;
    /** Digest of the text. */
    readonly text: string;
    /** Why it ended. */
    readonly finish: 'stop' | 'length' | 'aborted';
  };
  /** The numbers among the options of the answer that are not the usual ones, by their names; the seed always. */
  readonly sampler: Readonly<Record<string, number>>;
  /** What computed it. The first entry of the session says more. */
  readonly machine: {
    /** Instruction set of the kernels. */
    readonly isa: string;
    /** How many. */
    readonly threads: number;
  };
  /** What the cache was when the answer had ended. */
  readonly cache: {
    /** How many it held. */
    readonly tokens: number;
    /** Of its pages, in the formats they have. */
    readonly bytes: number;
    /** Of a number in the cache, to three places. */
    readonly bits: number;
    /** Keys of sealed pages by format: those of all layers, and in how many layers. 'q8:4/2 rot4:12/6' */
    readonly k: string;
    /** Values likewise. */
    readonly v: string;
  };
  /** The divergence from the exact cache, in nats to four digits, and what says so. */
  readonly kld: {
    /** Mean over tokens; null where nothing says it. */
    readonly nats: number | null;
    /** Tokens that were read twice, the forecast of the policy, or nothing. */
    readonly by: 'measured' | 'forecast' | 'none';
  };
  /** Why the answer cannot be run again from its tokens and the log; null: it can. */
  readonly bound: string | null;
}

export const receiptClaims = noun<ReceiptClaims>()({
  version: one([1]),
  model: text,
  template: nullable(text),
  request: noun<ReceiptClaims['request']>()({ tokens: count, digest: text }),
  answer: noun<ReceiptClaims['answer']>()({
    tokens: count,
    digest: text,
    text,
    finish: one(['stop', 'length', 'aborted']),
  }),
  sampler: record(text, real),
  machine: noun<ReceiptClaims['machine']>()({ isa: text, threads: count }),
  cache: noun<ReceiptClaims['cache']>()({ tokens: count, bytes: whole, bits: real, k: text, v: text }),
  kld: noun<ReceiptClaims['kld']>()({ nats: nullable(real), by: one(['measured', 'forecast', 'none']) }),
  bound: nullable(text),
});
