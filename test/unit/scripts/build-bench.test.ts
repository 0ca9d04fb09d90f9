// What a build takes: the clock of a command counts what it starts, a command that fails is told, one that prints what
// it was waited for is not waited for any longer, and bytes of text are those of the sections of an ELF file that are
// loaded and not written to.
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { KvError } from '../../../native/index.ts';
import { textBytes, timed } from '../../../scripts/bench/build.ts';

const folder = mkdtempSync(join(tmpdir(), 'palimpsest-build-bench-'));
const program = (name: string, text: string): string => {
  writeFileSync(join(folder, name), text);
  return `node ${name}`;
};

it('a command is timed with what it starts', () => {
  const spin = program('spin.mjs', 'const from = process.cpuUsage(); while (process.cpuUsage(from).user < 300_000);');
  const both = program(
    'both.mjs',
    "import { spawnSync } from 'node:child_process'; console.log('said'); spawnSync(process.execPath, ['spin.mjs']);",
  );
  for (const command of [spin, both]) expect(timed(command, folder).cpuSeconds).toBeGreaterThan(0.29);
});

it('a command that fails is an error that says why', () => {
  const failing = program('failing.mjs', "console.error('no such thing'); process.exitCode = 3;");
  expect(() => timed(failing, folder)).toThrow(expect.objectContaining({ code: 'missing-dependency' }));
  expect(() => timed(failing, folder)).toThrow(/no such thing/);
  expect(() => timed(failing, folder, 'never printed')).toThrow(KvError);
});

it('a command is left when it has printed what was waited for', () => {
  const endless = program('endless.mjs', "setInterval(() => console.log('first token'), 5);");
  expect(timed(endless, folder, 'first token').seconds).toBeGreaterThan(0);
});

it('text is what is loaded and never written', () => {
  const [header, size] = [64, 64];
  const file = Buffer.alloc(header + 4 * size);
  file.write('\x7fELF\x02', 'latin1');
  file.writeBigUInt64LE(BigInt(header), 40);
  file.writeUInt16LE(size, 58);
  file.writeUInt16LE(4, 60);
  // Of code, of constants, of variables, of what is not loaded: their flags and sizes.
  for (const [i, [flags, bytes]] of (
    [
      [6n, 1000n],
      [2n, 200n],
      [3n, 30n],
      [0n, 4n],
    ] as const
  ).entries()) {
    file.writeBigUInt64LE(flags, header + i * size + 8);
    file.writeBigUInt64LE(bytes, header + i * size + 32);
  }
  writeFileSync(join(folder, 'made.node'), file);
  expect(textBytes(join(folder, 'made.node'))).toBe(1200);
  writeFileSync(join(folder, 'other.node'), 'no binary of Linux');
  expect(textBytes(join(folder, 'other.node'))).toBeNull();
});
