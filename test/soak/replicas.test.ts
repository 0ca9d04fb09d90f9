// Servers of their own processes with one store: what one has answered, another goes on with, and kill -9 loses
// nothing that a client was told. Nothing shorter shows what is left of a server that has ended.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { seeded } from '../random.ts';
import { HAS_POSTGRES, PostgresProcess } from '../suite/postgres-server.ts';
import { MAIN } from '../suite/run-process.ts';
import { TIER } from '../tier.ts';

const root = mkdtempSync(join(tmpdir(), 'palimpsest-replicas-'));
const running = new Set<ChildProcess>();
afterAll(() => {
  for (const child of running) child.kill('SIGKILL');
  rmSync(root, { recursive: true, force: true });
});

/** `palimpsest serve` of the reference model. */
class Replica {
  readonly child: ChildProcess;
  readonly client: OpenAI;

  private constructor(child: ChildProcess, baseURL: string) {
    this.child = child;
    // Whoever is refused is told so here, and not tried again behind the back of a test.
    this.client = new OpenAI({ baseURL, apiKey: 'none', maxRetries: 0 });
  }

  static async start(store: string | null): Promise<Replica> {
    const state = mkdtempSync(join(root, 'state-'));
    const kept = store === null ? [] : ['--store', store];
    const args = ['serve', '-m', 'reference', '--port', '0', '--json', '--threads', '1', '--kv-budget', '64MiB'];
    const child = spawn(process.execPath, [MAIN, ...args, '--state', state, ...kept], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    running.add(child);
    child.once('exit', () => running.delete(child));
    const [line] = (await once(child.stdout!, 'data')) as [Buffer];
    return new Replica(child, (JSON.parse(line.toString()) as { baseUrl: string }).baseUrl);
  }

  /** → its exit code; null: it was killed. */
  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<number | null> {
    const ended = once(this.child, 'exit') as Promise<[number | null]>;
    this.child.kill(signal);
    return (await ended)[0];
  }

  respond(input: string, previous?: string): Promise<OpenAI.Responses.Response> {
    const behind = previous === undefined ? {} : { previous_response_id: previous };
    return this.client.responses.create({ ...asked, input, max_output_tokens: 12, ...behind });
  }

  async chat(messages: OpenAI.ChatCompletionMessageParam[]): Promise<OpenAI.ChatCompletion> {
    return this.client.chat.completions.create({ ...asked, messages, max_tokens: 12 });
  }
}

const asked = { model: 'reference', temperature: 0 };
const FIRST = `Once there was a scribe who scraped old pages. ${'He wrote on what was left of them. '.repeat(30)}What then?`;
const THEN = 'And what did he find there?';

const statusOf = (error: unknown): unknown => (error instanceof OpenAI.APIError ? error.status : undefined);

/** Asks again for as long as the request is not there in time (408). */
async function heard<T>(ask: () => Promise<T>): Promise<T> {
  for (;;)
    try {
      return await ask();
    } catch (error) {
      if (statusOf(error) !== 408) throw error;
    }
}

const textOf = (completion: OpenAI.ChatCompletion): string => completion.choices[0]!.message.content!;

test('dist is built', () => expect(existsSync(MAIN)).toBe(true));

function contract(storeOf: () => string): void {
  test('the next server goes on where one was that drained', async () => {
    const alone = await Replica.start(null);
    const first = await alone.respond(FIRST);
    const expected = (await alone.respond(THEN, first.id)).output_text;
    await alone.end('SIGTERM');

    const one = await Replica.start(storeOf());
    const told = await one.respond(FIRST);
    expect(told.output_text).toBe(first.output_text);
    expect(await one.end('SIGTERM')).toBe(0);

    const next = await Replica.start(storeOf());
    const held = told.usage!.input_tokens + told.usage!.output_tokens;
    const behind = await next.respond(THEN, told.id);
    expect(behind.output_text).toBe(expected);
    expect(behind.usage!.input_tokens_details.cached_tokens).toBeGreaterThanOrEqual(held - 1);
    await next.end('SIGTERM');

    // Another one finds the conversation by its messages alone.
    const other = await Replica.start(storeOf());
    const said = [
      { role: 'user' as const, content: FIRST },
      { role: 'assistant' as const, content: told.output_text },
      { role: 'user' as const, content: THEN },
      { role: 'assistant' as const, content: behind.output_text },
      { role: 'user' as const, content: 'And then?' },
    ];
    const chat = await other.chat(said);
    expect(chat.usage!.prompt_tokens_details!.cached_tokens).toBeGreaterThanOrEqual(held - 1);
    expect(textOf(chat)).not.toBe('');
    await other.end('SIGTERM');
  }, 120_000);

  test('kill -9 of one of three loses nothing that a client was told', async () => {
    const rounds = TIER === 'night' ? 100 : 3;
    const random = seeded(29);
    const replicas = await Promise.all([1, 2, 3].map(() => Replica.start(storeOf())));
    let isOver = false;
    /** What clients were told: the newest response of each, which replicas are asked for in turn. */
    const told = new Map<string, string>();
    let answers = 0;
    const work = async (name: string): Promise<void> => {
      for (let turn = 0; !isOver; turn++) {
        const replica = replicas[Math.floor(random() * replicas.length)]!;
        const previous = turn % 4 === 0 ? undefined : told.get(name);
        try {
          const response = await replica.respond(`Turn ${turn} of ${name}: go on.`, previous);
          told.set(name, response.id);
          answers++;
        } catch (error) {
          // A server that was killed fails by its connection; one without processor time says 408, to try again.
          if (!(error instanceof OpenAI.APIConnectionError) && statusOf(error) !== 408) throw error;
        }
      }
    };
    const clients = ['a', 'b', 'c', 'd'].map(work);
    for (let round = 0; round < rounds; round++) {
      const until = answers + 1 + Math.floor(random() * 6);
      await expect.poll(() => answers, { timeout: 60_000 }).toBeGreaterThanOrEqual(until);
      const at = Math.floor(random() * replicas.length);
      await replicas[at]!.end('SIGKILL');
      // All that was told is there for the others, at once.
      for (const id of told.values()) {
        const other = replicas[(at + 1) % replicas.length]!;
        expect((await heard(() => other.client.responses.retrieve(id))).id).toBe(id);
        expect((await heard(() => other.respond('Go on.', id))).previous_response_id).toBe(id);
      }
      replicas[at] = await Replica.start(storeOf());
    }
    isOver = true;
    await Promise.all(clients);
    expect(answers).toBeGreaterThan(rounds);
    for (const replica of replicas) expect(await replica.end('SIGTERM')).toBe(0);
  }, 3_600_000);
}

describe('a store in a folder', () => {
  contract(() => join(root, 'store'));
});

describe.skipIf(!HAS_POSTGRES)('a store in PostgreSQL (needs PostgreSQL 15 or later)', () => {
  let server: PostgresProcess;
  beforeAll(async () => {
    server = await PostgresProcess.start();
  });
  afterAll(() => server.remove());
  contract(() => server.url);
});
