/**
 * What a finished addon takes from the machine that loads it. A binary that was made for a system that is not at hand cannot be
 * tried, but its headers tell which libraries the loader will look for, and on a Mac also which names it must find in the process.
 */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { BuildFailure } from './native-toolchain.mjs';

/** The names of Node-API, which Node has. */
const NODE_API = /^(napi|node_api)_/;

/** The libraries that every machine with a system has, beside Node itself. */
const SYSTEM = {
  linux: /^libc\.so$/, // musl answers to this name whatever its file is called
  darwin: /^\/usr\/lib\/libSystem\.B\.dylib$/,
  win32: /^(node\.exe|KERNEL32\.dll|api-ms-win-crt-[a-z]+-l1-1-0\.dll)$/i,
};

function dumped(file, pattern) {
  const run = spawnSync('objdump', ['-p', file], { encoding: 'utf8' });
  if (run.status !== 0) throw new BuildFailure(`objdump cannot read ${file}: ${run.stderr}`);
  return [...run.stdout.matchAll(pattern)].map((match) => match[1]);
}

/** Apple's loader.h and nlist.h name these fields; objdump of Linux does not read such files. */
function readMac(file) {
  const bytes = readFileSync(file);
  const text = (at) => bytes.toString('latin1', at, bytes.indexOf(0, at));
  if (bytes.readUInt32LE(0) !== 0xfeedfacf) throw new BuildFailure(`${file} is not a 64-bit Mach-O file`);
  const found = { libraries: [], names: [] };
  let at = 32;
  for (let left = bytes.readUInt32LE(16); left > 0; left--) {
    const command = bytes.readUInt32LE(at) & 0x7fffffff;
    if (command === 0xc || command === 0x18) found.libraries.push(text(at + bytes.readUInt32LE(at + 8)));
    if (command === 0x2) found.names.push(...undefinedNames(bytes, at, text));
    at += bytes.readUInt32LE(at + 4);
  }
  return found;
}

/** The undefined names of a symbol table that are in no certain library, without the underscore of C. */
function undefinedNames(bytes, command, text) {
  const [symbols, count, strings] = [8, 12, 16].map((offset) => bytes.readUInt32LE(command + offset));
  const names = [];
  for (let at = symbols; at < symbols + 16 * count; at += 16) {
    const isUndefined = (bytes[at + 4] & 0x0e) === 0 && (bytes[at + 4] & 0xe0) === 0;
    const library = bytes.readUInt16LE(at + 6) >> 8;
    if (isUndefined && library === 0xfe) names.push(text(strings + bytes.readUInt32LE(at)).slice(1));
  }
  return names;
}

/** → the libraries that an addon needs. Throws BuildFailure for one that not every machine with that system has. */
export function checkNeeds(file, os) {
  const { libraries, names = [] } =
    os === 'darwin'
      ? readMac(file)
      : { libraries: dumped(file, os === 'win32' ? /DLL Name: (\S+)/g : /NEEDED +(\S+)/g) };
  const strange = [
    ...libraries.filter((name) => !SYSTEM[os].test(name)),
    ...names.filter((name) => !NODE_API.test(name)),
  ];
  if (strange.length > 0) throw new BuildFailure(`${file} needs ${strange.join(', ')}`);
  if (os === 'darwin' && names.length === 0) throw new BuildFailure(`${file} takes nothing of Node-API`);
  return libraries;
}
