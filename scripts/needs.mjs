/**
 * What a finished addon takes from the machine that loads it. A binary that was made for a system that is not at hand
 * cannot be tried, but its headers tell which libraries the loader will look for, and on a Mac also which names it must
 * find in the process.
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
  const run = spawnSync('objdump', ['-p', file], { encoding: 'utf8', maxBuffer: 2 ** 28 });
  if (run.status !== 0) throw new BuildFailure(`objdump cannot read ${file}: ${run.stderr}`);
  return [...run.stdout.matchAll(pattern)].map((match) => match[1]);
}

/** Apple's loader.h names these fields; objdump of Linux does not read such files. */
function readMac(file) {
  const bytes = readFileSync(file);
  const text = (at) => bytes.toString('latin1', at, bytes.indexOf(0, at));
  if (bytes.readUInt32LE(0) !== 0xfeedfacf) throw new BuildFailure(`${file} is not a 64-bit Mach-O file`);
  const found = { libraries: [], names: [] };
  let at = 32;
  for (let left = bytes.readUInt32LE(16); left > 0; left--) {
    const command = bytes.readUInt32LE(at) & 0x7fffffff;
    if (command === 0xc || command === 0x18) found.libraries.push(text(at + bytes.readUInt32LE(at + 8)));
    if (command === 0x22) {
      // What is bound when the file is loaded, and what when it is first called. C++ has the other list: what it
      // defines itself.
      for (const list of [16, 32]) {
        const [start, bytesLong] = [0, 4].map((offset) => bytes.readUInt32LE(at + list + offset));
        found.names.push(...boundInProcess(bytes, start, start + bytesLong));
      }
    }
    at += bytes.readUInt32LE(at + 4);
  }
  return found;
}

/**
 * The names, without the underscore of C, that a list of bindings looks for in the whole process and not in a certain
 * library.
 */
function boundInProcess(bytes, start, end) {
  const names = new Set();
  let [at, name, isAnywhere] = [start, '', false];
  const skipNumber = () => {
    while (bytes[at++] & 0x80);
  };
  while (at < end) {
    const [operation, immediate] = [bytes[at] & 0xf0, bytes[at] & 0x0f];
    at++;
    if (operation === 0x10 || operation === 0x20 || operation === 0x30) {
      isAnywhere = operation === 0x30 && immediate === 0x0e;
      if (operation === 0x20) skipNumber();
    } else if (operation === 0x40) {
      const stop = bytes.indexOf(0, at);
      name = bytes.toString('latin1', at + 1, stop);
      at = stop + 1;
    } else if (operation >= 0x60 && operation <= 0x80) skipNumber();
    else if (operation >= 0x90) {
      if (isAnywhere) names.add(name);
      if (operation === 0xa0 || operation === 0xc0) skipNumber();
      if (operation === 0xc0) skipNumber();
    }
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
