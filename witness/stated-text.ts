/** What a note says to people of a divergence that was stated for a session. */
import { brief, plural } from '../native/index.ts';

/** Body of such a note. */
interface StatedNote {
  readonly statedDivergence?: unknown;
  readonly expectedNats?: unknown;
  readonly budgetNats?: unknown;
  readonly measuredTokens?: unknown;
}

/** null: the note is about something else. */
export function statedText({
  statedDivergence,
  expectedNats,
  budgetNats,
  measuredTokens = 0,
}: StatedNote): string | null {
  const [expected, stated] = [nats(expectedNats), nats(budgetNats)];
  const known =
    typeof measuredTokens !== 'number' || measuredTokens === 0
      ? ''
      : ` (measured on ${plural(measuredTokens, 'token')})`;
  if (statedDivergence === 'broken')
    return `The stated divergence is broken: ${expected} nats are expected${known}, and ${stated} were stated.`;
  if (statedDivergence !== 'kept') return null;
  return `The stated divergence is kept again: ${expected} nats are expected${known} of ${stated}.`;
}

const nats = (value: unknown): string => (typeof value === 'number' ? brief(value) : '?');
