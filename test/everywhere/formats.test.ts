// A family of formats is a folder. Those of test/formats/ are built in, and so are the yardsticks, which the product
// leaves out; everything that asks about formats is asked about them as well, without a line that names them: the codec
// suite, kernels on every instruction set, attention, trials, moves, stored pages, the differential fuzz, the price
// policy, log, replay and explanations, the command line. A build of all kernels and minutes of work, so it has a turn
// (test/tier.ts). Nothing shorter shows that no line names formats: only a build that has others can.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { expectWell, MINUTES, node, suite } from './node.ts';

const REGISTER = ['--import', 'tsx', '--import', './test/formats/register.ts'];
const state = mkdtempSync(join(tmpdir(), 'palimpsest-formats-'));

beforeAll(
  () =>
    expectWell(
      node(['scripts/build-native.mjs', '--all', '--tests', '--formats', 'test/formats/chan4', 'test/formats/int4']),
    ),
  45 * MINUTES,
);
afterAll(() => rmSync(state, { recursive: true, force: true }));

test(
  'suites that take their lists from the registry, and the policy that chooses',
  () => {
    const files = [
      ...['test/suite/codec.test.ts', 'test/golden/codecs.test.ts', 'test/formats', 'test/property/attention.test.ts'],
      ...['kernels', 'codecs', 'steering', 'isas', 'attend', 'trial', 'moves', 'stored', 'cache'].map(
        (name) => `test/unit/native/${name}.test.ts`,
      ),
    ];
    expectWell(suite(files, { PALIMPSEST_TEST_FORMATS: '1' }));
  },
  45 * MINUTES,
);

test(
  'half a minute of the same random bytes to every kernel of every instruction set',
  () => {
    expectWell(node([...REGISTER, 'test/fuzz/main.ts', '--seconds', '30']));
  },
  5 * MINUTES,
);

test.each(['int4', 'chan4:int4'])(
  '--cache-type-k %s from the command line, and what the audit says of it',
  (types) => {
    const main = [...REGISTER, 'engine/cli/main.ts'];
    const prompt = join(state, 'prompt.txt');
    writeFileSync(
      prompt,
      'It was a bright cold day, and the old man went down to the river to see what the night had left. '.repeat(40),
    );
    const ran = node([
      ...main,
      'run',
      '-m',
      'reference',
      '-p',
      prompt,
      '-n',
      '4',
      '--cache-type-k',
      types,
      '--state',
      state,
      '--json',
    ]);
    expectWell(ran);
    const session = /"session":\s*"([0-9a-f-]+)"/.exec(ran.said)?.[1] ?? expect.fail(ran.said);
    const list = node([...main, 'audit', 'list', '--state', state, '--session', session, '--json']);
    expectWell(list);
    expect(list.said).toContain(types.split(':')[0]);
    expectWell(node([...main, 'audit', 'replay', session, '--state', state]));
  },
  5 * MINUTES,
);
