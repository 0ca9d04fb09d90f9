/**
 * Normalizers and pre-tokenizers as tokenizer.json describes them. Their patterns and replacements are untrusted, so
 * their cost is bounded: in number and length here, and in time where they run.
 */
import { asRecord, KvError, show } from '../../native/index.ts';
import { isOwnPattern } from './pre-tokenizers.ts';

export type Step = Readonly<Record<string, unknown>>;

/** Published tokenizers have up to six steps. */
const STEPS_MAX = 32;
/** The longest published pattern has 1,200 characters. */
const PATTERN_CHARACTERS_MAX = 4096;
/** By what factor all replacements together may lengthen a text. U+2581 for a space does not lengthen it. */
const GROWTH_MAX = 16;
/**
 * Computing time of a pattern, which nobody can interrupt (bounded.ts). On two cores that four programs shared, the
 * patterns of ten published tokenizers took at most 14 ms for their first 200 characters, compiling included, and 4.1
 * µs a character of 300,000 in the slowest of eight kinds of text.
 */
const PATTERN_MS = 500;
const PATTERN_MS_PER_CHARACTER = 8e-3;

export const patternMs = (text: string): number => Math.ceil(PATTERN_MS + PATTERN_MS_PER_CHARACTER * text.length);

/** The steps of a sequence, at any depth, or the one step there is. Throws KvError 'bad-tokenizer'. */
export function flatSteps(step: unknown, key: 'normalizers' | 'pretokenizers' | 'decoders'): Step[] {
  if (step === null || step === undefined) return [];
  const one = asRecord(step);
  if (one === undefined) throw bad(`a step of ${key} is not an object`);
  const list = one[key];
  const steps =
    one['type'] === 'Sequence' && Array.isArray(list) ? list.flatMap((inner) => flatSteps(inner, key)) : [one];
  if (steps.length > STEPS_MAX) throw bad(`${steps.length} steps of ${key}`, { stepsMax: STEPS_MAX });
  return steps;
}

/** Refuses steps that could make a text much longer or never end, and patterns that are far too long. */
export function checkSteps(steps: readonly Step[]): void {
  let growth = 1;
  for (const step of steps) {
    const pattern = patternOf(step);
    if (pattern !== null && pattern.length > PATTERN_CHARACTERS_MAX)
      throw bad(`a pattern has ${pattern.length} characters`, { charactersMax: PATTERN_CHARACTERS_MAX });
    growth *= growthOf(step);
    if (!(growth <= GROWTH_MAX))
      throw bad(`its steps can make a text ${growth} times as long`, { type: step['type'], growthMax: GROWTH_MAX });
    const { length } = step;
    if (step['type'] === 'FixedLength' && !(typeof length === 'number' && Number.isInteger(length) && length >= 1))
      throw bad(`pieces of a fixed length of ${show(length).slice(0, 40)}`);
  }
}

/** True if a step runs a pattern that is not one of ours. */
export const hasForeignPattern = (steps: readonly Step[]): boolean =>
  steps.some((step) => {
    const pattern = patternOf(step);
    return pattern !== null && !isOwnPattern(pattern);
  });

function patternOf(step: Step): string | null {
  const given = asRecord(step['pattern']);
  const pattern = given?.['Regex'] ?? given?.['String'] ?? null;
  if (pattern !== null && typeof pattern !== 'string') throw bad('a pattern is no text');
  return pattern;
}

/**
 * A pattern may match the empty text between any two characters; its replacement is then inserted beside each of them.
 */
function growthOf(step: Step): number {
  const lengthOf = (value: unknown): number =>
    typeof value === 'string' ? value.length : value == null ? 0 : Infinity;
  switch (step['type']) {
    case 'Replace': {
      const given = asRecord(step['pattern']);
      const [plain, content] = [given?.['String'], lengthOf(step['content'])];
      return typeof plain === 'string' && plain !== '' ? Math.max(1, content / plain.length) : 1 + content;
    }
    case 'Metaspace':
      return Math.max(1, lengthOf(step['replacement']), lengthOf(step['str_rep']));
    // Inserted once before a text, however short that is.
    case 'Prepend':
      return Math.max(1, lengthOf(step['prepend']));
    default:
      return 1;
  }
}

function bad(what: string, values: Record<string, unknown> = {}): KvError {
  return new KvError('bad-tokenizer', `tokenizer.json: ${what}`, { values });
}
