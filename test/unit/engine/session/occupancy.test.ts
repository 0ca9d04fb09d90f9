// Whether a session can be used, in every state and on every way from one to another.
import { expect, it } from 'vitest';
import { Occupancy } from '../../../../engine/session/occupancy.ts';

const open = (): Occupancy => new Occupancy({ id: 'one', tokens: [1, 2, 3] });
const BUSY = expect.objectContaining({ code: 'busy' });
const CLOSED = expect.objectContaining({ code: 'closed', message: 'the session was closed' });
const TORN = expect.objectContaining({ code: 'closed', values: { session: 'one', tokens: 3 } });

it('belongs to one call at a time, and to the next when that is done or has failed', async () => {
  const occupancy = open();
  expect(occupancy.isFree).toBe(true);
  const given = await occupancy.during(async () => {
    expect(occupancy.isFree).toBe(false);
    expect(() => occupancy.checkFree()).toThrowError(BUSY);
    occupancy.checkSound();
    await expect(occupancy.during(async () => 'second')).rejects.toMatchObject({ code: 'busy' });
    // Who was refused has not set it free.
    expect(occupancy.isFree).toBe(false);
    return 'first';
  });
  expect(given).toBe('first');
  const endedMs = occupancy.endedMs;
  const failing = async (): Promise<void> => {
    throw new Error('out of room');
  };
  await expect(occupancy.during(failing)).rejects.toThrow('out of room');
  expect(occupancy.isFree).toBe(true);
  expect(occupancy.endedMs).toBeGreaterThan(endedMs);
  // Those that were refused are none.
  expect(occupancy.calls).toBe(2);
});

it('is torn until it is mended, and what is torn is not free', () => {
  const occupancy = open();
  occupancy.begin();
  occupancy.tear();
  occupancy.end();
  expect(occupancy.isFree).toBe(false);
  expect(occupancy.isClosed).toBe(false);
  expect(() => occupancy.begin()).toThrowError(TORN);
  occupancy.mend();
  occupancy.begin();
});

it('is closed for ever, also while a call has it', () => {
  const occupancy = open();
  occupancy.begin();
  occupancy.close();
  expect(() => occupancy.checkSound()).toThrowError(CLOSED);
  occupancy.tear();
  occupancy.mend();
  occupancy.end();
  expect(occupancy.isFree).toBe(false);
  expect(occupancy.isClosed).toBe(true);
  expect(() => occupancy.checkFree()).toThrowError(CLOSED);
});
