// Written by scripts/generate-entries.ts from witness/entries/. Change these, not this file.
import { FORMS } from '../../policy/index.ts';
import { canonicalJson as json, canonicalNumber as number, canonicalText as text } from '../canonical.ts';
import { putFlag, putNullable, putNumber, putWord } from '../plan-numbers.ts';
import type { DecisionBody, SituationBody } from '../entries/index.ts';

const FORM_NAMES = [...FORMS].sort();

const nullable = (value: number | null): string => (value === null ? 'null' : number(value));

function list<T>(items: readonly T[], spell: (item: T) => string): string {
  let text = '[';
  for (let i = 0; i < items.length; i++) text += i === 0 ? spell(items[i]!) : `,${spell(items[i]!)}`;
  return `${text}]`;
}

function record<K extends string, T>(table: Readonly<Partial<Record<K, T>>>, names: readonly K[], spell: (value: T) => string): string {
  let text = '{';
  for (const name of names) {
    const value = table[name];
    if (value !== undefined) text += `${text === '{' ? '' : ','}"${name}":${spell(value)}`;
  }
  return `${text}}`;
}

function spellBecause(it: DecisionBody['decision']['because']): string {
  return (
    `{"bound":${number(it.bound)}` +
    `,"measured":${number(it.measured)}` +
    `,"origin":"${it.origin}"` +
    `,"rule":${text(it.rule)}` +
    `,"threshold":${text(it.threshold)}` +
    `,"unit":${text(it.unit)}}`
  );
}

function spellDecision(it: DecisionBody['decision']): string {
  return (
    `{"because":${spellBecause(it.because)}` +
    `,"bytesFreed":${number(it.bytesFreed)}` +
    `,"epsilonFrom":${nullable(it.epsilonFrom)}` +
    `,"epsilonTo":${nullable(it.epsilonTo)}` +
    `,"from":"${it.from}"` +
    `,"layer":${number(it.layer)}` +
    `,"page":${number(it.page)}` +
    `,"price":${nullable(it.price)}` +
    `,"retry":${it.retry}` +
    `,"side":"${it.side}"` +
    `,"to":"${it.to}"}`
  );
}

function spellVerdict(it: DecisionBody['verdict']): string {
  return (
    `{"accepted":${it.accepted}` +
    `,"because":${spellBecause(it.because)}}`
  );
}

function spellDecisionBody(it: DecisionBody): string {
  return (
    `{"bytesAfter":${number(it.bytesAfter)}` +
    `,"bytesBefore":${number(it.bytesBefore)}` +
    `,"decision":${spellDecision(it.decision)}` +
    `,"epsilonNow":${nullable(it.epsilonNow)}` +
    `,"order":${number(it.order)}` +
    `,"situation":${number(it.situation)}` +
    `,"tokens":${number(it.tokens)}` +
    `,"verdict":${spellVerdict(it.verdict)}}`
  );
}

function spellAgain(it: NonNullable<SituationBody['situation']['again']>[number]): string {
  return (
    `{"epsilon":${record(it.epsilon, FORM_NAMES, number)}` +
    `,"from":"${it.from}"` +
    `,"layer":${number(it.layer)}` +
    `,"page":${number(it.page)}` +
    `,"side":"${it.side}"}`
  );
}

function spellCanaries(it: NonNullable<SituationBody['situation']['canaries']>[number]): string {
  return (
    `{"age":${number(it.age)}` +
    `,"epsilonNow":${number(it.epsilonNow)}` +
    `,"epsilonPromised":${number(it.epsilonPromised)}` +
    `,"from":"${it.from}"` +
    `,"layer":${number(it.layer)}` +
    `,"page":${number(it.page)}` +
    (it.rows === undefined ? '' : `,"rows":${number(it.rows)}`) +
    `,"side":"${it.side}"` +
    `,"to":"${it.to}"}`
  );
}

function spellChanges(it: NonNullable<SituationBody['situation']['changes']>[number]): string {
  return (
    `{"from":"${it.from}"` +
    `,"layer":${number(it.layer)}` +
    `,"page":${number(it.page)}` +
    `,"side":"${it.side}"` +
    `,"to":"${it.to}"}`
  );
}

function spellDamaged(it: NonNullable<SituationBody['situation']['damaged']>[number]): string {
  return (
    `{"layer":${number(it.layer)}` +
    (it.mended === undefined ? '' : `,"mended":${it.mended}`) +
    `,"page":${number(it.page)}` +
    `,"side":"${it.side}"}`
  );
}

function spellLater(it: NonNullable<SituationBody['situation']['later']>[number]): string {
  return (
    `{"answers":${number(it.answers)}` +
    `,"k":${list(it.k, number)}` +
    `,"page":${number(it.page)}` +
    `,"v":${list(it.v, number)}}`
  );
}

function spellMasses(it: NonNullable<SituationBody['situation']['masses']>[number]): string {
  return (
    `{"layer":${number(it.layer)}` +
    `,"shares":${list(it.shares, number)}}`
  );
}

function spellOutcomes(it: SituationBody['situation']['outcomes'][number]): string {
  return (
    `{"accepted":${it.accepted}` +
    `,"bytesFreed":${number(it.bytesFreed)}` +
    `,"epsilonNow":${nullable(it.epsilonNow)}` +
    `,"from":"${it.from}"` +
    `,"layer":${number(it.layer)}` +
    `,"page":${number(it.page)}` +
    `,"side":"${it.side}"` +
    `,"to":"${it.to}"}`
  );
}

