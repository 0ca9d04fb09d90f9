// Tries the helpers that come with the package, with texts that nobody has trained them on, and what becomes of their
// hints: in the log and in what is looked up, never in the way of an answer when they fail.
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createEngine } from '../../../../engine/index.ts';
import { setupOf } from '../../../../engine/session/experience.ts';
import { Session } from '../../../../engine/session/session.ts';
import { PLACE_DIM, TextHelpers } from '../../../../engine/sidecar/hint.ts';
import { scanOnnx } from '../../../../engine/sidecar/onnx-scan.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { packageRoot } from '../../../../native/index.ts';
import { entriesOf, ids, MODEL, PROMPT_TOKENS } from '../on-reference.ts';

const PATIENT = { limits: { startMs: 120_000, deadlineMs: 120_000 }, restMs: 0 };
const CODE = `export function sum(values: readonly number[]): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}
`.repeat(4);
const GERMAN =
  'Am Morgen ging der alte Müller über den Hof und sah nach, ob das Wehr in der Nacht gehalten hatte. '.repeat(8);
const TABLE = '| name | 12 | 4.25 |\n| other | 7 | 19.50 |\n| third | 99 | 0.75 |\n'.repeat(10);

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'palimpsest-hints-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('the models that come with the package', () => {
  test('tell kinds apart, and the same of the same text', async () => {
    const helpers = new TextHelpers(PATIENT);
    const hints = [];
    for (const text of [CODE, GERMAN, TABLE, CODE]) hints.push(await helpers.hintOf(Buffer.from(text)));
    expect(hints.map((hint) => hint?.kind)).toEqual(['code', 'german', 'tables', 'code']);
    expect(hints[3]).toEqual(hints[0]);
    expect(hints[0]!.place).toHaveLength(PLACE_DIM);
    for (const x of [hints[0]!.share, ...hints[0]!.place]) expect(16 * x).toBe(Math.round(16 * x));
    expect(await helpers.hintOf(new Uint8Array(0))).toBeNull();
    expect(await helpers.hintOf(Uint8Array.of(65))).not.toBeNull();
    await helpers.close();
  });

  test('are small, and made of the operators that n-grams need', () => {
    for (const name of ['kinds', 'places']) {
      const bytes = readFileSync(join(packageRoot(), 'models', 'helpers', `${name}.onnx`));
      const facts = scanOnnx(name, bytes);
      expect(facts).toMatchObject({
        inputs: [{ name: 'text', type: 'uint8' }],
        outputs: [{ name: 'answer', type: 'float32' }],
      });
      expect(facts.bytes).toBeLessThan(64 * 1024);
    }
  });
});

describe('an engine', () => {
  test('writes hints to the log where helpers are asked for, and none where not', async () => {
    for (const helpers of [false, true]) {
      const stateDir = join(folder, `state ${helpers}`);
      const engine = await createEngine({ model: MODEL, threads: 1, stateDir, helpers });
      const session = await engine.openSession({ kvBudget: '50%', tokensExpected: PROMPT_TOKENS + 8 });
      await session.generate(CODE.repeat(8), { maxTokens: 4 }).result;
      await session.close();
      await engine.close();
      const [close] = entriesOf(stateDir, session.id, 'close');
      expect(close!.body.hint?.kind).toBe(helpers ? 'code' : undefined);
    }
  });

  test('goes on where they hang: the same text without a hint', async () => {
    const runtime = await Runtime.open({ model: MODEL, threads: 1 });
    // They are asked more than once, and those that took the place of the stopped ones would answer.
    const helpers = new TextHelpers({ ...PATIENT, restMs: 3_600_000 });
    await helpers.hintOf(Buffer.from(CODE));
    const answers: string[] = [];
    const texts: (string | undefined)[] = [];
    for (const harm of [false, true]) {
      const setup = await setupOf(runtime, { kvBudget: '50%', tokensExpected: PROMPT_TOKENS + 40 }, null);
      const asked = async (text: Uint8Array) => {
        if (!harm) return helpers.hintOf(text);
        for (const pid of helpers.pids) process.kill(pid, 'SIGSTOP');
        return helpers.hintOf(text, { deadlineMs: 20 });
      };
      const session = Session.open(runtime, { ...setup, hintOf: asked });
      let answer = '';
      for await (const piece of session.generate(ids(PROMPT_TOKENS), { maxTokens: 24, temperature: 0 }))
        answer += piece;
      answers.push(answer);
      texts.push(session.governed.hint?.kind);
      session.close();
    }
    expect(answers[1]).toBe(answers[0]);
    expect(texts[0]).toBeTypeOf('string');
    expect(texts[1]).toBeUndefined();
    // Where the first one says nothing, the second is not asked.
    expect(helpers.status.map(({ failures }) => failures > 0)).toEqual([true, false]);
    await helpers.close();
    await runtime.close();
  });
});

test('the package has the files', () => {
  const { files } = JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as { files: string[] };
  expect(files).toContain('models/helpers');
  expect(existsSync(join(packageRoot(), 'models', 'helpers', 'kinds.onnx'))).toBe(true);
});
