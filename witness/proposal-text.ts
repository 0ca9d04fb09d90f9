/** Which adapters were proposed for a session, and why, in words. */
import { brief, plural } from '../native/index.ts';
import { type AdapterProposal, type Precedent, precedentWeight, type ScaledDigest } from '../policy/index.ts';
import { ruleText, tellComparison } from './because-text.ts';
import { shortId } from './id.ts';

/** Sessions that are named one by one; others are counted. */
const NAMED_MOST = 4;

/** used: what the session was opened with. */
export function proposalText(proposal: AdapterProposal, used: readonly ScaledDigest[] = []): string {
  const { seen, adapters, because, bits, formats } = proposal;
  const what = adapters.length === 0 ? 'No adapter was proposed' : `Proposed were adapters: ${adaptersText(adapters)}`;
  const isUsed = adaptersText(used) === adaptersText(adapters);
  const left = isUsed ? '' : ' The session began without: they are not known here, or there was no room for them.';
  const counted = seen.filter((one) => precedentWeight(one) > 0);
  const named = counted.slice(0, NAMED_MOST).map(precedentText).join('; ');
  const more = counted.length > NAMED_MOST ? `; and ${counted.length - NAMED_MOST} more` : '';
  const whose =
    counted.length === 0 ? '' : ` ${plural(counted.length, 'session')} had texts like this one: ${named}${more}.`;
  const came =
    bits === null
      ? ''
      : ` Their caches took ${brief(bits)} bits a number${formats === null ? '' : `, most pages ${formats}`}.`;
  return `${what}, ${ruleText(because.rule)}. ${tellComparison(because)}${whose}${came}${left}`;
}

function precedentText(one: Precedent): string {
  const { session, distance, adapters, reason } = one;
  const used = adapters.length === 0 ? 'no adapter' : adaptersText(adapters);
  return `${shortId(session)}, at a distance of ${brief(distance)}, used ${used} and ended '${reason}'`;
}

const adaptersText = (adapters: readonly ScaledDigest[]): string =>
  adapters.map(({ digest, scale }) => `${digest.slice(0, 12)}${scale === 1 ? '' : ` × ${brief(scale)}`}`).join(' + ');
