/** Reasons in words: rules, and what was compared with which bound. */
import { brief, unitBehind } from '../native/index.ts';
import { type Because, UNSAFE, unsafeRule } from '../policy/index.ts';

/** What each rule of the policies means, of a plan and of a verdict. A rule that is not listed is told by its name. */
export const RULES: Readonly<Record<string, string>> = {
  price: 'a move is made while the divergence it costs per saved byte stays below the current price',
  deficit: 'the cache and the next pages together would not fit into the budget, and this was the cheapest legal move',
  'low-memory': 'low memory was signalled from outside, so the cache aims at less than its budget',
  'fresh-trial': 'the first trial was recent enough, so the planned price stands',
  'settled-trial':
    'the page left the window so long ago that its first trial is a safe bound, so the planned price stands',
  'not-seen': 'no recent query looks at this page, so nothing speaks against the first trial',
  'trial-again': 'the page was tried again, and the new price may exceed the planned one only by the slack allowed',
  'deficit-override':
    'the repeated trial came out worse than planned, but the budget is hard and the next page was due',
  'put-back':
    'errors in this layer are too far above what was promised, so the original that was kept takes the place of the coded form',
  'latent-gives-way':
    'keys and values of the page were to stay for now, but nothing else was left and the budget is hard',
  'quality-gives-way':
    'errors in this layer are too far above what was promised, but nothing else was left and the budget is hard',
  fixed: 'the page takes the format that the fixed table gives it',
  table: 'the page takes the format that the table gives it',
  age: 'the page is old enough for the next format of the age rule',
  'tier-hot': 'the page is among the first of the hot tier, which has formats of its own',
  'tier-warm':
    'the hot tier is full with anchors, pages that more attention goes to, and newer ones, so the page takes the formats of the warm tier',
  'tier-cold':
    'the hot and the warm tier are full with anchors, pages that more attention goes to, and newer ones, so the page takes the formats of the cold tier',
  'streaming-pages': 'the layer has more pages than places, and the newest stay beside the sinks: the page is let go',
  'h2o-pages':
    'the layer has more pages than places, and the newest stay and those that attention went to most: the page is let go',
  'snapkv-pages':
    'the layer has more pages than places, and those stay that the newest queries look at most: the page is let go',
  'pyramidkv-pages':
    'the layer has more pages than places, of which lower layers have more, and those stay that the newest queries look at most: the page is let go',
  'scissorhands-pages':
    'the layer has more pages than places, half of which are cleared of the pages that were found unimportant most often of late: the page is let go',
  uniform: 'all pages alike take the format whose bits fit the budget',
  pack: 'in the codec of the pack the page costs no more for a byte than what was planned',
  'in-pack': 'the page has gone to the pack instead',
  'pack-dearer': 'in the codec of the pack the page would cost more for a byte than what was planned',
  'pack-unmeasured': 'nothing tells what the page would cost in the pack, or nobody may ask it any more',
  'kld-gives-way':
    'the next pages would not fit otherwise, and the byte budget is ranked before the divergence budget, which this move exceeds',
  'proposal-alike':
    'most sessions with texts like this one, by how near they are and how they ended, used the same adapters',
  'proposal-plain': 'most sessions with texts like this one, by how near they are and how they ended, used no adapter',
  'proposal-divided': 'sessions with texts like this one used different adapters',
  'proposal-evidence': 'too few sessions with texts like this one are known',
  'proposal-text': 'the text is too short to say what kind it is',
  'latent-shape':
    'with as many KV heads for its query heads as this model has, a latent takes too much beside codes that err as much',
  'latent-length': 'the session is expected to be too short, or nobody said how long it gets',
  'latent-pressure':
    'pages are kept as latents where they would not fit into the budget at the end in codes that err as much',
  'latent-room': 'with latents beside the pages of the window the budget could not be kept',
  'latent-time': 'computing the keys and values of so many pages again would add too much to every step',
  'latent-latency':
    'computing the keys and values of so many pages again would take too much of the latency that was stated',
  ...Object.fromEntries(UNSAFE.map(({ id, reason }) => [unsafeRule(id), reason])),
};

/** A rule, and what it means where that is known. */
export const ruleText = (rule: string): string =>
  `rule '${rule}'${RULES[rule] === undefined ? '' : ` (${RULES[rule]})`}`;

/** What was compared with what. */
export function tellComparison({ threshold, measured, bound, unit }: Because): string {
  const relation = measured < bound ? 'below' : measured > bound ? 'above' : 'exactly at';
  // A share of the budget is told as what the cache needs of it.
  const needs = threshold.startsWith('pressure') && unit === 'share';
  const what = needs ? `This needs ${amount(measured, unit)} of the budget` : `Measured ${amount(measured, unit)}`;
  return `${what}, ${relation} the bound of ${amount(bound, unit)} ('${threshold}').`;
}

/** A number with its unit; shares in percent. */
export function amount(value: number, unit: string): string {
  if (unit === 'share') return `${brief(100 * value)}%`;
  return `${brief(value)}${unit === '' || unit === '1' ? '' : ` ${unitBehind(value, unit)}`}`;
}
