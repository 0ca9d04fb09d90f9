/** One planned move, its trial and its verdict. Refused ones are recorded too. */
import type { Decision, Verdict } from '../../policy/index.ts';
import type { BodyOf, Fields } from './field.ts';
import { form, laterForm, origin, part } from './parts.ts';
import { type Certain, count, difference, type Flat, flag, nullable, real, type Same, text, whole } from './type.ts';

export const DECISION = {
  situation: {
    type: count,
    row: 'situation',
    report: 'situation+',
    means: 'Number of the situation that it answers, within the session.',
  },
  order: { type: count, row: 'order', column: 'plan_order', means: 'Its place in the plan for that situation.' },
  tokens: { type: whole, row: 'tokens', report: 'tokens+', means: 'Tokens in the cache when it was decided.' },
  'decision.layer': {
    type: count,
    row: 'layer',
    report: 'layer',
    asked: 'equal',
    means: 'Number of the layer, from 0.',
  },
  'decision.page': { type: count, row: 'page', report: 'page', asked: 'equal', means: 'Number of the page, from 0.' },
  'decision.side': {
    type: part,
    row: 'side',
    report: 'side',
    asked: 'equal',
    means: 'Keys, values, or both where a latent is concerned or the page is let go.',
  },
  'decision.from': {
    type: form,
    row: 'from',
    column: 'format_from',
    report: 'from',
    asked: 'equal',
    means: 'Format or latent that the page had.',
  },
  'decision.to': {
    type: laterForm,
    row: 'to',
    column: 'format_to',
    report: 'to',
    asked: 'equal',
    means: "That which it was to get; 'freed': the page was let go.",
  },
  'verdict.accepted': {
    type: flag,
    row: 'accepted',
    report: 'accepted',
    asked: 'equal',
    means: 'Made, or refused after its trial.',
  },
  'decision.because.rule': {
    type: text,
    row: 'rule',
    column: 'because_rule',
    asked: ['reason'],
    means: 'Why it was planned (decision.because): the rule.',
  },
  'decision.because.threshold': {
    type: text,
    row: 'threshold',
    column: 'because_threshold',
    asked: ['reason', 'threshold'],
    means: 'The threshold that bound the plan.',
  },
  'decision.because.measured': {
    type: real,
    row: 'measured',
    column: 'because_measured',
    report: 'measured',
    means: 'What was compared with it.',
  },
  'decision.because.bound': {
    type: real,
    row: 'bound',
    column: 'because_bound',
    report: 'bound',
    means: 'Its value then.',
  },
  'decision.because.unit': {
    type: text,
    row: 'unit',
    column: 'because_unit',
    means: "Unit of both; '1' for a bare number.",
  },
  'decision.because.origin': {
    type: origin,
    row: 'origin',
    column: 'because_origin',
    means: 'Where the value of the threshold came from.',
  },
  'verdict.because.rule': {
    type: text,
    row: 'verdictRule',
    asked: ['reason'],
    means: 'Why it was accepted or refused (verdict.because): the rule.',
  },
  'verdict.because.threshold': {
    type: text,
    row: 'verdictThreshold',
    asked: ['reason', 'threshold'],
    means: 'The threshold that bound the verdict.',
  },
  'verdict.because.measured': {
    type: real,
    row: 'verdictMeasured',
    report: 'verdictMeasured',
    means: 'What was compared with it.',
  },
  'verdict.because.bound': { type: real, row: 'verdictBound', report: 'verdictBound', means: 'Its value then.' },
  'verdict.because.unit': { type: text },
  'verdict.because.origin': { type: origin },
  'decision.epsilonFrom': {
    type: nullable(real),
    row: 'epsilonFrom',
    report: 'epsilonFrom',
    asked: 'range',
    means: 'Predicted error of the page in the format it had; null where the policy needs no trial.',
  },
  'decision.epsilonTo': {
    type: nullable(real),
    row: 'epsilonTo',
    report: 'epsilonTo',
    asked: 'range',
    means: 'The same in the format it was to get.',
  },
  epsilonNow: {
    type: nullable(real),
    row: 'epsilonNow',
    report: 'epsilonNow',
    asked: 'range',
    means: 'Measured just before the move; null when the first trial was recent enough.',
  },
  'decision.price': {
    type: nullable(real),
    unit: 'nats a byte',
    row: 'price',
    report: 'price',
    means: 'Predicted divergence (KLD) per byte freed; null where the policy has no prices.',
  },
  'decision.bytesFreed': {
    type: difference,
    row: 'bytesFreed',
    report: 'planned',
    asked: 'range',
    means: 'Planned; what was really freed is bytesBefore − bytesAfter.',
  },
  'decision.retry': { type: flag },
  bytesBefore: { type: whole, row: 'bytesBefore', report: 'bytes+', means: 'Bytes of the cache before it.' },
  bytesAfter: { type: whole, row: 'bytesAfter', means: 'Bytes of the cache after it.' },
} as const satisfies Fields;

export type DecisionBody = BodyOf<typeof DECISION>;

/** It is what policies plan and judge. */
export type DecisionAgrees = Certain<Same<DecisionBody['decision'], Flat<Decision>>>;
export type VerdictAgrees = Certain<Same<DecisionBody['verdict'], Flat<Verdict>>>;