function spellEpsilon2(it: NonNullable<SituationBody['situation']['probe']>['epsilon2']): string {
  return (
    `{"k":${list(it.k, number)}` +
    `,"v":${list(it.v, number)}}`
  );
}

function spellProbe(it: NonNullable<SituationBody['situation']['probe']>): string {
  return (
    `{"epsilon2":${spellEpsilon2(it.epsilon2)}` +
    `,"meanKld":${number(it.meanKld)}` +
    `,"rows":${number(it.rows)}` +
    `,"standardError":${number(it.standardError)}` +
    `,"tokens":${number(it.tokens)}}`
  );
}

function spellReread(it: NonNullable<SituationBody['situation']['reread']>): string {
  return (
    (it.isDoubled === undefined ? '{' : `{"isDoubled":${it.isDoubled},`) +
    `"meanKld":${number(it.meanKld)}` +
    `,"rows":${number(it.rows)}` +
    `,"standardError":${number(it.standardError)}` +
    `,"tokens":${number(it.tokens)}}`
  );
}

function spellSharers(it: NonNullable<SituationBody['situation']['sharers']>[number]): string {
  return (
    `{"pages":${number(it.pages)}` +
    `,"sessions":${number(it.sessions)}}`
  );
}

function spellText(it: NonNullable<SituationBody['situation']['text']>): string {
  return (
    `{"samples":${number(it.samples)}` +
    `,"sd":${number(it.sd)}` +
    `,"value":${number(it.value)}}`
  );
}

function spellSituation(it: SituationBody['situation']): string {
  return (
    (it.again === undefined ? '{' : `{"again":${list(it.again, spellAgain)},`) +
    `"budgetBytes":${nullable(it.budgetBytes)}` +
    `,"bytes":${number(it.bytes)}` +
    (it.canaries === undefined ? '' : `,"canaries":${list(it.canaries, spellCanaries)}`) +
    (it.canaryBytes === undefined ? '' : `,"canaryBytes":${number(it.canaryBytes)}`) +
    (it.changes === undefined ? '' : `,"changes":${list(it.changes, spellChanges)}`) +
    (it.damaged === undefined ? '' : `,"damaged":${list(it.damaged, spellDamaged)}`) +
    `,"index":${number(it.index)}` +
    `,"kldBudget":${nullable(it.kldBudget)}` +
    (it.later === undefined ? '' : `,"later":${list(it.later, spellLater)}`) +
    `,"lowMemory":${it.lowMemory}` +
    (it.masses === undefined ? '' : `,"masses":${list(it.masses, spellMasses)}`) +
    `,"movesMax":${number(it.movesMax)}` +
    `,"outcomes":${list(it.outcomes, spellOutcomes)}` +
    (it.probe === undefined ? '' : `,"probe":${spellProbe(it.probe)}`) +
    (it.reread === undefined ? '' : `,"reread":${spellReread(it.reread)}`) +
    `,"sealBytes":${number(it.sealBytes)}` +
    (it.sharers === undefined ? '' : `,"sharers":${list(it.sharers, spellSharers)}`) +
    `,"stepLatencyBudgetMs":${nullable(it.stepLatencyBudgetMs)}` +
    `,"stepLatencyMsP95":${number(it.stepLatencyMsP95)}` +
    (it.text === undefined ? '' : `,"text":${spellText(it.text)}`) +
    `,"tokens":${number(it.tokens)}` +
    `,"tokensExpected":${nullable(it.tokensExpected)}` +
    `,"trials":${list(it.trials, spellAgain)}` +
    `,"urgent":${it.urgent}}`
  );
}

function spellSituationBody(it: SituationBody): string {
  return (
    `{"situation":${spellSituation(it.situation)}}`
  );
}

/** Canonical texts of bodies, by the kind of their entry. */
export const SPELLED = {
  decision: spellDecisionBody,
  situation: spellSituationBody,
};

/** Puts the body of such an entry into the numbers of its plan. */
export function fillDecisionBody(body: DecisionBody): void {
  const inDecision = body.decision;
  const inDecisionBecause = inDecision.because;
  const inVerdict = body.verdict;
  const inVerdictBecause = inVerdict.because;
  putNumber(body.bytesAfter);
  putNumber(body.bytesBefore);
  putNumber(inDecisionBecause.bound);
  putNumber(inDecisionBecause.measured);
  putWord(inDecisionBecause.origin);
  putWord(inDecisionBecause.rule);
  putWord(inDecisionBecause.threshold);
  putWord(inDecisionBecause.unit);
  putNumber(inDecision.bytesFreed);
  putNullable(inDecision.epsilonFrom);
  putNullable(inDecision.epsilonTo);
  putWord(inDecision.from);
  putNumber(inDecision.layer);
  putNumber(inDecision.page);
  putNullable(inDecision.price);
  putFlag(inDecision.retry);
  putWord(inDecision.side);
  putWord(inDecision.to);
  putNullable(body.epsilonNow);
  putNumber(body.order);
  putNumber(body.situation);
  putNumber(body.tokens);
  putFlag(inVerdict.accepted);
  putNumber(inVerdictBecause.bound);
  putNumber(inVerdictBecause.measured);
  putWord(inVerdictBecause.origin);
  putWord(inVerdictBecause.rule);
  putWord(inVerdictBecause.threshold);
  putWord(inVerdictBecause.unit);
}
