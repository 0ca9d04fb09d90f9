/** What `/v1/live` tells, as far as the page shows it. */
import { grouped } from '../../../witness/report/page/words.ts';

export interface SessionNow {
  readonly session: string;
  readonly model: string;
  readonly state: 'working' | 'waiting' | 'parked' | 'ended';
  readonly tokens: number;
  readonly tokensPerSecond: number;
  readonly bytes: number;
  readonly budgetBytes: number | null;
  readonly bits: number | null;
  readonly gaveUpBytes: number;
  /** Nats a byte; null: not known. */
  readonly price: number | null;
}

export interface Snapshot {
  readonly timeMs: number;
  readonly model: string | null;
  readonly hasLog: boolean;
  readonly seesAll: boolean;
  readonly engine: {
    readonly running: number;
    readonly waiting: number;
    readonly parked: number;
    readonly bytes: number;
    readonly tiers: Readonly<Record<string, number>>;
    readonly budgetBytes: number | null;
    readonly generatedTokens: number;
    readonly tokensPerSecond: number;
  } | null;
  readonly pools: readonly {
    readonly bytes: number;
    readonly budgetBytes: number;
    readonly askings: number;
    readonly givenBytes: number;
    readonly price: number | null;
  }[];
  readonly sessions: readonly SessionNow[];
}

/** The end of an id, by which people know a session. */
export const shortId = (session: string): string => session.slice(-8);

const MIB = 2 ** 20;
/** Nats that a MiB costs: a byte costs too little to read. */
export const priceText = (price: number): string => {
  const value = price * MIB;
  return value === 0 || (value >= 1e-5 && value < 1e4) ? String(Number(value.toPrecision(2))) : value.toExponential(1);
};

/** A rate as people read it. */
export const rateText = (rate: number): string =>
  rate > 0 && rate < 10 ? String(Number(rate.toFixed(1))) : grouped(rate);
