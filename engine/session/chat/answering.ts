/** What the model's thread does for a chat: describe a template, count, and answer. */
import { given, KvError } from '../../../native/index.ts';
import { f16CacheBytes } from '../../cache/budget.ts';
import type { Progress, SendOptions, ToolChoice } from '../../options/types.ts';
import { checkMessages, checkTools } from '../../transformer/chat-messages.ts';
import { checkTemplate } from '../../transformer/chat-template.ts';
import type { Following } from '../../transformer/grammar/constraint.ts';
import type { Runtime } from '../../transformer/runtime/runtime.ts';
import type { LoadedModel } from '../../transformer/types.ts';
import { Answer, type AnswerOptions, type OpenCalls } from '../answer.ts';
import type { Session } from '../session.ts';
import type { Generated } from '../types.ts';
import type { CallFormat } from './calls/call.ts';
import { checkToolChoice, choiceBeside, openChosen } from './calls/choice.ts';
import { callFormatOf } from './calls/formats.ts';
import { HeldCalls } from './calls/held.ts';
import { fit, idsOf } from './fit.ts';
import type { Answered, ChatCount, ChatDescription, Compressed, Conversation } from './types.ts';

/**
 * Throws 'bad-tokenizer' without a template, 'unsupported' where it does not know tools, 'bad-argument' for what are no
 * messages or tools, and what openChosen throws.
 */
export async function describeChat(
  { model, grammars }: Pick<Runtime, 'model' | 'grammars'>,
  { chat, toolChoice: choice }: { readonly chat: Conversation; readonly toolChoice: ToolChoice | undefined },
): Promise<ChatDescription> {
  const { tools, messages } = chat;
  checkTools(tools);
  const template = chat.template ?? model.tokenizer.templateFor(tools);
  if (template === null)
    throw new KvError('bad-tokenizer', `${model.name} has no chat template`, {
      values: { model: model.path },
      hint: 'give a template, or open a session, which reads plain text',
    });
  checkTemplate(template);
  checkMessages(messages);
  if (tools.length > 0 && !/\btools\b/.test(template))
    throw new KvError('unsupported', 'the chat template does not know tools, so the model would never hear of them', {
      values: { model: model.name, tools: tools.length },
      hint: "give a template that writes `tools` ('hermes' for models that know ChatML), or describe them in the system message",
    });
  checkToolChoice(choice, tools);
  const format = callFormatOf(template);
  (await openChosen(model, grammars, { choice, tools, template, format }))?.following.close();
  return { callFormat: format?.name ?? null };
}

/** What answers follow that are run again. Throws 'missing-dependency' where the library is not there. */
export const openCallsOf =
  ({ model, grammars }: Pick<Runtime, 'model' | 'grammars'>): OpenCalls =>
  async ({ tools, template, ...chosen }, signal) => {
    checkTools(tools);
    checkTemplate(template);
    checkToolChoice(chosen.choice, tools);
    const format = callFormatOf(template);
    const opened = await openChosen(model, grammars, { ...chosen, tools, template, format, mustFollow: true, signal });
    return opened?.following ?? null;
  };

/** What a conversation would take. Nothing is read. */
export async function countChat(model: LoadedModel, session: Session, chat: Conversation): Promise<ChatCount> {
  const ids = await idsOf(model, chat);
  const reusedTokens = session.keeps(ids);
  const roomTokens = chat.mostTokens - ids.length;
  return { tokens: ids.length, reusedTokens, readTokens: ids.length - reusedTokens, roomTokens };
}

/**
 * Reads what the cache does not hold of a conversation, and answers. Throws before anything is taken back what cannot
 * be done.
 */
