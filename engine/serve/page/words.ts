/** Words and numbers of the page. */
import { grouped } from '../../../witness/report/page/words.ts';

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
