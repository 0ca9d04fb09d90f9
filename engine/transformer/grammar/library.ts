/**
 * The library that follows grammars: XGrammar (Dong et al., arXiv 2411.15100), compiled to WebAssembly. Its package
 * holds one script for browsers and CommonJS under a manifest that says ES module, so that neither import nor require
 * of Node can load it; here the script is run as the CommonJS that it is. It is given no `process`, since it needs
 * nothing of Node, and a console that keeps what it says: it was compiled without exceptions, and prints what is wrong
 * before it aborts. Its WebAssembly is the one of Node, but for the bytes that its memory grows to.
 */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { compileFunction } from 'node:vm';
import { KvError } from '../../../native/index.ts';

export type Library = typeof import('@mlc-ai/web-xgrammar');

const PACKAGE = '@mlc-ai/web-xgrammar';
const SAID_MAX = 20;
/** Bytes that it may grow to: a grammar of a thousand counts takes 300 MB for a vocabulary of 50,000. */
const MEMORY_BYTES_MAX = 1 << 30;
const PAGE_BYTES = 65_536;

export interface OpenedLibrary {
  readonly library: Library;
  /** Takes what it has said since the last time. */
  takeSaid(): readonly string[];
}

/**
 * A library with a memory of its own, since one that has aborted cannot be trusted any more. name: that of its package.
 * bytesMax: what its memory grows to. Throws 'missing-dependency'.
 */
export function openLibrary(name: string = PACKAGE, bytesMax = MEMORY_BYTES_MAX): OpenedLibrary {
  const require = createRequire(import.meta.url);
  let path: string;
  let text: string;
  try {
    path = require.resolve(name);
    text = readFileSync(path, 'utf8');
  } catch (cause) {
    throw new KvError('missing-dependency', `grammars are followed with the package ${PACKAGE}`, {
      hint: `npm install ${PACKAGE}@0.1.27`,
      cause,
    });
  }
  let said: string[] = [];
  const hear = (line: unknown): void => void (said.length < SAID_MAX && said.push(String(line)));
  const module: { exports: unknown } = { exports: {} };
  const names = ['exports', 'module', 'require', '__filename', 'process', 'console', 'WebAssembly'];
  const run = compileFunction(text, names, { filename: path });
  const console = { log: hear, warn: hear, error: hear };
  run.call(module.exports, module.exports, module, require, path, undefined, console, bounded(bytesMax));
  const takeSaid = (): readonly string[] => {
    const taken = said;
    said = [];
    return taken;
  };
  return { library: module.exports as Library, takeSaid };
}

interface WasmMemory {
  readonly buffer: ArrayBuffer;
  grow(pages: number): number;
}

/** The types of Node lack it. */
const wasm = Reflect.get(globalThis, 'WebAssembly') as {
  readonly Memory: new () => WasmMemory;
  readonly RuntimeError: unknown;
  instantiate(
    code: Uint8Array,
    imports: object,
  ): Promise<{ readonly instance: { readonly exports: Readonly<Record<string, unknown>> } }>;
};

/** WebAssembly for the library. If it needs more memory, it is told that there is none, and aborts. */
const bounded = (bytesMax: number): Pick<typeof wasm, 'RuntimeError' | 'instantiate'> => ({
  RuntimeError: wasm.RuntimeError,
  async instantiate(code, imports) {
    const made = await wasm.instantiate(code, imports);
    for (const memory of Object.values(made.instance.exports))
      if (memory instanceof wasm.Memory) bound(memory, bytesMax);
    return made;
  },
});

function bound(memory: WasmMemory, bytesMax: number): void {
  const grow = memory.grow.bind(memory);
  memory.grow = (pages) => {
    if (memory.buffer.byteLength + pages * PAGE_BYTES > bytesMax) throw new RangeError('no more memory');
    return grow(pages);
  };
}
