/**
 * The reasons and thresholds that the policies of this package give. A policy of somebody's own may give others, which
 * its log then has.
 */
import { KvError, nearestName } from '../../native/index.ts';
import { BOUND_IDS } from '../../policy/index.ts';
import { RULES } from '../../witness/index.ts';

export const KNOWN_VALUES = { reason: [...Object.keys(RULES), ...BOUND_IDS], threshold: BOUND_IDS } as const;

/**
 * The refusal of a value of a filter that neither a policy nor the log has. option: as whoever asked gave it, such as
 * `--reason`.
 */
export function unknownValue(option: string, given: string, known: readonly string[]): KvError {
  const meant = nearestName(given, known);
  return new KvError('bad-argument', `${option} ${given}: no policy knows it, and no decision in the log has it`, {
    values: { given },
    hint: `${meant === null ? '' : `did you mean ${meant}? `}known are ${known.join(', ')}`,
  });
}
