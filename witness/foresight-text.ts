/** Why a session keeps latents or none, in words. */
import { brief, plural } from '../native/index.ts';
import type { Foresight } from '../policy/index.ts';
import { ruleText, tellComparison } from './because-text.ts';

export function foresightText({ kept, pages, because, seen }: Foresight): string {
  const what = kept === null ? 'It was decided to keep no latents' : `It was decided to keep latents (${kept})`;
  const most =
    seen.pages === 0 ? '' : ` Of ${plural(seen.pages, 'page')} that may move, ${pages} would have to be latents.`;
  const length =
    seen.sessions === 0
      ? ''
      : ` It is expected to reach ${plural(seen.tokens ?? 0, 'token')}, as ${plural(seen.sessions, 'earlier session')} of the model did.`;
  const time = seen.pageMs === null ? '' : ` Computing one again took ${brief(seen.pageMs)} ms.`;
  return `${what} when the session began, ${ruleText(because.rule)}. ${tellComparison(because)}${length}${most}${time}`;
}
