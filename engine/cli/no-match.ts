/**
 * What is wrong with a filter that nothing matches: a value that is misspelt is refused, and one that nothing in the
 * log has is named.
 */
import type { DecisionFilter, DecisionQuery, SessionFilter } from '../../witness/index.ts';
import { KNOWN_VALUES, unknownValue } from '../serve/known-values.ts';
import { keyName, type SettingName } from './settings.ts';

/** Fields of a filter that name one value, and the settings they come from. */
const NAMED = {
  session: 'session',
  model: 'ofModel',
  layer: 'layer',
  page: 'page',
  side: 'side',
  from: 'from',
  to: 'to',
  reason: 'reason',
  threshold: 'threshold',
} as const satisfies Partial<Record<keyof DecisionFilter, SettingName>>;

const KNOWN: Partial<Record<keyof typeof NAMED, readonly string[]>> = KNOWN_VALUES;

const tell = (what: string, setting: SettingName, value: string | number): void =>
  void process.stderr.write(`No ${what} in the log matches --${keyName(setting)} ${value}.\n`);

/**
 * For a filter without an answer: says on stderr which of its values no decision in the log has. Throws 'bad-argument',
 * with the values there are, for a reason or threshold that the policies do not know either.
 */
export async function explainEmpty(query: DecisionQuery, filter: DecisionFilter): Promise<void> {
  for (const [field, setting] of Object.entries(NAMED) as [keyof typeof NAMED, SettingName][]) {
    const value = filter[field];
    if (value === undefined || (await query.decisions({ [field]: value, limit: 1 })).length > 0) continue;
    const known = KNOWN[field] ?? [String(value)];
    if (!known.includes(String(value))) throw unknownValue(`--${keyName(setting)}`, String(value), known);
    tell('decision', setting, value);
  }
}

/** The same for a list of sessions. */
export async function explainNoSessions(query: DecisionQuery, { model }: SessionFilter): Promise<void> {
  if (model === undefined || (await query.sessions({ model, limit: 1 })).length > 0) return;
  tell('session', NAMED.model, model);
}
