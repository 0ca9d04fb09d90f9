// What computes the formats that the product only describes: nothing, until somebody says before a binary is loaded
// which one does. Each test has the modules anew, as a program that has just begun.
import { afterAll, beforeEach, expect, it, vi } from 'vitest';

const MODULE = '/nowhere/yardsticks.wasm';
const refusal = (work: () => unknown): unknown => {
  try {
    return work();
  } catch (error) {
    return error;
  }
};

beforeEach(() => vi.resetModules());
afterAll(() => vi.resetModules());

it('is what a package brings, although the list of formats was read before', async () => {
  const { isServed, servedFormats, FORMAT_NAMES, parsePair } = await import('../../../native/format.ts');
  const { abi } = await import('../../../native/abi.ts');
  const { serveYardsticks, yardstickModule } = await import('../../../native/formats/registry.ts');
  const before = abi();
  expect(isServed('turbo3')).toBe(false);
  serveYardsticks(MODULE);
  expect(isServed('turbo3')).toBe(true);
  expect(servedFormats()).toEqual(FORMAT_NAMES);
  expect(parsePair('turbo3')).toEqual({ k: 'turbo3', v: 'turbo3' });
  expect(yardstickModule()).toBe(MODULE);
  expect(abi()).not.toBe(before);
  // The first to say so is heard.
  serveYardsticks();
  expect(yardstickModule()).toBe(MODULE);
});

it('is named where it cannot be loaded', async () => {
  const { serveYardsticks } = await import('../../../native/formats/registry.ts');
  const { loadBinary } = await import('../../../native/load.ts');
  serveYardsticks(MODULE);
  expect(refusal(() => loadBinary('wasm'))).toMatchObject({
    code: 'missing-dependency',
    message: expect.stringContaining(`${MODULE} cannot be loaded`),
  });
  expect(refusal(() => loadBinary('prebuilt'))).toMatchObject({ code: 'missing-dependency' });
});

it('comes too late once a binary without it was loaded', async () => {
  const { serveYardsticks, servesYardsticks } = await import('../../../native/formats/registry.ts');
  const { nativeInfo } = await import('../../../native/load.ts');
  nativeInfo();
  expect(refusal(() => serveYardsticks(MODULE))).toMatchObject({ code: 'unsupported' });
  expect(servesYardsticks()).toBe(false);
});
