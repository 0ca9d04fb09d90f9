// The declarations of the package: does every name in them say what it is, and do the programs of the documents compile
// against the packed files in a strict project that checks libraries too? The project is made in an empty folder, with
// @types/node beside the package and nothing else.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { SETTINGS } from '../../engine/cli/settings.ts';
import { examplesOf } from '../examples/examples.ts';

const root = join(import.meta.dirname, '../..');
const { rollUpTypes } = (await import(join(root, 'scripts/roll-up-types.mjs'))) as {
  rollUpTypes: (dir: string, entry: string) => string;
};
const declarations = readFileSync(join(root, 'dist/palimpsest.d.ts'), 'utf8');
const folder = mkdtempSync(join(tmpdir(), 'palimpsest-types-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Exported names, and members of interfaces and classes as 'Interface.member', that no comment stands above. */
function undocumented(text: string): string[] {
  const lines = text.split('\n');
  const found: string[] = [];
  let inside: string | null = null;
  for (const [at, line] of lines.entries()) {
    const documented = lines[at - 1]?.endsWith('*/') === true;
    const exported = /^export (?:declare )?(?:abstract )?(interface|class|type|function|const) (\w+)/.exec(line);
    if (exported !== null) {
      if (!documented) found.push(exported[2]!);
      inside = /interface|class/.test(exported[1]!) && line.endsWith('{') ? exported[2]! : null;
    }
    const member = /^ {4}(?:(?:private|readonly|get|static|async) )*(\[?[\w.]+)/.exec(line)?.[1];
    if (inside !== null && member !== undefined && member !== 'constructor' && !documented)
      found.push(`${inside}.${member}`);
  }
  return found;
}

describe('the declarations', () => {
  it('say what every exported name and every option is', () => {
    const text = 'export interface A {\n    /** x */\n    a: 1;\n    b?: 2;\n}\n\n/** y */\nexport type C = 1;\n';
    expect(undocumented(text)).toEqual(['A', 'A.b']);
    expect(declarations.match(/^export /gm)!.length).toBeGreaterThan(37);
    expect(undocumented(declarations)).toEqual([]);
  });

  it('name nothing of other packages, nothing internal, and nothing that is not exported', () => {
    expect(declarations).not.toMatch(/^import|import\(|@internal/m);
    const dist = join(folder, 'dist');
    mkdirSync(dist);
    const write = (name: string, text: string): void => writeFileSync(join(dist, name), text);
    const index = "export { open } from './open.ts';\n";
    write('index.d.ts', index);
    write(
      'open.d.ts',
      "import { Z } from 'zod';\nexport interface Options {\n    a: 'Left';\n}\nexport declare function open(options: Options, z: Z): void;\n",
    );
    expect(() => rollUpTypes(dist, 'index.d.ts')).toThrow(/open names Options\n +open names Z/);
    write('index.d.ts', "export { open, type Options } from './open.ts';\n");
    write(
      'open.d.ts',
      '/** What to open. */\nexport interface Options {\n    a: 1;\n}\nexport declare function open(options: Options): void;\nexport {};\n',
    );
    expect(rollUpTypes(dist, 'index.d.ts')).toContain('/** What to open. */\nexport interface Options {\n    a: 1;\n}');
  });
});

/** A field of files, a setting of the compiler, a name that was given up, and an export of palimpsest-lab. */
const ELSEWHERE: readonly string[] = ['layoutVersion', 'skipLibCheck', 'schedulerMs', 'TokenCache'];

describe('the changelog', () => {
  it('names nothing that the package does not have', () => {
    const text = readFileSync(join(root, 'CHANGELOG.md'), 'utf8');
    const flags = Object.values(SETTINGS).map((setting) => setting.flags);
    const missing: string[] = [];
    for (const [, code] of text.matchAll(/`([^`]+)`/g)) {
      const flag = /^--([a-z-]+)/.exec(code!)?.[1];
      // Node's own flags and functions are named where programs use them, and requests of the live view.
      if (
        flag !== undefined &&
        !flags.some((names) => names.includes(`--${flag}`)) &&
        !['import', 'input-type'].includes(flag)
      )
        missing.push(code!);
      for (const [name] of code!.replace(/^(process\.|GET ).*/, '').matchAll(/\b[a-zA-Z]+[A-Z]\w*/g))
        if (!new RegExp(`\\b${name}\\b`).test(declarations) && !ELSEWHERE.includes(name)) missing.push(name);
    }
    expect(missing).toEqual([]);
  });
});

/** The programs of documents that are for frameworks. */
const FRAMEWORKS = ['ai-sdk.ts', 'langchain.ts'];

describe('a strict NodeNext project with the packed package', () => {
  it('compiles every program of the documents', () => {
    const run = (program: string, args: readonly string[], cwd: string): string => {
      const { status, stdout, stderr } = spawnSync(program, args, { cwd, encoding: 'utf8' });
      expect({ status, stdout, stderr: status === 0 ? '' : stderr }).toMatchObject({ status: 0, stderr: '' });
      return stdout;
    };
    const packed = run('npm', ['pack', '--ignore-scripts', '--silent', '--pack-destination', folder], root).trim();
    const modules = join(folder, 'node_modules');
    const own = join(modules, 'palimpsest');
    mkdirSync(own, { recursive: true });
    run('tar', ['-xzf', join(folder, packed), '--strip-components=1', '-C', own], folder);
    const named = ['@types/node', 'undici-types', 'openai', 'ai', '@ai-sdk', 'zod'];
    const theirOwn = ['@standard-schema', '@workflow', 'eventsource-parser', '@vercel/oidc', '@langchain', '@cfworker'];
    for (const name of [...named, ...theirOwn, 'langsmith', 'p-queue', 'eventemitter3', 'p-timeout']) {
      mkdirSync(dirname(join(modules, name)), { recursive: true });
      cpSync(join(root, 'node_modules', name), join(modules, name), { recursive: true });
    }
    const compilerOptions = { strict: true, module: 'nodenext', target: 'es2023', types: ['node'], noEmit: true };
    const options = { ...compilerOptions, skipLibCheck: false, exactOptionalPropertyTypes: true };
    writeFileSync(join(folder, 'package.json'), '{ "type": "module", "private": true }');
    writeFileSync(
      join(folder, 'tsconfig.json'),
      JSON.stringify({ compilerOptions: options, include: ['*.ts'], exclude: FRAMEWORKS }),
    );
    // The declarations of those packages do not hold under all of these options; what they are given is checked.
    const theirs = { ...options, skipLibCheck: true };
    writeFileSync(join(folder, 'frameworks.json'), JSON.stringify({ compilerOptions: theirs, files: FRAMEWORKS }));
    const examples = examplesOf(root);
    expect(examples.length).toBeGreaterThan(1);
    for (const { name, source } of examples) writeFileSync(join(folder, `${name}.ts`), source);
    const tsc = join(root, 'node_modules/typescript/bin/tsc');
    expect(run(process.execPath, [tsc, '-p', folder], folder)).toBe('');
    expect(run(process.execPath, [tsc, '-p', join(folder, 'frameworks.json')], folder)).toBe('');
    // The same of the door for methods of others, which declares insides.
    writeFileSync(
      join(folder, 'method.ts'),
      `import { type CacheMethod, evaluate, f16CacheBytes, findCaches, registerMethods, Runtime } from 'palimpsest/lab';
      const zeros: CacheMethod = async ({ model, shape }, { ids, scored }) => {
        const bytesF16 = f16CacheBytes(shape, ids.length);
        return { hidden: new Float32Array(scored * model.config.hiddenSize), bytes: 1, bytesAtRest: 1, bytesF16 };
      };
      registerMethods({ from: 'own', find: (cache) => (cache === 'zeros' ? zeros : null) });
      const runtime = await Runtime.open({ model: 'reference' });
      const texts = [{ name: 'text', content: 'text' }];
      const caches = await findCaches(['zeros', 'price@25%']);
      const [row] = await evaluate(runtime, { texts, caches, tokens: 512, windows: 1, recallDocuments: 0, seed: 0 });
      console.log(row?.meanKld.toFixed(3));
`,
    );
    expect(run(process.execPath, [tsc, '-p', folder], folder)).toBe('');
    // The check can fail: a misspelt option is an error there too.
    writeFileSync(
      join(folder, 'wrong.ts'),
      "import { openCache } from 'palimpsest';\nawait openCache({ layerz: 1 });\n",
    );
    const { status, stdout } = spawnSync(process.execPath, [tsc, '-p', folder], { cwd: folder, encoding: 'utf8' });
    expect(status).not.toBe(0);
    expect(stdout).toMatch(/wrong\.ts.*layerz/);
  });
});
