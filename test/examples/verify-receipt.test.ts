// Receipts from outside: requests to a server for OpenAI clients come with them, and the command, the library and the
// program in Python (examples/verify_receipt.py) prove them from the log and refuse what was changed. A server, the
// built command and an interpreter take part, so nothing shorter says that a file that one of them wrote is understood
// by the others. Needs python3.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createEngine, type Engine, type LiveView, type Receipt, serve } from '../../engine/index.ts';
import { logDir } from '../../engine/state/folder.ts';
import {
  makeCheckpointKeys,
  parseCheckpoint,
  proveEntry,
  RECEIPT_BYTES_MAX,
  receiptIn,
  signLog,
  textDigest,
  verifierText,
  verifyReceipt,
} from '../../witness/index.ts';
import { refused } from '../refusal.ts';
import { palimpsest } from '../unit/engine/cli/command.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

const root = join(import.meta.dirname, '..', '..');
const folder = mkdtempSync(join(tmpdir(), 'palimpsest-verify-receipt-'));
const state = join(folder, 'state');
const log = logDir(state);
let engine: Engine;
let view: LiveView;

beforeAll(async () => {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: state, kvBudget: '4MiB' });
  view = await serve(engine, { port: 0, answers: {} });
});
afterAll(async () => {
  await view?.close();
  await engine?.close();
  rmSync(folder, { recursive: true, force: true });
});

interface Told {
  readonly palimpsest: { readonly receipt?: Receipt; readonly request?: unknown };
}

async function ask(path: string, body: object): Promise<Told & Record<string, unknown>> {
  const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) };
  const response = await fetch(view.url + path, init);
  expect(response.status).toBe(200);
  return (await response.json()) as Told & Record<string, unknown>;
}

const messages = [{ role: 'user', content: 'Who kept the bees?' }];
const LIMITS = { temperature: 0.8, seed: 5, receipt: true };
const REQUESTS: readonly (readonly [path: string, body: object, text: (answer: never) => string])[] = [
  [
    '/v1/chat/completions',
    { messages, max_tokens: 40, kv_budget: '40%', ...LIMITS },
    ({ choices }: { choices: { message: { content: string } }[] }) => choices[0]!.message.content,
  ],
  [
    '/v1/responses',
    { input: 'What did the keeper count?', max_output_tokens: 40, ...LIMITS },
    ({ output }: { output: { content: { text: string }[] }[] }) => output[0]!.content[0]!.text,
  ],
  [
    '/v1/completions',
    { prompt: 'It was a bright cold day, and', max_tokens: 40, ...LIMITS },
    ({ choices }: { choices: { text: string }[] }) => choices[0]!.text,
  ],
];

test.each(REQUESTS)('%s gives a receipt to who asks, which is proved and run again', async (path, body, textIn) => {
  const answer = await ask(path, body);
  const { receipt, request } = answer.palimpsest;
  expect(Buffer.byteLength(JSON.stringify(receipt))).toBeLessThanOrEqual(RECEIPT_BYTES_MAX);
  expect(receipt!.answer).toMatchObject({ tokens: 40, text: textDigest(textIn(answer as never)) });
  const proved = await engine.verifyReceipt(receipt, { log, request });
  expect(proved.again).toMatchObject({ tokens: 40, text: textIn(answer as never) });
  const forged = { ...receipt, kld: { nats: 0, by: 'measured' } };
  expect(await refused(engine.verifyReceipt(forged, { log, request }))).toMatchObject({ code: 'bad-signature' });
  const unasked = await ask(path, { ...body, receipt: false });
  expect(unasked.palimpsest?.receipt).toBeUndefined();
});

test('a later turn of a conversation is run again from its beginning', async () => {
  const first = { messages, max_tokens: 30, temperature: 0.8, seed: 8, cache_salt: 'turns' };
  const answered = (await ask('/v1/chat/completions', first)) as unknown as { choices: { message: object }[] };
  const turns = [...messages, answered.choices[0]!.message, { role: 'user', content: 'And who else?' }];
  const second = await ask('/v1/chat/completions', { ...first, messages: turns, receipt: true });
  const { receipt, request } = second.palimpsest;
  expect(receipt!.bound).toBeNull();
  const { again } = await engine.verifyReceipt(receipt, { log, request });
  expect(again.tokens).toBe(receipt!.answer.tokens);
});

