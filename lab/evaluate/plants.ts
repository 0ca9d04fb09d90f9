/**
 * What is planted in sessions to see whether it is noticed and what it costs: in what they are told and in their pages.
 */
import type { Session } from '../../engine/session/session.ts';
import { LATENT_NAMES, LOWEST_FORMATS, latentBytes, PAGE_KINDS } from '../../native/index.ts';
import {
  type Course,
  defaultLaw,
  type Estimate,
  type Policy,
  type Situation,
  type ThresholdSet,
} from '../../policy/index.ts';

/** Of a stored page (native/stored.ts). */
const HEAD_BYTES = 128;
/** Of coefficients in a threshold file that is wrong. */
const WRONG_COEFFICIENT = 1 / 100;
/** What a trial says while it is false is divided by this. */
const FALSE_BY = 100;
/** Until this share of the text. */
const FALSE_UNTIL = 0.75;
/** What is left of errors by a course that is wrong, as sure as fifty trials make it. */
const NEVER: Estimate = { value: 0.01, sd: 0.1, samples: 50 };

/** A law in which errors of two layers cost next to nothing. */
export function wrongLaw(set: ThresholdSet, layers: number): ThresholdSet {
  const law = defaultLaw(layers);
  const low = (of: readonly Estimate[]): Estimate[] =>
    of.map((one, layer) =>
      layer === 1 || layer === layers - 2 ? { ...one, value: one.value * WRONG_COEFFICIENT } : one,
    );
  return { ...set, law: { ...law, coefficient: { k: low(law.coefficient.k), v: low(law.coefficient.v) } } };
}

/** The course of a session, but in every second layer errors never last. */
export function wrongCourse(course: Course): Course {
  const never = (of: readonly Estimate[]): Estimate[] => of.map((one, layer) => (layer % 2 === 1 ? NEVER : one));
  const { persistence } = course;
  return { ...course, persistence: { k: never(persistence.k), v: never(persistence.v) } };
}

/** The policy, whose sessions are told another situation than there is. */
export function toldOtherwise(policy: Policy, tell: (situation: Situation) => Situation): Policy {
  const open: Policy['open'] = (context) => {
    const session = policy.open(context);
    const decide = session.decide.bind(session);
    return Object.assign(session, { decide: (situation: Situation) => decide(tell(situation)) });
  };
  return { ...policy, open };
}

/** The situation, but trials of a layer say so many times too little. */
export function withFalseTrials(situation: Situation, layer: number, by: number): Situation {
  const trials = situation.trials.map((trial) => {
    if (trial.layer !== layer) return trial;
    const epsilon = Object.entries(trial.epsilon).map(([form, value]) => [form, value / by]);
    return { ...trial, epsilon: Object.fromEntries(epsilon) as typeof trial.epsilon };
  });
  return { ...situation, trials };
}

/** First trials of the second layer say too little for three quarters of a text. */
export const misled = (policy: Policy): Policy =>
  toldOtherwise(policy, (situation) => {
    const { tokens, tokensExpected } = situation;
    const isOver = tokens / (tokensExpected ?? tokens) >= FALSE_UNTIL;
    return isOver ? situation : withFalseTrials(situation, 1, FALSE_BY);
  });

/** The first page that is held as a latent is held as that of another page. → false: fewer than two are */
export function damageLatent({ cache, runtime }: Session): boolean {
  const width = runtime.model.config.hiddenSize;
  for (let layer = 0; layer < cache.shape.layers; layer++) {
    const { kind, latent } = cache.table(layer);
    const pages = [...kind.keys()].filter((page) => PAGE_KINDS[kind[page]!] === 'latent');
    const [page, other] = pages.filter((one) => latent[one] === latent[pages[0]!]);
    if (page === undefined || other === undefined) continue;
    const { budgetBytes } = cache;
    const name = LATENT_NAMES[latent[page]! - 1]!;
    // Behind the head of what is stored of it.
    const bytes = cache.exportPage(layer, other).slice(HEAD_BYTES, HEAD_BYTES + latentBytes(name, width));
    cache.setBudget(null);
    cache.restore(layer, page, LOWEST_FORMATS.k, { keepLatent: false });
    cache.holdLatent(layer, page, name, bytes);
    cache.setBudget(budgetBytes);
    return true;
  }
  return false;
}

/** Values of one page of each of these layers are those of another page. → the layers that had two in one format */
export function damage({ cache }: Session, layers: readonly number[]): number[] {
  return layers.filter((layer) => {
    const { pages } = cache.table(layer);
    const forms = Array.from({ length: pages }, (_, page) => cache.format(layer, page, 'v'));
    const page = forms.findIndex((form, one) => form !== 'q8' && forms.lastIndexOf(form) !== one);
    if (page < 0) return false;
    const other = forms.lastIndexOf(forms[page]!);
    cache.exchangeSide(layer, page, 'v', cache.exportSide(layer, other, 'v'));
    return true;
  });
}
