// Ids of sessions: as many as a machine makes in years stay apart, they sort by time, and what a person types of one
// (its beginning or its end) finds it or is refused with the candidates.
import { describe, expect, it } from 'vitest';
import { findId, findSession, newId, openWitnessLog, shortId } from '../../../witness/index.ts';
import { scratchFolders } from './folder.ts';

const folder = scratchFolders();

describe('ids of sessions', () => {
  // 32 bits collide among 100,000 with a probability of 69%.
  it('are UUIDs of version 7: 100,000 stay apart and sort in the order in which they were made', () => {
    const ids = Array.from({ length: 100_000 }, () => newId());
    expect(new Set(ids).size).toBe(ids.length);
    expect([...ids].sort()).toEqual(ids);
    for (const id of ids.slice(0, 100))
      expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  });

  it('hold their time, and go on in order when the clock steps back', () => {
    const later = Date.now() + 60_000;
    const first = newId(later);
    expect(Number.parseInt(first.replaceAll('-', '').slice(0, 12), 16)).toBe(later);
    expect(newId(later - 50_000) > first).toBe(true);
  });
});

describe('what a person types', () => {
  it('is the id, its beginning or its end; an ambiguous one is refused with the candidates', () => {
    const ids = ['6ab9ee33', '6ab9', '019a8f2e-0000-7000-8000-00000000abcd', '019a8f2e-0000-7001-8000-00000000ffff'];
    expect(findId(ids, '6ab9', 'session')).toBe('6ab9');
    expect(findId(ids, '6ab9e', 'session')).toBe(ids[0]);
    expect(findId(ids, shortId(ids[2]!), 'session')).toBe(ids[2]);
    expect(findId(ids, '019a8f2e-0000-7001', 'session')).toBe(ids[3]);
    expect(() => findId(ids, '019a', 'session')).toThrowError(
      expect.objectContaining({ code: 'bad-argument', values: { candidates: `${ids[2]} ${ids[3]}` } }),
    );
    for (const nothing of ['7', '']) {
      expect(() => findId(ids, nothing, 'session')).toThrowError(expect.objectContaining({ code: 'not-found' }));
    }
  });

  it('is looked for in the log', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const [a, b] = [newId(), newId()];
    for (const id of [a, b, a]) log.append(id, 'note', {});
    await log.close();
    expect([findSession(dir, shortId(a)), findSession(dir, b.slice(0, 18))]).toEqual([a, b]);
    expect(() => findSession(dir, a.slice(0, 8))).toThrowError(expect.objectContaining({ code: 'bad-argument' }));
  });
});