test('the command proves the answer of a server from its file, and ends with 2 where it was changed', async () => {
  const answer = await ask('/v1/completions', { prompt: 'Once upon a time', max_tokens: 20, ...LIMITS });
  const file = join(folder, 'answer.json');
  writeFileSync(file, JSON.stringify(answer));
  const { code, out } = await palimpsest(['verify', file, '--log', log, '-m', MODEL, '--json', '--progress', 'none']);
  expect(code).toBe(0);
  expect(JSON.parse(out.trim().split('\n').at(-1)!)).toMatchObject({ again: { tokens: 20 }, isAnchored: false });
  const { receipt } = answer.palimpsest;
  const changed = { ...receipt, cache: { ...receipt!.cache, bits: receipt!.cache.bits / 2 } };
  writeFileSync(file, JSON.stringify({ receipt: changed }));
  const refusedBy = await palimpsest(['verify', file, '--log', log]);
  expect(refusedBy).toMatchObject({ code: 2, out: '' });
  expect(refusedBy.err).toContain('[bad-signature]');
});

test('the page shows a receipt of the present form', async () => {
  const page = readFileSync(join(root, 'docs', 'receipts.md'), 'utf8');
  const shown = receiptIn(JSON.parse(/^ {4}\{\n.*?^ {4}\}$/ms.exec(page)![0]));
  const { receipt } = (await ask('/v1/completions', { prompt: 'One', max_tokens: 2, ...LIMITS })).palimpsest;
  const names = (value: object): unknown =>
    Object.entries(value).map(([name, one]) => [name, name !== 'sampler' && one instanceof Object ? names(one) : null]);
  expect(names(shown)).toEqual(names(receipt!));
});

describe.skipIf(spawnSync('python3', ['--version']).status !== 0)('in Python (needs python3)', () => {
  const python = (...args: string[]) => {
    const program = join(root, 'examples', 'verify_receipt.py');
    const { status, stdout, stderr } = spawnSync('python3', [program, ...args], { encoding: 'utf8' });
    return { code: status, out: stdout, err: stderr };
  };

  test('what this program proves is proved, and what it refuses is refused', async () => {
    const { receipt } = (await ask('/v1/completions', { prompt: 'A keeper', max_tokens: 20, ...LIMITS })).palimpsest;
    const [file, proof, keyPath] = ['receipt.json', 'proof.json', 'audit.key'].map((name) => join(folder, name));
    const verifier = makeCheckpointKeys(keyPath!);
    const checkpoints = signLog(log, keyPath!).map((note) => parseCheckpoint(note, [verifier], 'here'));
    expect(verifyReceipt(receipt, { log, checkpoints }).isAnchored).toBe(true);
    const { seq } = receipt!.log.last;
    writeFileSync(proof!, JSON.stringify(proveEntry(log, seq, checkpoints, { disclose: true })));
    const run = (one: unknown) => {
      writeFileSync(file!, JSON.stringify(one));
      return python(file!, log, proof!, verifierText(verifier));
    };
    const { code, out, err } = run(receipt);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(JSON.parse(out)).toMatchObject({ session: receipt!.session, claims: true });
    const { request, answer, cache, log: place } = receipt!;
    for (const forged of [
      { ...receipt, model: 'A'.repeat(43) },
      { ...receipt, request: { ...request, tokens: request.tokens + 1 } },
      { ...receipt, answer: { ...answer, text: 'A'.repeat(43) } },
      { ...receipt, cache: { ...cache, bits: cache.bits / 2 } },
      { ...receipt, kld: { nats: 0, by: 'measured' } },
      { ...receipt, session: '0' },
      { ...receipt, log: { ...place, id: 'A'.repeat(22) } },
      { ...receipt, log: { ...place, first: { ...place.first, hash: 'A'.repeat(43) } } },
      { ...receipt, log: { ...place, last: { ...place.last, seq: seq - 1 } } },
      { ...receipt, more: 1 },
    ]) {
      expect(run(forged)).toMatchObject({ code: 1, out: '' });
      expect(() => verifyReceipt(forged, { log })).toThrow('refused');
    }
  });
});
