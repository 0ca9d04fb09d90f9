/**
 * node scripts/roll-up-types.mjs DIR
 *
 * Replaces the declaration files that the compiler wrote to DIR by three: palimpsest.d.ts, which contains what
 * engine/index exports and nothing else, lab.d.ts, what engine/lab exports and, without exporting it, what that
 * names, and langchain.d.ts. The first two contain no types of our dependencies, so a program that uses the package can
 * be compiled without their types. Fails when a signature of the library names a type that is not exported, or one of
 * the first two is a dependency's.
 */
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const DECLARATION = /^(?:export )?(?:declare )?(?:abstract )?(interface|type|class|function|const) (\w+)/;
const IMPORT = /^(import|export) (type )?(?:\{(.*)\}|\*) from ['"](.*)['"];$/;

/**
 * The statements of a declaration file, each with the comment above it. In what the compiler writes, every statement
 * begins in the first column, and nothing else does.
 */
function statementsOf(text) {
  const statements = [];
  let comment = '';
  let lines = null;
  for (const line of text.split('\n')) {
    if (lines === null && (line.startsWith('/**') || comment.endsWith('\n'))) {
      if (line.startsWith('/**')) comment = '';
      comment += line.endsWith('*/') ? line : `${line}\n`;
      continue;
    }
    if (/^[a-z]/.test(line) && lines === null) lines = [];
    if (lines === null) continue;
    lines.push(line);
    if (/^[^\s].*;$|^\}/.test(line) && !/[{(]$/.test(line)) {
      statements.push({ comment, text: lines.join('\n') });
      comment = '';
      lines = null;
    }
  }
  return statements;
}

/** Reads a list such as 'a, type b as c' and returns pairs: the name in the other file, and the name in this file. */
const namesIn = (list) =>
  list
    .split(',')
    .map((part) => part.trim().replace(/^type /, ''))
    .filter((part) => part !== '')
    .map((part) => part.split(' as '))
    .map(([from, to]) => [from, to ?? from]);

class Declarations {
  #files = new Map();

  /**
   * Reads a declaration file. Returns the statements by name (`local`), for each name from another file or package its
   * file and its name there (`named`), and the files whose exports are all exported again (`all`).
   */
  file(name) {
    let found = this.#files.get(name);
    if (found !== undefined) return found;
    found = { local: new Map(), named: new Map(), all: [] };
    this.#files.set(name, found);
    for (const statement of statementsOf(fs.readFileSync(name, 'utf8'))) {
      const imported = IMPORT.exec(statement.text);
      if (imported === null) {
        const declared = DECLARATION.exec(statement.text);
        if (declared !== null) found.local.set(declared[2], statement);
        continue;
      }
      const [, , , list, specifier] = imported;
      const target = specifier.startsWith('.')
        ? path.join(path.dirname(name), specifier.replace(/\.ts$/, '.d.ts'))
        : specifier;
      if (list === undefined) found.all.push(target);
      else for (const [from, to] of namesIn(list)) found.named.set(to, [target, from]);
    }
    return found;
  }

  /**
   * Finds where a name that a file uses or exports is declared. Returns [file, name], with the name of the package as
   * the file if it comes from one, or null if the name is global.
   */
  find(file, name) {
    if (!path.isAbsolute(file)) return [file, name];
    const { local, named, all } = this.file(file);
    if (local.has(name)) return [file, name];
    if (named.has(name)) return this.find(...named.get(name));
    for (const target of all) {
      const found = this.find(target, name);
      if (found !== null) return found;
    }
    return null;
  }
}

/** The names of types in a statement. They all begin with a capital letter. Values appear only after `typeof`. */
function typesIn(text) {
  const plain = text.replaceAll(/\/\*[\s\S]*?\*\//g, '').replaceAll(/'[^'\n]*'|"[^"\n]*"/g, "''");
  return new Set(
    [...plain.matchAll(/typeof (\w+)|(?<![.\w])([A-Z]\w*)(?!\w)/g)].map(([, value, type]) => value ?? type),
  );
}

/**
 * What palimpsest/lab exports and does not declare: the codecs in TypeScript, whose types are those of every format.
 */
const UNDECLARED = ['reference'];

/**
 * The text of the declarations of palimpsest/lab. What its signatures name is declared as well, because insides are
 * named there.
 */
export function rollUpLabTypes(dir) {
  const index = path.resolve(dir, 'engine/lab.d.ts');
  const declarations = new Declarations();
  const names = [...declarations.file(index).named.keys()].filter((name) => !UNDECLARED.includes(name));
  const queue = names.map((name) => [...declarations.find(index, name), name]);
  const places = new Map();
  const parts = [];
  for (const [file, there, name] of queue) {
    const place = `${file}#${there}`;
    if (places.get(name) === place) continue;
    const isClear = path.isAbsolute(file) && there === name && !places.has(name);
    if (!isClear)
      throw new Error(`palimpsest/lab names ${name}, which is a dependency's, has two names or stands for two`);
    places.set(name, place);
    const { comment, text } = declarations.file(file).local.get(there);
    for (const used of typesIn(text)) {
      const found = declarations.find(file, used);
      if (found !== null) queue.push([...found, used]);
    }
    const declared = text
      .replace(/^export (?!default)/, '')
      .replace(/^(?=(abstract )?(class|function|const) )/, 'declare ');
    parts.push(`${comment === '' ? '' : `${comment}\n`}${names.includes(name) ? 'export ' : ''}${declared}`);
  }
  const [head] = /^\/\*\*[\s\S]*?\*\//.exec(fs.readFileSync(index, 'utf8')) ?? [''];
  return `${[head, ...parts, 'export {};'].join('\n\n')}\n`;
}

/** The text of the declarations of palimpsest/langchain: what it has of the library is what the library exports. */
export function rollUpLangChainTypes(dir) {
  const name = path.resolve(dir, 'engine/langchain/chat-model.d.ts');
  const library = new Declarations().file(path.resolve(dir, 'engine/index.d.ts')).named;
  return fs.readFileSync(name, 'utf8').replaceAll(/^import (.*) from '\..*';$/gm, (_, names) => {
    const missing = namesIn(names.replace(/^type |[{}]/g, '')).filter(([, to]) => !library.has(to));
    if (missing.length > 0) throw new Error(`palimpsest/langchain names ${missing[0][1]}, which is not exported`);
    return `import ${names} from './palimpsest.js';`;
  });
}

/** The text of the declaration file of the library. `dir` holds the compiler's output. */
export function rollUpTypes(dir, entry = 'engine/index.d.ts') {
  const index = path.resolve(dir, entry);
  const declarations = new Declarations();
  const { named } = declarations.file(index);
  const exported = new Map([...named].map(([name, [file, from]]) => [declarations.find(file, from).join('#'), name]));
  const problems = [];
  const parts = [];
  for (const name of named.keys()) {
    const [file, there] = declarations.find(index, name);
    const { comment, text } = declarations.file(file).local.get(there);
    for (const used of typesIn(text)) {
      const found = declarations.find(file, used);
      if (found !== null && exported.get(found.join('#')) !== used) problems.push(`${name} names ${used}`);
    }
    if (there !== name || text.includes('import(')) problems.push(`${name} is not written under its own name`);
    parts.push(`${comment === '' ? '' : `${comment}\n`}${text.replace(/^(?!export )/, 'export ')}`);
  }
  if (problems.length > 0)
    throw new Error(`engine/index.ts does not export what its signatures name:\n  ${problems.join('\n  ')}`);
  const [head] = /^\/\*\*[\s\S]*?\*\//.exec(fs.readFileSync(index, 'utf8')) ?? [''];
  return `${[head, ...parts].join('\n\n')}\n`;
}

if (process.argv[1] !== undefined && fs.realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const [dir] = process.argv.slice(2);
  try {
    const [text, lab, langchain] = [rollUpTypes(dir), rollUpLabTypes(dir), rollUpLangChainTypes(dir)];
    for (const file of fs.readdirSync(dir, { recursive: true }))
      if (file.endsWith('.d.ts')) fs.rmSync(path.join(dir, file));
    fs.writeFileSync(path.join(dir, 'palimpsest.d.ts'), text);
    fs.writeFileSync(path.join(dir, 'lab.d.ts'), lab);
    fs.writeFileSync(path.join(dir, 'langchain.d.ts'), langchain);
  } catch (error) {
    process.stderr.write(`${error.message}\n`);
    process.exitCode = 1;
  }
}
