/** The grammar that an answer follows, from flags: a file, or the text itself. */
import { existsSync } from 'node:fs';
import { KvError, parseJson } from '../../native/index.ts';
import type { Generated } from '../session/types.ts';
import { checkGrammar, type GrammarOption, type JsonSchema } from '../transformer/grammar/options.ts';
import { grammarText } from '../transformer/grammar/source.ts';
import { readText } from './read-text.ts';

/** Throws 'bad-argument' for both at once and for what is no JSON, and what reading a file throws. */
export async function grammarOption(settings: Partial<Record<string, unknown>>): Promise<GrammarOption | undefined> {
  const schema = settings['jsonSchema'] as string | undefined;
  const grammar = settings['grammar'] as string | undefined;
  if (schema !== undefined && grammar !== undefined)
    throw new KvError('bad-argument', 'an answer follows one grammar', {
      hint: 'leave out --json-schema, or --grammar',
    });
  if (grammar !== undefined) {
    const isText = grammar.includes('::=') && !existsSync(grammar);
    return checked({ gbnf: isText ? grammar : await readText(grammar, 'grammar') });
  }
  if (schema === undefined) return undefined;
  const text = /^\s*[{tf]/.test(schema) && !existsSync(schema) ? schema : await readText(schema, 'JSON schema');
  const json = parseJson(Buffer.from(text), {
    what: 'the JSON schema',
    code: 'bad-argument',
    // Properties may be called anything.
    anyKey: true,
    hint: `--json-schema FILE, or --json-schema '{"type": "object", …}'`,
  });
  if (typeof json !== 'boolean' && (typeof json !== 'object' || json === null || Array.isArray(json)))
    throw new KvError('bad-argument', 'a JSON schema is an object, or true or false', {
      values: { given: text.slice(0, 80) },
      hint: `--json-schema FILE, or --json-schema '{"type": "object", …}'`,
    });
  return checked({ jsonSchema: json as JsonSchema });
}

/** What can be seen before there is a model. */
function checked(grammar: GrammarOption): GrammarOption {
  checkGrammar(grammar);
  grammarText(grammar);
  return grammar;
}

/**
 * Says on standard error where an answer ended before its grammar did, or breaks a rule that is looked at in the end.
 */
export function warnIncomplete({ grammarComplete, finish }: Generated): void {
  if (grammarComplete !== false) return;
  const hint = finish === 'length' ? ': --max-tokens was reached' : '';
  const what = finish === 'stop' ? 'does not fulfil its grammar' : 'ends before its grammar is complete';
  process.stderr.write(`warning: the answer ${what}${hint}\n`);
}
