/**
 * Chat templates in the language of Jinja, as transformers sets it up: trimmed blocks, `break` and `continue`,
 * `generation`, `tojson`, `raise_exception`, `strftime_now`, and a sandbox in which nothing that is given changes.
 */
import { Bounds } from './bounds.ts';
import { globalsAt } from './globals.ts';
import { Interpreter } from './interpreter.ts';
import { parseTemplate } from './statements.ts';
import type { Text } from './text.ts';
import type { Value } from './values.ts';

/**
 * Throws TemplateRefusal if the template refuses what it is given, TemplateFault if it is broken or goes too far.
 * letters: how many it is given.
 */
export function renderTemplate(
  template: string,
  values: ReadonlyMap<string, Value>,
  { date, letters }: { readonly date: Date; readonly letters: number },
): Text {
  const interpreter = new Interpreter(new Bounds(letters));
  return interpreter.run(parseTemplate(template), new Map([...globalsAt(date), ...values]));
}
