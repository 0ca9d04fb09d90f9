/** Files that hold a table: TOML, or JSON where the name says so. */
import { parse as parseToml } from 'smol-toml';
import { asRecord, type JsonRules, KvError, parseJson } from '../../native/index.ts';

/** The table in a TOML file, or in a JSON file whose name ends in .json. Throws 'bad-config'. */
export function parseTable(path: string, content: Uint8Array): Readonly<Record<string, unknown>> {
  const rules = {
    what: path,
    code: 'bad-config',
    hint: 'a TOML file, or a JSON file whose name ends in .json',
  } as const;
  // Some editors put the mark of a byte order there.
  const plain = Buffer.from(
    Buffer.from(content)
      .toString('utf8')
      .replace(/^\uFEFF/, ''),
  );
  if (!path.endsWith('.json')) return tomlOf(plain.toString('utf8'), rules);
  const table = asRecord(parseJson(plain, rules));
  if (table !== undefined) return table;
  throw new KvError(rules.code, `${path} holds no settings`, { values: { path }, hint: rules.hint });
}

function tomlOf(text: string, { what, code, hint }: JsonRules): Readonly<Record<string, unknown>> {
  try {
    return parseToml(text);
  } catch (cause) {
    const [first] = (cause as Error).message.split('\n');
    throw new KvError(code, `${what} is not TOML: ${first}`, { values: { path: what }, hint, cause });
  }
}