export async function answerChat(
  model: LoadedModel,
  session: Session,
  chat: Conversation,
  { toolChoice, parallelToolCalls = true, ...plain }: SendOptions & Pick<AnswerOptions, 'onToken'>,
  emit: (event: { readonly text?: string; readonly progress?: Progress }) => void,
): Promise<Answered> {
  const { tools } = chat;
  const template = chat.template ?? model.tokenizer.templateFor(tools) ?? '';
  const known = tools.length === 0 ? null : callFormatOf(template);
  const format = toolChoice === 'none' ? null : known;
  const choice = choiceBeside(plain.grammar, toolChoice, tools);
  // Tools whose calls fulfil their schemas.
  let checked: readonly string[] | null = null;
  const following = async (): Promise<Following | null> => {
    const { signal } = plain;
    const chosen = { choice, once: !parallelToolCalls, tools, template, format: known, signal };
    const opened = await openChosen(model, session.runtime.grammars, chosen);
    if (opened !== null && choice !== 'none')
      checked = tools.map(({ name }) => name).filter((name) => !opened.unchecked.includes(name));
    return opened?.following ?? null;
  };
  const asked = choice === undefined ? plain : { ...plain, following };
  const maxTokens = await Answer.check(session.runtime, asked);
  // Without the library, calls that are left to the model are free, and its receipt has none.
  const isFollowed = choice !== undefined && (checked !== null || choice === 'none');
  const options = isFollowed ? { ...asked, calls: { choice, once: !parallelToolCalls, tools, template } } : asked;
  const { ids, dropped } = await fit(model, chat, maxTokens, options.signal);
  const onProgress = (progress: Progress): void => emit({ progress });
  const startMs = performance.now();
  const reusedTokens = await session.follow(ids, {
    reserve: maxTokens,
    tokensFollow: true,
    onProgress,
    ...given({ signal: options.signal }),
  });
  const readMs = performance.now() - startMs;
  const promptTokens = ids.length - reusedTokens;
  const { generated, text, calls } = await written(session, { ...options, template }, format, (piece) =>
    emit({ text: piece }),
  );
  const answer = session.tokens.slice(ids.length);
  return {
    ...generated,
    text,
    calls,
    callsConstrained: checked !== null && calls.every(({ name }) => checked!.includes(name)),
    written: says(model, format, answer) === generated.text ? answer : null,
    promptTokens,
    prefillTokensPerSecond: promptTokens === 0 ? 0 : (promptTokens * 1000) / readMs,
    reusedTokens,
    cachedTokens: reusedTokens,
    contextTokens: session.length,
    droppedMessages: dropped,
    compressed: compressedOf(session, chat),
  };
}

/** null where the conversation is within its context. */
function compressedOf(
  { governed, length }: Session,
  { contextTokens, mostTokens, atContextEnd }: Conversation,
): Compressed | null {
  if (atContextEnd !== 'compress' || length <= contextTokens) return null;
  const effectiveBits = (16 * governed.kv.usedBytes) / f16CacheBytes(governed.shape, length);
  return { overTokens: length - contextTokens, mostTokens, effectiveBits };
}

/** Writes an answer; calls are held back until they are complete. */
async function written(
  session: Session,
  options: AnswerOptions,
  format: CallFormat | null,
  show: (text: string) => void,
): Promise<Pick<Answered, 'text' | 'calls'> & { readonly generated: Generated }> {
  const held = format === null ? null : new HeldCalls(format);
  const stream = session.generate(null, { ...options, ...given({ controls: format?.controls }) });
  for (;;) {
    const next = await stream.next();
    if (next.done !== true) {
      const piece = held === null ? next.value : held.push(next.value);
      if (piece !== '') show(piece);
      continue;
    }
    const { parsed, rest } = held?.end(next.value.finish === 'length') ?? { parsed: null, rest: '' };
    if (rest !== '') show(rest);
    return { generated: next.value, text: parsed?.text ?? next.value.text, calls: parsed?.calls ?? [] };
  }
}

/** The text of ids as an answer has it. */
function says({ tokenizer }: LoadedModel, format: CallFormat | null, ids: readonly number[]): string {
  const stream = tokenizer.stream({ controls: format?.controls ?? [] });
  return ids.map((id) => stream.push(id)).join('') + stream.end();
}
