// Which binary a machine gets: for every system that one is made for, for those that none is made for, and for this
// one, whose C library is seen in what the process has mapped. What is looked for must be what scripts/prebuild.mjs
// makes.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import {
  PREBUILT_TARGETS,
  prebuiltFile,
  prebuiltPackage,
  prebuiltTarget,
  thisMachine,
  whyNoPrebuilt,
} from '../../../native/prebuilt.ts';

const root = realpathSync(mkdtempSync(join(tmpdir(), 'palimpsest-prebuilt-')));
afterAll(() => rmSync(root, { recursive: true, force: true }));
const target = prebuiltTarget(thisMachine());

describe('prebuiltTarget', () => {
  it.each([
    ['linux', 'x64', false, 'linux-x64'],
    ['linux', 'x64', true, 'linux-x64-musl'],
    ['linux', 'arm64', false, 'linux-arm64'],
    ['linux', 'arm64', true, 'linux-arm64-musl'],
    ['darwin', 'x64', false, 'darwin-x64'],
    ['darwin', 'arm64', false, 'darwin-arm64'],
    ['win32', 'x64', false, 'win32-x64'],
    // For these WebAssembly is used.
    ['win32', 'arm64', false, null],
    ['linux', 'riscv64', false, null],
    ['linux', 'arm', true, null],
    ['freebsd', 'x64', false, null],
    ['x64', 'musl', false, null],
  ])('of %s on %s, musl: %s, is %s', (platform, arch, isMusl, expected) => {
    expect(prebuiltTarget({ platform, arch, isMusl })).toBe(expected);
  });

  it('knows what scripts/prebuild.mjs makes', () => {
    const { stderr } = spawnSync(process.execPath, ['scripts/prebuild.mjs', 'nothing'], {
      cwd: join(import.meta.dirname, '../../..'),
      encoding: 'utf8',
    });
    const made = /nothing is not one of (.*)/.exec(stderr)?.[1]?.split(', ');
    expect(made).toEqual([...PREBUILT_TARGETS, 'wasm']);
  });

  it('sees the C library of this process as Node itself does', () => {
    const { header } = process.report.getReport() as unknown as { header: { glibcVersionRuntime?: string } };
    const isMusl = process.platform === 'linux' && header.glibcVersionRuntime === undefined;
    expect(thisMachine()).toEqual({ platform: process.platform, arch: process.arch, isMusl });
  });
});

describe.skipIf(target === null)('prebuiltFile (needs a machine that a binary is made for)', () => {
  const name = prebuiltPackage(target ?? 'linux-x64');
  const put = (...path: string[]): string => {
    mkdirSync(join(root, ...path), { recursive: true });
    const file = join(root, ...path, 'palimpsest.node');
    writeFileSync(file, '');
    return file;
  };

  it('finds nothing, then the package that npm installed, then what the checkout has built', () => {
    writeFileSync(join(root, 'package.json'), '{}');
    expect(prebuiltFile(root)).toBeNull();
    expect(whyNoPrebuilt('1.2.3')).toContain(`${name}@1.2.3`);
    // A package for another machine is of no use, wherever it came from.
    for (const other of PREBUILT_TARGETS) if (other !== target) put('node_modules', prebuiltPackage(other));
    expect(prebuiltFile(root)).toBeNull();
    const installed = put('node_modules', name);
    expect(prebuiltFile(root)).toBe(installed);
    const built = put('prebuilds', target ?? '');
    expect(prebuiltFile(root)).toBe(built);
  });
});
