/** Texts of a schema: of a length, by a pattern or by a format. */
import { KvError, show } from '../../../native/index.ts';
import { followedPattern, isFollowedExactly } from './pattern.ts';
import type { Node } from './references.ts';
import { cannot } from './refusals.ts';
import { FORMATS } from './rules.ts';
import { lengths, type Writing } from './writing.ts';

export function textExpression(node: Node, where: string, writing: Writing): string {
  const { rules, repetitions } = writing;
  const { quote, character } = rules.notation;
  const { least, most } = lengths(node, ['minLength', 'maxLength'], where);
  const isBounded = least > 0 || most < Number.POSITIVE_INFINITY;
  const followed = patternOrFormat(node, where, writing);
  if (followed !== null) {
    if (isBounded) writing.leave();
    return followed;
  }
  if (!isBounded) return 'string';
  if (!repetitions.addLength(most === Number.POSITIVE_INFINITY ? least : most)) {
    writing.leave();
    return 'string';
  }
  const end = most === Number.POSITIVE_INFINITY ? '' : most;
  return rules.addPlain(`${quote} ${character}{${least},${end}} ${quote}`);
}

/** The pattern where it can be followed, else the format; null: neither says anything. */
function patternOrFormat(node: Node, where: string, writing: Writing): string | null {
  const { pattern, format } = node;
  const { quote } = writing.rules.notation;
  const known = typeof format === 'string' && Object.hasOwn(FORMATS, format) ? FORMATS[format]! : null;
  const byFormat = (): string | null =>
    known === null ? null : writing.rules.shared(`format ${format}`, () => `${quote} (${known}) ${quote}`);
  if (pattern === undefined) return byFormat();
  if (typeof pattern !== 'string')
    throw new KvError('bad-argument', `the pattern at ${where} must be a text`, {
      values: { pattern: show(pattern).slice(0, 40), where },
    });
  try {
    const expression = patternRule(pattern, where, writing);
    if (isFollowedExactly(pattern, where)) return expression;
    writing.leave();
    return byFormat() ?? expression;
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'unsupported' || known === null) throw error;
    writing.leave();
    return byFormat();
  }
}

/** A rule of the texts that a pattern is found in: before and behind what it does not anchor, anything may stand. */
function patternRule(pattern: string, where: string, { rules, repetitions }: Writing): string {
  const { quote, search } = rules.notation;
  if (search === null) throw cannot("'pattern', in texts that this model quotes in its own way,", where);
  return rules.shared(`pattern ${pattern}`, () => {
    const alternatives = followedPattern(pattern, where, repetitions).map(({ body, fromStart, toEnd }) => {
      const own = rules.add(`${body} ${toEnd ? quote : 'text'}`);
      if (fromStart) return own;
      const searched = rules.reserve();
      return rules.namedPlain(searched, search(searched, own));
    });
    return `${quote} (${alternatives.join(' | ')})`;
  });
}
