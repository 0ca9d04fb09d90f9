// Receipts: answers of the reference model with a receipt each, which are proved by the log and run again to the same
// tokens, and as many forged ones, each with one field changed at random, which are refused. Sessions differ in budget,
// seed, length of the prompt and turns. A merge takes 25, or a hundred when it is their turn, and a night a thousand,
// minutes long. Nothing shorter shows it: what comes out otherwise does so once in many moves.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Engine, SessionOptions } from '../../../../engine/index.ts';
import { answerAgain } from '../../../../engine/session/answer-again.ts';
import type { AnswerReceipt } from '../../../../engine/session/types.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { RECEIPT_BYTES_MAX, requestIn, textDigest, verifyReceipt } from '../../../../witness/index.ts';
import { seeded } from '../../../random.ts';
import { refusal, refused } from '../../../refusal.ts';
import { IS_SHORT, TIER, volume } from '../../../tier.ts';
import { ids, MODEL, openEngine } from '../on-reference.ts';

const RECEIPTS = TIER === 'home' || IS_SHORT ? 4 : volume('receipts');
const TURNS = 2;
const TOKENS = 256;
/** Each is proved from its whole log, so that the time of many in one log would go with their square. */
const RECEIPTS_OF_LOG = 50;
const SESSIONS: readonly SessionOptions[] = [
  { kvBudget: '25%', tokensExpected: 900 },
  {},
  { kvBudget: '40%', tokensExpected: 1400, policy: 'uniform' },
  { kldBudget: 0.02, tokensExpected: 1400 },
  { cacheTypes: 'rot4:rot2' },
];
const random = seeded(29);
type Given = AnswerReceipt & { readonly text: string; readonly log: string };
let engine: Engine | undefined;
let runtime: Runtime;
/** Receipts with the texts that they were given for, and the logs that have them. */
const given: Given[] = [];

beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
  let log = '';
  for (let at = 0; given.length < RECEIPTS; at++) {
    if (given.length % RECEIPTS_OF_LOG === 0) {
      await engine?.close();
      const state = mkdtempSync(join(tmpdir(), 'palimpsest-receipts-'));
      engine = await openEngine(state);
      log = logDir(state);
    }
    const session = await engine!.openSession({ ...SESSIONS[at % SESSIONS.length]!, cacheSalt: String(at) });
    for (let turn = 0; turn < TURNS && given.length < RECEIPTS; turn++) {
      const prompt = ids(1 + Math.floor(random() * (turn === 0 ? 500 : 40)), at * TURNS + turn + 1);
      const sampling = {
        temperature: 0.5 + random(),
        seed: at,
        topK: turn === 0 ? 0 : 20,
        logitBias: { 7: -Infinity },
      };
      const answer = await session.generate(prompt, { maxTokens: TOKENS, receipt: true, ...sampling }).result;
      given.push({ ...answer.receipt!, text: answer.text, log });
    }
    await session.close();
  }
}, 3_600_000);

afterAll(async () => {
  await engine?.close();
  await runtime?.close();
});

it(`proves ${RECEIPTS} receipts from the log, and their answers come out the same again`, async () => {
  let moves = 0;
  for (const { receipt, request, text, log } of given) {
    const told: unknown = JSON.parse(JSON.stringify(receipt));
    expect(Buffer.byteLength(JSON.stringify(receipt))).toBeLessThanOrEqual(RECEIPT_BYTES_MAX);
    expect(verifyReceipt(told, { log })).toMatchObject({ receipt, isAnchored: false });
    expect(receipt.answer.text).toBe(textDigest(text));
    const asked = requestIn(JSON.parse(JSON.stringify(request)), receipt);
    const again = await answerAgain(runtime, { receipt, request: asked, log });
    expect(again).toMatchObject({ text, tokens: receipt.answer.tokens });
    moves += again.moves;
  }
  expect(moves).toBeGreaterThan(0);
}, 3_600_000);

it(`refuses ${RECEIPTS} receipts in which a field was changed`, () => {
  for (const { receipt, log } of given) {
    const forged = structuredClone(receipt) as unknown as Node;
    const places = leavesOf(forged);
    const { owner, key } = places[Math.floor(random() * places.length)]!;
    const before = owner[key];
    owner[key] = another(before);
    const error = refusal(() => verifyReceipt(forged, { log }));
    expect(['bad-signature', 'not-found', 'bad-log'], `${key}: ${String(before)}: ${error.message}`).toContain(
      error.code,
    );
  }
});

it('refuses each field of a receipt when it is changed, left out or added', () => {
  const { receipt, log } = given[0]!;
  for (let place = 0; place < leavesOf(receipt as unknown as Node).length; place++)
    for (const change of [another, () => undefined]) {
      const forged = structuredClone(receipt) as unknown as Node;
      const { owner, key } = leavesOf(forged)[place]!;
      owner[key] = change(owner[key]);
      refusal(() => verifyReceipt(JSON.parse(JSON.stringify(forged)), { log }));
    }
  expect(refusal(() => verifyReceipt({ ...receipt, bits: 2 }, { log })).code).toBe('bad-signature');
  expect(refusal(() => verifyReceipt({ ...receipt, cache: { ...receipt.cache, more: 1 } }, { log })).code).toBe(
    'bad-signature',
  );
});

it('refuses another request, and an answer that other tokens would have', async () => {
  const [one, two] = given as unknown as readonly [Given, Given];
  expect(refusal(() => requestIn(two.request, one.receipt)).code).toBe('bad-signature');
  const options = { ...one.request.options, seed: 99 };
  expect(refusal(() => requestIn({ ...one.request, options }, one.receipt)).code).toBe('bad-signature');
  const error = await refused(answerAgain(runtime, { ...one, request: { ...one.request, options } }));
  expect(error).toMatchObject({ code: 'bad-signature' });
});

it('gives no receipt where no log would prove it', async () => {
  const session = await engine!.openSession({ witness: false });
  const error = await refused(session.generate([5, 6], { maxTokens: 2, receipt: true }).result);
  expect(error).toMatchObject({ code: 'unsupported' });
  await session.close();
});

type Node = Record<string, unknown>;

/** The fields that hold no others. */
function leavesOf(node: Node): { readonly owner: Node; readonly key: string }[] {
  return Object.entries(node).flatMap(([key, value]) =>
    typeof value === 'object' && value !== null ? leavesOf(value as Node) : [{ owner: node, key }],
  );
}

/** A value of the same type that is another one. */
function another(value: unknown): unknown {
  if (typeof value === 'number') return value + (Number.isInteger(value) ? 1 : value / 2);
  if (typeof value !== 'string') return 'fork';
  return value === 'length' ? 'stop' : `${value.slice(0, -1)}${value.endsWith('A') ? 'B' : 'A'}`;
}
