/**
 * `npm run bench -- http` measures what the server for OpenAI clients costs beside the library: conversations that are
 * asked at once, by `engine.chat` and as streams over HTTP on loopback, server and clients in this process. Both take
 * turns; figures are medians of the rounds.
 */
import { writeFileSync } from 'node:fs';
import { createEngine, type Engine, serve } from '../../engine/index.ts';
import { alternate, median, p95, took } from './measure.ts';
import { columns, fixed } from './table.ts';

export interface HttpRow {
  readonly model: string;
  readonly isa: string;
  readonly threads: number;
  readonly clients: number;
  readonly by: 'library' | 'http';
  /** Of all clients together, of a second by the clock and of a second of processor time. */
  readonly tokensPerSecond: number;
  readonly tokensPerCpuSecond: number;
  readonly firstTokenMs: number;
  readonly firstTokenMsP95: number;
  readonly interTokenMsP95: number;
}

const CLIENTS = [1, 4, 16];
const ANSWER_TOKENS = 64;
const BUDGET_BYTES = 2 ** 30;

/** When a client asked, and when each text came. */
interface Heard {
  readonly askedMs: number;
  readonly textMs: readonly number[];
}

interface Asked {
  readonly messages: readonly { readonly role: 'user'; readonly content: string }[];
  readonly seed: number;
}

/** Prompts that begin differently, of some two hundred tokens. */
const askedBy = (client: number, round: number): Asked => ({
  messages: [
    { role: 'user', content: `${client}.${round}: ${'The keeper counted the hives and went home. '.repeat(18)}` },
  ],
  seed: client + 1,
});

/** No answer ends before its time. */
const never = ({ info: { config } }: Engine): Record<number, number> =>
  Object.fromEntries(config.eosIds.map((id) => [id, -1000]));

async function byLibrary(engine: Engine, { messages, seed }: Asked): Promise<Heard> {
  const askedMs = performance.now();
  const textMs: number[] = [];
  await using chat = await engine.chat({ template: 'hermes' });
  const options = { maxTokens: ANSWER_TOKENS, seed, temperature: 0.8, logitBias: never(engine) };
  for await (const _ of chat.send(messages, options)) textMs.push(performance.now());
  return { askedMs, textMs };
}

async function byHttp(url: string, engine: Engine, { messages, seed }: Asked): Promise<Heard> {
  const askedMs = performance.now();
  const textMs: number[] = [];
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ messages, seed, max_tokens: ANSWER_TOKENS, logit_bias: never(engine), stream: true }),
  });
  for await (const piece of response.body!.pipeThrough(new TextDecoderStream()))
    for (const _ of piece.matchAll(/"delta":\{"content":"[^"]/g)) textMs.push(performance.now());
  return { askedMs, textMs };
}

interface Asking {
  readonly model: string;
  readonly threads: number;
  readonly rounds: number;
  readonly json: string | null;
  /** How many ask at once, one row after the other. */
  readonly clients?: readonly number[];
}

type Measured = Omit<HttpRow, 'model' | 'isa' | 'threads' | 'clients' | 'by'>;

async function measured(clients: number, ask: (client: number) => Promise<Heard>): Promise<Measured> {
  let heard: Heard[] = [];
  const { seconds, cpuSeconds } = await took(async () => {
    heard = await Promise.all(Array.from({ length: clients }, (_, client) => ask(client)));
  });
  const first = heard.map(({ askedMs, textMs }) => (textMs[0] ?? askedMs) - askedMs);
  const between = heard.flatMap(({ textMs }) => textMs.slice(1).map((at, index) => at - textMs[index]!));
  return {
    tokensPerSecond: (clients * ANSWER_TOKENS) / seconds,
    tokensPerCpuSecond: (clients * ANSWER_TOKENS) / cpuSeconds,
    firstTokenMs: median(first),
    firstTokenMsP95: p95(first),
    interTokenMsP95: p95(between),
  };
}

export async function http(
  say: (line: string) => void,
  { model, threads, rounds, json, clients: counts = CLIENTS }: Asking,
): Promise<HttpRow[]> {
  const engine = await createEngine({ model, threads, stateDir: null, kvBudget: BUDGET_BYTES, prefixCaching: false });
  const answers = { conversationsMax: 1, template: 'hermes' };
  const server = await serve(engine, { port: 0, requestsPerSecond: 1e6, answers });
  const { name, isa } = engine.info;
  const rows: HttpRow[] = [];
  try {
    for (const clients of counts) {
      let round = 0;
      const library = { run: () => measured(clients, (client) => byLibrary(engine, askedBy(client, round++))) };
      const over = { run: () => measured(clients, (client) => byHttp(server.url, engine, askedBy(client, round++))) };
      const all = await alternate([library, over], rounds);
      for (const [at, by] of (['library', 'http'] as const).entries()) {
        const of = (field: keyof Measured): number => median(all[at]!.map((one) => one[field]));
        rows.push({
          ...{ model: name, isa, threads, clients, by },
          ...{ tokensPerSecond: of('tokensPerSecond'), tokensPerCpuSecond: of('tokensPerCpuSecond') },
          ...{ firstTokenMs: of('firstTokenMs'), firstTokenMsP95: of('firstTokenMsP95') },
          interTokenMsP95: of('interTokenMsP95'),
        });
      }
    }
  } finally {
    await server.close();
    await engine.close();
  }
  const titles = ['clients', 'by', 'tokens/s', 'tokens/CPU s', 'first token ms', 'p95', 'between tokens p95 ms'];
  const lines = rows.map((row) => [
    ...[row.clients, row.by, fixed(row.tokensPerSecond, 1), fixed(row.tokensPerCpuSecond, 1)],
    ...[fixed(row.firstTokenMs, 0), fixed(row.firstTokenMsP95, 0), fixed(row.interTokenMsP95, 1)],
  ]);
  for (const line of columns(titles, lines)) say(line);
  if (json !== null) writeFileSync(json, `${JSON.stringify(rows, null, 2)}\n`);
  return rows;
}
