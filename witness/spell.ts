/**
 * The entries that are written while a model decodes, spelled field by field: the text is that of `canonicalJson`, which sorts and asks
 * for types where this knows them. Kinds that come once in a session go the general way, and so does everything that is read.
 */
import { FORMAT_NAMES, LATENT_NAMES } from '../native/index.ts';
import type { Because, CanaryReport, Decision, FormChange, Outcome, Situation, TrialReport } from '../policy/index.ts';
import { canonicalJson, canonicalText, canonicalNumber as number } from './canonical.ts';
import type { DecisionBody, EntryBodies, EntryKind } from './types.ts';

/** Canonical text of a body. Throws what `canonicalJson` throws. */
export function spellBody<K extends EntryKind>(kind: K, body: EntryBodies[K]): string {
  if (kind === 'decision') return decisionBody(body as DecisionBody);
  if (kind === 'situation') return `{"situation":${situation((body as EntryBodies['situation']).situation)}}`;
  return canonicalJson(body);
}

function decisionBody(body: DecisionBody): string {
  return (
    `{"bytesAfter":${number(body.bytesAfter)},"bytesBefore":${number(body.bytesBefore)},"decision":${decision(body.decision)}` +
    `,"epsilonNow":${nullable(body.epsilonNow)},"order":${number(body.order)},"situation":${number(body.situation)}` +
    `,"tokens":${number(body.tokens)},"verdict":{"accepted":${body.verdict.accepted},"because":${because(body.verdict.because)}}}`
  );
}

function decision(it: Decision): string {
  return (
    `{"because":${because(it.because)},"bytesFreed":${number(it.bytesFreed)},"epsilonFrom":${nullable(it.epsilonFrom)}` +
    `,"epsilonTo":${nullable(it.epsilonTo)},"from":"${it.from}","layer":${number(it.layer)},"page":${number(it.page)}` +
    `,"price":${nullable(it.price)},"retry":${it.retry},"side":"${it.side}","to":"${it.to}"}`
  );
}

function because(it: Because): string {
  return (
    `{"bound":${number(it.bound)},"measured":${number(it.measured)},"origin":"${it.origin}","rule":${canonicalText(it.rule)}` +
    `,"threshold":${canonicalText(it.threshold)},"unit":${canonicalText(it.unit)}}`
  );
}

function situation(it: Situation): string {
  return (
    `{${it.again === undefined ? '' : `"again":${list(it.again, trial)},`}"budgetBytes":${nullable(it.budgetBytes)},"bytes":${number(it.bytes)}` +
    `${it.canaries === undefined ? '' : `,"canaries":${list(it.canaries, canary)}`}` +
    `${it.canaryBytes === undefined ? '' : `,"canaryBytes":${number(it.canaryBytes)}`}` +
    `${it.changes === undefined ? '' : `,"changes":${list(it.changes, change)}`}` +
    `,"index":${number(it.index)}` +
    `,"kldBudget":${nullable(it.kldBudget)},"lowMemory":${it.lowMemory},"movesMax":${number(it.movesMax)}` +
    `,"outcomes":${list(it.outcomes, outcome)}${it.probe === undefined ? '' : `,"probe":${canonicalJson(it.probe)}`},"sealBytes":${number(it.sealBytes)}` +
    `,"stepLatencyBudgetMs":${nullable(it.stepLatencyBudgetMs)},"stepLatencyMsP95":${number(it.stepLatencyMsP95)}` +
    `${it.text === undefined ? '' : `,"text":${canonicalJson(it.text)}`},"tokens":${number(it.tokens)},"tokensExpected":${nullable(it.tokensExpected)},"trials":${list(it.trials, trial)}` +
    `,"urgent":${it.urgent}}`
  );
}

function change(it: FormChange): string {
  return `{"from":"${it.from}","layer":${number(it.layer)},"page":${number(it.page)},"side":"${it.side}","to":"${it.to}"}`;
}

function canary(it: CanaryReport): string {
  return (
    `{"age":${number(it.age)},"epsilonNow":${number(it.epsilonNow)},"epsilonPromised":${number(it.epsilonPromised)}` +
    `,"from":"${it.from}","layer":${number(it.layer)},"page":${number(it.page)},"side":"${it.side}","to":"${it.to}"}`
  );
}

function outcome(it: Outcome): string {
  return (
    `{"accepted":${it.accepted},"bytesFreed":${number(it.bytesFreed)},"epsilonNow":${nullable(it.epsilonNow)},"from":"${it.from}"` +
    `,"layer":${number(it.layer)},"page":${number(it.page)},"side":"${it.side}","to":"${it.to}"}`
  );
}

function trial(it: TrialReport): string {
  return (
    `{"epsilon":${errors(it.epsilon)},"from":"${it.from}","layer":${number(it.layer)},"page":${number(it.page)}` +
    `,"side":"${it.side}"}`
  );
}

const SORTED_FORMS = [...FORMAT_NAMES, ...LATENT_NAMES].sort();

function errors(table: TrialReport['epsilon']): string {
  let text = '{';
  for (const format of SORTED_FORMS) {
    const epsilon = table[format];
    if (epsilon !== undefined) text += `${text === '{' ? '' : ','}"${format}":${number(epsilon)}`;
  }
  return `${text}}`;
}

function list<T>(items: readonly T[], spell: (item: T) => string): string {
  let text = '[';
  for (let i = 0; i < items.length; i++) text += i === 0 ? spell(items[i]!) : `,${spell(items[i]!)}`;
  return `${text}]`;
}

const nullable = (value: number | null): string => (value === null ? 'null' : number(value));
