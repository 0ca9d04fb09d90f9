/**
 * The library that follows grammars: XGrammar (Dong et al., arXiv 2411.15100), compiled to WebAssembly. Its package
 * holds one script for browsers and CommonJS under a manifest that says ES module, so that neither import nor require
 * of Node can load it; here the script is run as the CommonJS that it is. It is given no `process`, since it needs
 * nothing of Node, and a console that keeps what it says: it was compiled without exceptions, and prints what is wrong
 * before it aborts.
 */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { compileFunction } from 'node:vm';
import { KvError } from '../../../native/index.ts';

export type Library = typeof import('@mlc-ai/web-xgrammar');

const PACKAGE = '@mlc-ai/web-xgrammar';
const SAID_MAX = 20;

export interface OpenedLibrary {
  readonly library: Library;
  /** Takes what it has said since the last time. */
  takeSaid(): readonly string[];
}

/**
 * A library with a memory of its own, since one that has aborted cannot be trusted any more. name: that of its package.
 * Throws 'missing-dependency'.
 */
export function openLibrary(name: string = PACKAGE): OpenedLibrary {
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
  const names = ['exports', 'module', 'require', '__filename', 'process', 'console'];
  const run = compileFunction(text, names, { filename: path });
  run.call(module.exports, module.exports, module, require, path, undefined, { log: hear, warn: hear, error: hear });
  const takeSaid = (): readonly string[] => {
    const taken = said;
    said = [];
    return taken;
  };
  return { library: module.exports as Library, takeSaid };
}
