/** `palimpsest run --chat` on a terminal: a conversation with one cache, turn by turn. */
import {
  bytesText,
  columnsOf,
  fields,
  grouped,
  jsonText,
  KvError,
  plural,
  replaceFile,
  wrap,
} from '../../native/index.ts';
import { forecast } from '../cache/budget.ts';
import { isProposedFor, proposedOf } from '../options/table.ts';
import type { Prompt } from '../options/types.ts';
import type { ChatAnswer } from '../session/chat/types.ts';
import { countedTokens } from '../session/prompt.ts';
import type { Generated } from '../session/types.ts';
import type { Chat } from '../thread/chat.ts';
import { type ChatOptions, CONVERSATION_OPTIONS } from '../thread/chat-options.ts';
import type { Engine } from '../thread/engine.ts';
import { closing, firstMessages, generateOptions, stream } from './answer.ts';
import { ChatInput } from './chat-input.ts';
import { failureText } from './failure.ts';
import { jsonResult } from './json-result.ts';
import { opening } from './loading.ts';
import { loraOf } from './lora.ts';
import { lowMemoryText } from './low-memory.ts';
import { optionsOf } from './option-settings.ts';
import { flag, type Settings, sessionOptions, text } from './options.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';
import { memoryRows } from './report.ts';

/** The errors after which a conversation goes on. */
const GOES_ON: readonly string[] = [
  'aborted',
  'bad-argument',
  'budget-exceeded',
  'budget-too-small',
  'context-too-long',
  'io',
];

const HELP = `/help         this
/continue     goes on with the last answer, where it was cut
/budget       what the cache holds, and within which budget
/lowmem on    says that memory is short, so that pages go lower; off: no longer
/save FILE    what was said, as JSON that inspect --chat and OpenAI clients take
A line that ends in \\ goes on in the next one; what is pasted is one question.
Ctrl-C ends an answer, twice between two answers the conversation; so does Ctrl-D. A question that begins with / is
asked after a space.`;

/** What is missing behind the commands that take something. */
const TAKES = new Map([
  ['lowmem', '/lowmem takes on or off'],
  ['save', '/save takes the name of a file'],
]);

/** What a conversation on a terminal works with. */
interface Talk {
  readonly chat: Chat;
  readonly settings: Settings;
  readonly input: ChatInput;
  readonly progress: ProgressLine;
  readonly signal: AbortSignal;
}

/** Writes a line beside the conversation. */
const say = (line: string): void => void process.stderr.write(`${wrap(line, columnsOf(process.stderr))}\n`);

/**
 * Opens a conversation as the settings say, and tells how it ends. first: its first question, where adapters are
 * proposed for that; null: nobody has asked yet.
 */
async function openChat(engine: Engine, settings: Settings, signal: AbortSignal, first: string | null): Promise<Chat> {
  const { tokensExpected: _, ...options } = sessionOptions(settings, 0);
  const asked = { ...options, ...optionsOf<ChatOptions>(settings, CONVERSATION_OPTIONS) };
  const begun: Prompt = first === null ? [] : [...firstMessages(settings), { role: 'user', content: first }];
  const ids = first === null ? [] : await engine.tokenize(begun, countedTokens(engine.info));
  const chat = await opening(engine, signal, () => engine.chat(proposedOf(asked, ids)));
  const { config } = engine.info;
  const budget = text(settings, 'kvBudget');
  if (settings['contextTokens'] === undefined && chat.contextTokens < config.contextLength)
    say(
      `The budget of ${budget} holds a conversation of about ${grouped(chat.contextTokens)} tokens; the model could hold ${grouped(config.contextLength)}.`,
    );
  if (budget?.trim().endsWith('%')) say(await shareOf(chat, engine, budget));
  if (chat.mostTokens > chat.contextTokens)
    say(
      `From ${grouped(chat.contextTokens)} tokens on the conversation is compressed; its bytes can hold about ${grouped(chat.mostTokens)}.`,
    );
  say('Ctrl-C ends an answer, and twice between two answers the conversation. /help says more.');
  return chat;
}

/** What a budget in percent comes to: it is a share of what the conversation may become, not of what it is. */
async function shareOf(chat: Chat, { info }: Engine, budget: string): Promise<string> {
  const { budgetBytes } = await chat.session.report();
  const { tokens, pairs } = forecast(info.config, chat.contextTokens);
  const whole = pairs.find(({ pair }) => pair === 'q8:q8')!.bytes;
  const before = Math.floor((tokens * budgetBytes!) / whole);
  return `${budget} of what ${grouped(tokens)} tokens take in f16 is ${bytesText(budgetBytes!)}: ${
    before >= tokens
      ? 'the whole conversation stays in 8 bits'
      : `the first ${grouped(before)} tokens or so stay in 8 bits, and only then do pages go lower`
  }.`;
}

