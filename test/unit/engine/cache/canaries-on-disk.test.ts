// Nothing of what a user says or names reaches the disk: hundreds of words that exist nowhere else go through prompts,
// stop texts, names and paths of models, paths of files and of the state folder, options, addresses of servers, and the
// errors that these cause. Afterwards not one of them stands in a file of the state folder, in checkpoints, metrics,
// reports, or what the live view answers, also to those who ask it with such words. Nothing shorter looks at all that a
// whole engine writes; it runs sessions, servers and reports.

import { randomBytes } from 'node:crypto';
import { cpSync, mkdirSync, readFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import {
  createEngine,
  type Engine,
  type KvError,
  openAuditIndex,
  openCache,
  openLogQuery,
  serve,
  sessionReport,
} from '../../../../engine/index.ts';
import { ROUTES } from '../../../../engine/serve/routes.ts';
import { logDir, sqlDir } from '../../../../engine/state/folder.ts';
import { entryId, makeCheckpointKeys, readLog } from '../../../../witness/index.ts';
import { placeEmptySql } from '../../../empty-sql.ts';
import { refused } from '../../../refusal.ts';
import { volume } from '../../../tier.ts';
import { filesOf, scratchFolders } from '../../witness/folder.ts';
import { MODEL } from '../on-reference.ts';

const folder = scratchFolders();
/**
 * In every word, so that one look finds any of them. Not in base64 or hexadecimal by accident: it has letters of
 * neither alphabet's rest.
 */
const MARK = `Kanarie-${randomBytes(4).toString('hex')}-`;
/** Engines, one behind the other on one state folder, each of which is told some 250 words. */
const RUNS = volume('canary runs');
let words = 0;
const word = (): string => `${MARK}${words++}`;
const wordsOf = (count: number): string => Array.from({ length: count }, word).join(' ');

/** What comes first of an answer that has no end. */
async function begun(url: string): Promise<string> {
  const { body } = await fetch(url);
  for await (const text of body!.pipeThrough(new TextDecoderStream())) return text;
  return '';
}

/** What the live view answers on every route, to whoever asks with canaries, and in its metrics afterwards. */
async function answersOf(state: string): Promise<string[]> {
  const view = await serve(state, { port: 0, requestsPerSecond: 1000 });
  const asked = async (path: string, headers: Readonly<Record<string, string>> = {}): Promise<[number, string]> => {
    const response = await fetch(view.url + path, { headers });
    return [response.status, await response.text()];
  };
  const [row] = await openLogQuery(logDir(state)).decisions({ limit: 1 });
  const answers: string[] = [];
  for (const { path, source } of ROUTES) {
    if (source === 'stream' || source === 'engine') continue;
    // It goes on for as long as somebody reads.
    if (source === 'live') {
      answers.push(await begun(view.url + path));
      continue;
    }
    const [status, text] = await asked(path.replace('{session}', row!.session).replace('{id}', entryId(row!.seq)));
    expect([path, status]).toEqual([path, 200]);
    answers.push(text);
  }
  for (let n = 0; n < 20; n++) {
    await asked(`/${word()}`);
    await asked(`/v1/sessions/${word()}`);
    await asked(`/v1/decisions?${word()}=${word()}`, { authorization: `Bearer ${word()}`, 'user-agent': word() });
  }
  answers.push((await asked('/metrics'))[1]);
  await view.close();
  return answers;
}

it(`canaries of ${RUNS} engines leave nothing on disk, in metrics, reports and the live view`, async () => {
  const state = join(folder(), word(), 'state');
  mkdirSync(join(state, '..'));
  const audit = folder();
  makeCheckpointKeys(join(audit, 'audit.key'));
  const anchors: string[] = [];
  const metrics: string[] = [];
  const errors: KvError[] = [];
  let model = join(folder(), word());
  cpSync(MODEL, model, { recursive: true });
  for (let run = 0; run < RUNS; run++) {
    // Another name for the model and its folder each time.
    const next = join(folder(), word(), word());
    mkdirSync(join(next, '..'), { recursive: true });
    renameSync(model, next);
    model = next;
    const engine: Engine = await createEngine({
      model,
      threads: 1,
      stateDir: state,
      qdrant: {
        url: `http://127.0.0.1:9/${word()}`,
        apiKey: word(),
        collection: word().replaceAll(/[^a-z0-9-]/gi, ''),
      },
      // One place takes checkpoints, and the others fail.
      anchor: {
        key: join(audit, 'audit.key'),
        to: [(anchors[run] = join(audit, word())), join(audit, word(), word()), `http://127.0.0.1:9/${word()}`],
      },
    });
    for (let turn = 0; turn < 2; turn++) {
      const session = await engine.openSession({ kvBudget: '50%', tokensExpected: 1500 });
      const stop = Array.from({ length: 10 }, word);
      const said = await session.generate(`${wordsOf(40)} ${'Once upon a time. '.repeat(30)}`, { maxTokens: 20, stop })
        .result;
      expect(said.promptTokens).toBeGreaterThan(300);
      await session.generate(wordsOf(20), { maxTokens: 4 }).result;
      for (let n = 0; n < 10; n++) {
        errors.push(await refused(session.saveThresholds(join(state, '..', word(), word(), 'x.json'))));
        errors.push(await refused(session.generate('x', { maxTokens: -1, stop: [word()] }).result));
        errors.push(await refused(session.adaptThresholds({ meanKld: word() } as never)));
      }
      await session.close();
    }
    for (let n = 0; n < 15; n++) {
      errors.push(await refused(engine.openSession({ thresholdsPath: join(word(), `${word()}.json`) })));
      errors.push(await refused(engine.openSession({ policy: word() })));
      errors.push(await refused(engine.openSession({ cacheTypes: word() })));
    }
    // Each of them starts a thread, for half a second.
    for (let n = 0; n < 3; n++)
      errors.push(await refused(createEngine({ model: join(word(), word()), stateDir: state })));
    metrics.push(await engine.metrics());
    await engine.close();
  }
  const cache = await openCache({
    layers: 1,
    queryHeads: 2,
    kvHeads: 2,
    headDim: 64,
    stateDir: state,
    kvBudget: '200KiB',
  });
  const rows = Float32Array.from({ length: 128 * 128 }, (_, i) => Math.sin(i));
  for (let page = 0; page < 6; page++) {
    cache.append(0, rows, rows);
    cache.attention(0, rows);
  }
  await cache.close();
  await placeEmptySql(sqlDir(state));
  await (await openAuditIndex({ logDir: logDir(state), dir: sqlDir(state) })).close();

  const answers = await answersOf(state);
  const ids = [...new Set([...readLog(logDir(state), { kinds: ['close'] })].map(({ session }) => session))];
  const reports = ids.map((id) => sessionReport(logDir(state), id));
  expect(reports.length).toBe(1 + 2 * RUNS);

  expect(words).toBeGreaterThan(250 * RUNS);
  expect(errors.length).toBeGreaterThan(100 * RUNS);
  // Errors tell the caller what is wrong; that the words came so far shows that they were there to be written.
  expect(errors.some(({ message, values }) => JSON.stringify([message, values]).includes(MARK))).toBe(true);
  const files = filesOf(state);
  expect(files.length).toBeGreaterThan(10);
  const isTold = (path: string): boolean =>
    path.slice(state.length).includes(MARK) || readFileSync(path).includes(MARK);
  expect(files.filter(isTold)).toEqual([]);
  expect(
    anchors.map((path) => readFileSync(path, 'utf8')).filter((text) => text === '' || text.includes(MARK)),
  ).toEqual([]);
  expect([...answers, ...reports].filter((text) => text.includes(MARK))).toEqual([]);
  // What is sealed must not hold them either.
  const said = [...readLog(logDir(state))].map((entry) => JSON.stringify(entry));
  expect(said.filter((text) => text.includes(MARK))).toEqual([]);
  expect(said.length).toBeGreaterThan(25 * RUNS);
  expect(metrics.filter((text) => text.includes(MARK))).toEqual([]);
});
