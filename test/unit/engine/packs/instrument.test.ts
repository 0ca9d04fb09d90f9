// Fuel in modules of packs: does it leave what they compute as it was, is it counted exactly and alike every time, and
// does too little of it stop whatever runs? Modules are those of ours and many from seeds.
import { describe, expect, it } from 'vitest';
import { instrumentModule } from '../../../../engine/packs/instrument.ts';
import { machine } from '../../../../engine/packs/machine.ts';
import { checkModule } from '../../../../engine/packs/module.ts';
import { seeded } from '../../../random.ts';
import { TIER } from '../../../tier.ts';
import { randomModule } from './random-module.ts';

const PLENTY = 2_000_000;
const MODULES = TIER === 'home' ? 80 : 300;

interface Ran {
  readonly said: string;
  readonly memory: Buffer;
  readonly fuel: number;
}

/** Calls a function a few times. fuel: null for a module without. */
function ran(bytes: Uint8Array, name: string, given: readonly number[], fuel: number | null, times = 3): Ran {
  const { exports } = new machine.Instance(new machine.Module(bytes), {});
  const call = exports[name] as (...given: readonly number[]) => number;
  const said: unknown[] = [];
  let used = 0;
  for (let i = 0; i < times; i++) {
    if (fuel !== null) exports.fuel.value = fuel;
    try {
      said.push(call(...given));
    } catch (error) {
      said.push((error as Error).constructor.name);
    }
    if (fuel !== null) used += fuel - exports.fuel.value;
  }
  return { said: said.join(), memory: Buffer.from(exports.memory.buffer.slice(0, 65_536)), fuel: used };
}

describe('fuel', () => {
  it('leaves what modules from seeds compute, and is counted to the unit', () => {
    let [compared, stopped, fuel] = [0, 0, 0];
    for (let seed = 0; compared < MODULES; seed++) {
      const plain = randomModule(seeded(seed));
      checkModule(plain);
      const fueled = instrumentModule(plain);
      expect(machine.validate(fueled), `seed ${seed}`).toBe(true);
      expect(Buffer.compare(instrumentModule(plain), fueled)).toBe(0);
      const given = [seed, 7, 3, -1, 0x1234];
      const first = ran(fueled, 'pack_apply', given, PLENTY);
      // What takes too long is not run without fuel.
      if (first.fuel > 3 * PLENTY) {
        stopped++;
        expect(stopped).toBeLessThan(50);
        continue;
      }
      const without = ran(plain, 'pack_apply', given, null);
      expect(first.said, `seed ${seed}`).toBe(without.said);
      expect(first.memory.equals(without.memory), `seed ${seed}`).toBe(true);
      const exact = ran(fueled, 'pack_apply', given, PLENTY, 1).fuel;
      expect(ran(fueled, 'pack_apply', given, exact, 1).fuel).toBe(exact);
      expect(ran(fueled, 'pack_apply', given, exact - 1, 1).said).toBe('RuntimeError');
      fuel += exact;
      compared++;
    }
    // They do something.
    expect(fuel / compared).toBeGreaterThan(300);
  });
});
