// What a group counts of caches that hold pages together is what their pool counts, over random lives.
import { expect, it } from 'vitest';
import { sideBytes } from '../../../../engine/cache/budget.ts';
import { Group } from '../../../../engine/cache/group.ts';
import { Kin } from '../../../../engine/cache/kin.ts';
import { firstToken, type KvCache, openKvCache, openPool, PAGE_TOKENS } from '../../../../native/index.ts';
import { normals, pick, uniform } from '../../../native/dense.ts';
import { seedFrom } from '../../../tier.ts';

const shape = { layers: 2, queryHeads: 1, kvHeads: 1, headDim: 64 };
const terms = { context: { layers: shape.layers, pageBytes: sideBytes(shape, [{ k: 'rot2', v: 'rot2' }]) } };
const hears = { moved: () => {}, mended: () => {} };
const SEED = seedFrom(20261128);

it(`counts what its caches hold together once, whoever began with whose pages (seed ${SEED})`, () => {
  const random = uniform(SEED);
  const upTo = (count: number): number => Math.floor(random() * count);
  const pool = openPool(100_000_000);
  const group = new Group('ann', 0);
  const members: { kv: KvCache; kin: Kin; away: null; terms: typeof terms }[] = [];
  const read = (kv: KvCache, tokens: number): void => {
    for (let layer = 0; layer < shape.layers; layer++)
      kv.append(layer, normals(random, tokens * 64), normals(random, tokens * 64));
  };
  const steps: Record<string, () => void> = {
    begin: () => {
      const member = { kv: openKvCache({ shape, pool }), kin: new Kin({ bytes: 0 }, hears), away: null, terms };
      const lender = members.length === 0 ? null : pick(random, members);
      const pages = lender === null ? 0 : upTo(lender.kv.table(0).pages + 1);
      if (pages > 0) {
        member.kv.adopt(lender!.kv, pages);
        lender!.kin.share(member.kin, pages);
      }
      members.push(member);
      group.join(member);
    },
    read: () => read(pick(random, members).kv, 1 + upTo(3 * PAGE_TOKENS)),
    move: () => {
      const { kv } = pick(random, members);
      const { pages } = kv.table(0);
      const [layer, page, side] = [upTo(shape.layers), upTo(pages), pick(random, ['k', 'v'] as const)];
      if (pages > 0 && kv.format(layer, page, side) !== 'rot2') kv.transcode(layer, page, side, 'rot2');
    },
    cut: () => {
      const { kv, kin } = pick(random, members);
      const pages = upTo(kv.table(0).pages + 1);
      kv.truncate(firstToken(pages));
      kin.cut(pages);
    },
    end: () => {
      const [member] = members.splice(upTo(members.length), 1);
      group.leave(member!);
      member!.kin.leave();
      member!.kv.close();
    },
  };
  let shared = 0;
  for (let step = 0; step < 250; step++) {
    const name = members.length < 2 ? 'begin' : pick(random, ['begin', 'begin', 'read', 'read', 'move', 'cut', 'end']);
    steps[name]!();
    expect(group.usedBytes, `${step}: ${name}`).toBe(pool.usedBytes);
    const each = members.reduce((sum, { kv }) => sum + kv.usedBytes, 0);
    if (each > pool.usedBytes) shared++;
  }
  expect(shared).toBeGreaterThan(100);
  for (const { kv } of members) kv.close();
});
