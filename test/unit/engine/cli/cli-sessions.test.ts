// The commands of parked sessions, as processes: what is parked is listed, goes on in another process, is refused where
// it must be, and goes when it is erased.
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { dir, palimpsest } from './command.ts';

const state = join(dir, 'parking');
const story = join(dir, 'parked-story.txt');

/** What a command printed with --json; its text goes before it. */
async function answer(args: readonly string[]): Promise<unknown> {
  const { code, out, err } = await palimpsest(['sessions', ...args, '--state', state, '--json']);
  expect(code, err).toBe(0);
  return JSON.parse(out.slice(out.search(/^[[{]/m))) as unknown;
}

it('park, list, resume, park again, erase', async () => {
  writeFileSync(story, 'The keeper of bees went down to the river. '.repeat(40));
  const model = ['-m', 'reference', '--threads', '1', '--progress', 'none'];
  expect(await answer(['list'])).toEqual([]);
  const parked = (await answer(['park', '-p', story, '--predict', ...model])) as { session: string; tokens: number };
  expect(await answer(['list'])).toMatchObject([{ session: parked.session, tokens: parked.tokens, trouble: null }]);

  const short = parked.session.slice(-8);
  const back = await answer(['resume', short, '-n', '3', '--park', ...model]);
  expect(back).toMatchObject({ tokens: parked.tokens + 3, resumed: { from: parked.session, by: 'pages', why: null } });
  expect(readdirSync(join(state, 'parked'))).toHaveLength(2);

  for (const [args, code] of [
    [['resume', 'nothing', ...model], 'not-found'],
    [['resume', story, ...model], 'bad-file'],
    [['resume', short, '--predict', ...model], 'bad-argument'],
    [['park', ...model], 'bad-argument'],
  ] as const) {
    const refused = await palimpsest(['sessions', ...args, '--state', state]);
    expect([refused.code, refused.err]).toEqual([2, expect.stringContaining(`[${code}]`)]);
  }

  const erased = await palimpsest(['audit', 'erase', '--session', parked.session, '--yes', '--state', state]);
  expect(erased.code, erased.err).toBe(0);
  expect(readdirSync(join(state, 'parked'))).toHaveLength(1);
});
