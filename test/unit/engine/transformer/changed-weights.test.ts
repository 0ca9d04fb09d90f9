// Files of weights that are written to while they are in use: what is packed is what was digested, and what is read at
// later steps is what was packed. Whatever does not fit is refused by name; nothing answers under a digest that it does
// not have.
import {
  closeSync,
  cpSync,
  openSync,
  readFileSync,
  renameSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { createEngine } from '../../../../engine/index.ts';
import { FileBytes } from '../../../../engine/transformer/bytes.ts';
import { openDense } from '../../../../engine/transformer/dense-choice.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, MODEL } from '../on-reference.ts';

const folder = scratchFolders();

/** A copy of the reference model, which may be spoiled. */
function copied(): { readonly dir: string; readonly weights: string } {
  const dir = join(folder(), 'model');
  cpSync(MODEL, dir, { recursive: true });
  return { dir, weights: join(dir, 'model.safetensors') };
}

/** Writes into a file where it lies, as cp and editors do. */
function overwrite(path: string, bytes: Uint8Array, position: number): void {
  const fd = openSync(path, 'r+');
  try {
    writeSync(fd, bytes, 0, bytes.length, position);
  } finally {
    closeSync(fd);
  }
}

it('weights that change between digest and packing are refused', async () => {
  const { dir, weights } = copied();
  const model = await loadModel(dir);
  const middle = statSync(weights).size >> 1;
  overwrite(
    weights,
    readFileSync(weights)
      .subarray(middle, middle + 1)
      .map((byte) => byte ^ 1),
    middle,
  );
  const error = await refused(openDense(model, { precision: 'auto', threads: 1 }), weights);
  expect(error).toMatchObject({ code: 'checksum-mismatch', message: expect.stringContaining(weights) });
  model.weights.close();
});

it('a header that changes before the digest is taken does not give its places to other bytes', () => {
  const { weights } = copied();
  const file = FileBytes.open(weights);
  file.read(8, 100);
  overwrite(weights, Uint8Array.of(0x20), 9);
  expect(() => file.digest()).toThrow(expect.objectContaining({ code: 'checksum-mismatch' }));
  file.close();
});

it('a model file that is overwritten while an engine runs ends answers by name, and never changes one', async () => {
  const { dir, weights } = copied();
  const engine = await createEngine({ model: dir, threads: 1, stateDir: null });
  try {
    const answer = async (): Promise<string> => {
      const session = await engine.openSession();
      let text = '';
      try {
        for await (const piece of session.generate('Once upon a time', { maxTokens: 12, temperature: 0 }))
          text += piece;
      } finally {
        await session.close();
      }
      return text;
    };
    const first = await answer();
    const whole = readFileSync(weights);
    // A seed of its own for each byte would do as well: all that counts is that they are others.
    overwrite(
      weights,
      whole.map((byte) => byte ^ 0x10),
      0,
    );
    expect(await codeOf(answer())).toBe('checksum-mismatch');
    overwrite(weights, whole, 0);
    expect(await answer()).toBe(first);
    truncateSync(weights, 1000);
    expect(await codeOf(answer())).toBe('bad-file');
  } finally {
    await engine.close();
  }
});

it('a file that is put in its place by renaming changes nothing for an engine that runs', async () => {
  const { dir, weights } = copied();
  const engine = await createEngine({ model: dir, threads: 1, stateDir: null });
  try {
    writeFileSync(`${weights}.new`, 'something else');
    renameSync(`${weights}.new`, weights);
    const session = await engine.openSession();
    await session.read('Once upon a time');
    expect((await session.report()).tokens).toBeGreaterThan(3);
  } finally {
    await engine.close();
  }
});

it('reads any range of a file as it is, across chunks and in pieces', () => {
  const path = join(folder(), 'bytes');
  const bytes = Uint8Array.from({ length: 100_001 }, (_, i) => (i * 7919) >> 5);
  writeFileSync(path, bytes);
  const file = FileBytes.open(path);
  for (const [from, length] of [
    [0, 0],
    [0, 100_001],
    [1, 100_000],
    [32_768, 32_768],
    [32_767, 2],
    [65_536, 34_465],
    [99_999, 2],
    [40_000, 30_000],
    [0, 65_536],
    [5, 65_531],
  ] as const)
    expect(Buffer.from(file.read(from, length)).equals(bytes.subarray(from, from + length))).toBe(true);
  file.close();
});
