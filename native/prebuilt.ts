/** Which of the packages with binaries fits a machine, and where its binary lies. */
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

export interface Machine {
  readonly platform: string;
  readonly arch: string;
  /** True if the C library of this process is musl. Only asked for on Linux. */
  readonly isMusl: boolean;
}

/** The machines that scripts/prebuild.mjs makes a binary for. */
export const PREBUILT_TARGETS = [
  'linux-x64',
  'linux-arm64',
  'linux-x64-musl',
  'linux-arm64-musl',
  'darwin-x64',
  'darwin-arm64',
  'win32-x64',
] as const;
export type PrebuiltTarget = (typeof PREBUILT_TARGETS)[number];

/** → null where no binary is made for a machine */
export function prebuiltTarget({ platform, arch, isMusl }: Machine): PrebuiltTarget | null {
  const name = `${platform}-${arch}${platform === 'linux' && isMusl ? '-musl' : ''}`;
  return PREBUILT_TARGETS.find((target) => target === name) ?? null;
}

/** The package with the binary for a target. */
export const prebuiltPackage = (target: PrebuiltTarget): string => `palimpsest-${target}`;

/**
 * The files that a process has mapped name the loader of its C library; a system without such a list is taken for one
 * with glibc.
 */
function hasMuslLoader(): boolean {
  try {
    return /\/ld-musl-[^/]*$/m.test(readFileSync('/proc/self/maps', 'latin1'));
  } catch {
    return false;
  }
}

export function thisMachine(): Machine {
  const { platform, arch } = process;
  return { platform, arch, isMusl: platform === 'linux' && hasMuslLoader() };
}

/**
 * The binary for this machine: of a checkout, or of the package that npm has installed beside this one. → null where
 * there is none
 */
export function prebuiltFile(root: string): string | null {
  const target = prebuiltTarget(thisMachine());
  if (target === null) return null;
  const own = join(root, 'prebuilds', target, 'palimpsest.node');
  if (existsSync(own)) return own;
  try {
    return createRequire(join(root, 'package.json')).resolve(`${prebuiltPackage(target)}/palimpsest.node`);
  } catch {
    return null; // it is not installed
  }
}

/** Why there is no binary for this machine, as a sentence. */
export function whyNoPrebuilt(version: string): string {
  const machine = thisMachine();
  const target = prebuiltTarget(machine);
  if (target === null) return `no binary is made for ${machine.platform}-${machine.arch}`;
  return `${prebuiltPackage(target)}@${version}, the package with the binary for this machine, is not installed`;
}
