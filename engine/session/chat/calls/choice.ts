/** Whether an answer calls tools, as its caller chose, and what it follows for that. */
import { asRecord, KvError, show } from '../../../../native/index.ts';
import type { ToolChoice } from '../../../options/types.ts';
import type { Following } from '../../../transformer/grammar/constraint.ts';
import type { Grammars } from '../../../transformer/grammar/grammars.ts';
import type { ChatTool, LoadedModel } from '../../../transformer/types.ts';
import type { CallFormat } from './call.ts';
import { CallFollowing } from './following.ts';
import { callGrammar } from './grammar.ts';
import { CallWatch, markTokens } from './watch.ts';

/** Throws 'bad-argument' for what is no choice, and for a call of what there is not. */
export function checkToolChoice(choice: unknown, tools: readonly ChatTool[]): asserts choice is ToolChoice | undefined {
  if (choice === undefined || choice === 'auto' || choice === 'none') return;
  const name = asRecord(choice)?.['name'];
  const isNamed = typeof name === 'string' && Object.keys(choice as object).length === 1;
  const known = tools.map((tool) => tool.name);
  if (choice !== 'required' && !isNamed)
    throw new KvError('bad-argument', "toolChoice is 'auto', 'none', 'required' or { name }", {
      values: { toolChoice: show(choice).slice(0, 80) },
    });
  if (isNamed ? !known.includes(name) : known.length === 0)
    throw new KvError('bad-argument', isNamed ? `there is no tool ${name.slice(0, 80)}` : 'there is no tool to call', {
      values: { toolChoice: show(choice).slice(0, 80), tools: known.slice(0, 20) },
      hint: 'tools of a chat are given when it is opened',
    });
}

/**
 * What is left of a choice for an answer that may have a grammar of its own, which then says all. Throws 'bad-argument'
 * as checkToolChoice, and where a call is wanted beside a grammar.
 */
export function choiceBeside(
  grammar: unknown,
  choice: ToolChoice | undefined,
  tools: readonly ChatTool[],
): ToolChoice | undefined {
  checkToolChoice(choice, tools);
  if (grammar === undefined) return choice;
  if (choice === undefined || choice === 'auto' || choice === 'none') return undefined;
  throw new KvError('bad-argument', 'an answer calls a tool or follows a grammar', {
    values: { toolChoice: show(choice).slice(0, 80) },
    hint: "leave out `grammar`, or give this answer toolChoice: 'none'",
  });
}

/** What chooses for an answer. */
export interface Chosen {
  readonly choice: ToolChoice | undefined;
  /** True if there is one call, not several. Default: for a tool that is named. */
  readonly once?: boolean;
  readonly tools: readonly ChatTool[];
  readonly template: string;
  /** How the model writes calls; null: in no way that is known. */
  readonly format: CallFormat | null;
  /** True if the library is wanted even where calls are left to the model. Default: it is free to be missing then. */
  readonly mustFollow?: boolean;
  /** Aborts the compiling of a grammar. */
  readonly signal?: AbortSignal | undefined;
}

/** What an answer follows for its calls. */
export interface ChosenFollowing {
  readonly following: Following;
  /** Tools whose arguments may be anything. */
  readonly unchecked: readonly string[];
}

/**
 * What an answer follows; null: nothing. Its owner closes it. Throws 'unsupported' where a call is wanted and no way to
 * write it is known, 'missing-dependency' where one is wanted and the library is not there, and what Grammars throws.
 */
export async function openChosen(
  model: Pick<LoadedModel, 'tokenizer' | 'name'>,
  grammars: Grammars,
  { choice, once = false, tools, template, format, mustFollow = false, signal }: Chosen,
): Promise<ChosenFollowing | null> {
  const isWanted = choice !== undefined && choice !== 'auto' && choice !== 'none';
  if (format === null && isWanted)
    throw new KvError('unsupported', 'the chat template does not say how a tool is called', {
      values: { model: model.name },
      hint: 'chat.callFormat is null: describe calls in the system message, and give the answer a grammar: { jsonSchema }',
    });
  if (choice === undefined || format === null || tools.length === 0) return null;
  const tokens = markTokens(model.tokenizer, format);
  if (choice === 'none') {
    // What begins with a bracket may be an answer in JSON: it is text then.
    const watch = new CallWatch(model.tokenizer, { ...format, opensAtStart: [] }, tokens);
    return { following: new CallFollowing(watch, null), unchecked: [] };
  }
  const callable = typeof choice === 'object' ? tools.filter(({ name }) => name === choice.name) : tools;
  const { unchecked, ...text } = callGrammar(format, callable, {
    template,
    once: once || typeof choice === 'object',
    marks: tokens.marks,
  });
  try {
    const call = await grammars.withMarks(tokens.ids).follow(text, 'schema of the tools', signal);
    const watch = new CallWatch(model.tokenizer, format, tokens);
    return { following: isWanted ? call : new CallFollowing(watch, call), unchecked };
  } catch (error) {
    if (!isWanted && !mustFollow && error instanceof KvError && error.code === 'missing-dependency') return null;
    throw error;
  }
}
