// Importing modules loads no binary: a program chooses its binding behind its imports. All modules of native/ and
// engine/transformer/, and the library, are imported in a process of its own, which then asks for a binding that is not
// the usual one.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const root = join(import.meta.dirname, '../../..');
const modulesOf = (folder: string): string[] =>
  readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    // The entry of yardsticks is imported before all others, as it says, and that of a thread in a thread.
    .filter(
      (name) => name.endsWith('.ts') && !/^(build|node_modules)\/|^yardsticks\/register\.ts$|-thread\.ts$/.test(name),
    )
    .map((name) => `./${join(folder, name)}`);

/** → what useBinding('wasm') throws behind the imports, or 'none' */
function afterImports(modules: readonly string[], before = ''): string {
  const program = `
    for (const name of ${JSON.stringify(modules)}) await import(name);
    const { useBinding, nativeInfo } = await import('./native/index.ts');
    ${before}
    try { useBinding('wasm'); console.log('none'); } catch (error) { console.log(error.code); }`;
  const { PALIMPSEST_BINDING: _binding, ...env } = process.env;
  const ran = spawnSync(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', program], {
    cwd: root,
    env,
    encoding: 'utf8',
  });
  expect(ran.stderr).toBe('');
  return ran.stdout.trim();
}

test('no module settles which binary is used', () => {
  // Without a WebAssembly build the choice fails for want of it, and not because another has been loaded.
  expect(['none', 'missing-dependency']).toContain(
    afterImports([...modulesOf('native'), ...modulesOf('engine/transformer'), './engine/index.ts']),
  );
});

test('a call does, so that the question above has two answers', () => {
  expect(afterImports([], 'nativeInfo();')).toBe('unsupported');
});
