/**
 * Which moves tests try one by one. Those between two methods of others, which stand here to be compared with and meet
 * in no session, are too many.
 */
import { type FormatName, isAutomatic } from '../../native/index.ts';

const family = (name: FormatName): string => name.replace(/\d.*/, '');

/** Of formats to compare with: what pages come from, and what their own family offers. Of others: every move. */
export const isTried = (from: FormatName, to: FormatName): boolean =>
  from === 'f16' || family(from) === family(to) || (isAutomatic(from) && isAutomatic(to));
