/**
 * The packages of binaries, one for each kind of machine, and how the main package names them.
 *   node scripts/platform-packages.mjs --name      writes them into package.json as optional dependencies, before it is
 *   packed
 *   node scripts/platform-packages.mjs --forget    takes them out again, after that
 * npm installs of several optional dependencies those that say they fit the machine (`os`, `cpu`, `libc`). They are
 * named only in what is packed: in a checkout `npm ci` would look for versions that are not published yet.
 */
import { copyFileSync, existsSync, readdirSync, readFileSync, realpathSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { root } from './native-toolchain.mjs';

const manifestFile = join(root, 'package.json');
const readManifest = () => JSON.parse(readFileSync(manifestFile, 'utf8'));
const write = (file, value) => writeFileSync(file, `${JSON.stringify(value, null, 2)}\n`);

const nameOf = (target) => `palimpsest-${target}`;

/** Makes prebuilds/TARGET a package. */
export function writePackage(target) {
  const { version, license } = readManifest();
  const [os, cpu, libc = 'glibc'] = target.split('-');
  const folder = join(root, 'prebuilds', target);
  const readme = `The native part of palimpsest ${version} for ${target}. npm installs it with the package palimpsest; it is of no use alone.\n`;
  write(join(folder, 'package.json'), {
    name: nameOf(target),
    version,
    description: `The native part of palimpsest for ${target}`,
    license,
    os: [os],
    cpu: [cpu],
    ...(os === 'linux' ? { libc: [libc] } : {}),
    files: ['palimpsest.node'],
  });
  writeFileSync(join(folder, 'README.md'), readme);
  copyFileSync(join(root, 'LICENSE'), join(folder, 'LICENSE'));
}

/** The targets for which there is a package. */
export const builtTargets = () =>
  readdirSync(join(root, 'prebuilds')).filter((target) => existsSync(join(root, 'prebuilds', target, 'package.json')));

function name() {
  const manifest = readManifest();
  const binaries = Object.fromEntries(builtTargets().map((target) => [nameOf(target), manifest.version]));
  write(manifestFile, { ...manifest, optionalDependencies: { ...manifest.optionalDependencies, ...binaries } });
}

function forget() {
  const manifest = readManifest();
  const others = Object.entries(manifest.optionalDependencies).filter(([key]) => !key.startsWith('palimpsest-'));
  write(manifestFile, { ...manifest, optionalDependencies: Object.fromEntries(others) });
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  if (process.argv.includes('--name')) name();
  else if (process.argv.includes('--forget')) forget();
  else throw new Error('give --name or --forget');
}