/** What a conversation begins with that is opened by its first question; null: the input ended. */
async function firstQuestion(input: ChatInput): Promise<string | null> {
  for (;;) {
    const asked = await input.next();
    if (asked === null || !(asked.trim() === '' || asked.startsWith('/'))) return asked;
    if (asked.trim() === '/help') process.stderr.write(`${HELP}\n`);
    else if (asked.trim() !== '')
      say('Adapters are proposed for the first question, and only then is the conversation open: ask it first.');
  }
}

/**
 * Holds a conversation with one cache until the input ends. Ctrl-C ends an answer, or the conversation if it is pressed
 * twice while a question is waited for. Where adapters are to be proposed, the first question is waited for before
 * there is a session. → id of the session; null: nothing was asked, and there was none
 */
export async function converse(engine: Engine, settings: Settings, signal: AbortSignal): Promise<string | null> {
  let input: ChatInput | null = isProposedFor(loraOf(settings)?.adapters) ? new ChatInput({ signal }) : null;
  try {
    const first = input === null ? null : await firstQuestion(input);
    if (input !== null && first === null) return null;
    const chat = await openChat(engine, settings, signal, first);
    input ??= new ChatInput({ signal });
    const progress = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
    return await hold({ chat, settings, input, progress, signal }, engine, first);
  } finally {
    input?.close();
  }
}

/** first: what was asked already; null: nothing. → id of the session */
async function hold(talk: Talk, engine: Engine, first: string | null): Promise<string> {
  const { chat, input, settings, signal } = talk;
  const { session } = chat;
  let last: Generated | null = null;
  await closing(session, signal, async () => {
    if (first !== null) last = await turn(talk, first);
    for (;;) {
      const asked = await input.next();
      if (asked === null) break;
      if (asked.trim() === '') continue;
      last = (await turn(talk, asked)) ?? last;
    }
    const report = await session.report();
    process.stderr.write(`\n${fields(memoryRows(report), columnsOf(process.stderr))}\n`);
    if (flag(settings, 'json')) {
      const result = jsonResult(engine, report, last ?? { tokensPerSecond: 0, prefillTokensPerSecond: 0 }, null);
      process.stdout.write(`${JSON.stringify(result)}\n`);
    }
  });
  return session.id;
}

/** Does what was typed: a command, or a question. → the answer; null: there is none */
async function turn(talk: Talk, asked: string): Promise<Generated | null> {
  const { input, signal } = talk;
  const turnSignal = input.startTurn();
  try {
    if (asked.trim() === '/continue') return await answer(talk, [], turnSignal);
    if (asked.startsWith('/')) await command(talk, asked);
    else return await answer(talk, asked, turnSignal);
  } catch (error) {
    // A question that does not fit leaves the conversation as it was, and a shorter one may fit.
    if (!(error instanceof KvError) || signal.aborted || !GOES_ON.includes(error.code)) throw error;
    process.stderr.write(`${failureText(error)}\n`);
  } finally {
    input.endTurn();
  }
  return null;
}

/** input: a question, or nothing more, so that the last answer goes on. */
async function answer(
  { chat, settings, progress }: Talk,
  input: string | readonly never[],
  turnSignal: AbortSignal,
): Promise<ChatAnswer> {
  const options = await generateOptions(settings, progress, turnSignal);
  const continueFinalMessage = typeof input !== 'string';
  const answered = await stream(chat.send(input, { ...options, continueFinalMessage }), settings, progress);
  if (answered.finish === 'length')
    say(
      `The answer was cut at ${plural(answered.tokens, 'token')}; /continue goes on, and --max-tokens allows longer ones.`,
    );
  if (answered.dropped.length > 0)
    say(`The ${plural(answered.dropped.length, 'oldest message')} left the conversation, which was full.`);
  if (answered.compressed !== null)
    say(
      `The conversation is ${plural(answered.compressed.overTokens, 'token')} over its context and now at ${answered.compressed.effectiveBits.toFixed(1)} bits a number; at most ${grouped(answered.compressed.mostTokens)} tokens fit.`,
    );
  return answered;
}

/** What begins with a slash. Throws KvError 'bad-argument' and what writing a file throws; the conversation goes on. */
async function command({ chat }: Talk, typed: string): Promise<void> {
  const [name, path = ''] = typed
    .slice(1)
    .trim()
    .split(/\s+(.*)/s);
  if (name === 'help') process.stderr.write(`${HELP}\n`);
  else if (name === 'budget')
    process.stderr.write(`${fields(memoryRows(await chat.session.report()), columnsOf(process.stderr))}\n`);
  else if (name === 'lowmem' && (path === 'on' || path === 'off')) {
    await chat.session.setLowMemory(path === 'on');
    say(lowMemoryText(path === 'on'));
  } else if (name === 'save' && path !== '') {
    replaceFile(path, Buffer.from(`${jsonText(chat.messages)}\n`));
    say(`${path}: ${plural(chat.messages.length, 'message')}`);
  } else
    throw new KvError('bad-argument', TAKES.get(name!) ?? `there is no /${name}`, {
      hint: '/help lists what there is; a question that begins with / is asked after a space',
    });
}
