/**
 * Which functions of the binary a run has called. A file gets a line for each function that there is, `has NAME`, and
 * one for each that was called, `called NAME`: PALIMPSEST_TEST_CALLED names the file.
 */
import { appendFileSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename } from 'node:path';

type Function = (...given: unknown[]) => unknown;
type Class = new () => Record<string, unknown>;

/** The same exports, and the same methods of their classes, whose calls are told. */
function told(exports: Readonly<Record<string, unknown>>, say: (line: string) => void): Record<string, unknown> {
  const counted = (name: string, work: Function): Function => {
    say(`has ${name}`);
    let isCalled = false;
    return function count(this: unknown, ...given) {
      if (!isCalled) say(`called ${name}`);
      isCalled = true;
      return work.apply(this, given);
    };
  };
  return Object.fromEntries(
    Object.entries(exports).map(([name, value]) => {
      if (typeof value !== 'function') return [name, value];
      const methods = Object.entries(Object.getOwnPropertyDescriptors(value.prototype ?? {})).filter(
        ([method, { value: work }]) => method !== 'constructor' && typeof work === 'function',
      );
      if (methods.length === 0) return [name, counted(name, value as Function)];
      const Counted = class extends (value as Class) {};
      for (const [method, { value: work }] of methods)
        Object.defineProperty(Counted.prototype, method, { value: counted(`${name}.${method}`, work as Function) });
      return [name, Counted];
    }),
  );
}

/** From now on calls of functions of the binary are told. It is asked for before the binary is loaded. */
export function tellCalls(file: string): void {
  const { extensions } = createRequire(import.meta.url) as unknown as {
    extensions: Record<string, (module: { exports: Record<string, unknown> }, path: string) => void>;
  };
  const load = extensions['.node']!;
  extensions['.node'] = (module, path) => {
    load(module, path);
    if (basename(path) === 'palimpsest.node')
      module.exports = told(module.exports, (line) => appendFileSync(file, `${line}\n`));
  };
}

/** → functions that were there and that nobody called. */
export function uncalled(file: string): string[] {
  const lines = readFileSync(file, 'utf8').split('\n');
  const named = (word: string): Set<string> =>
    new Set(lines.filter((line) => line.startsWith(word)).map((line) => line.slice(word.length)));
  const called = named('called ');
  return [...named('has ')].filter((name) => !called.has(name));
}
