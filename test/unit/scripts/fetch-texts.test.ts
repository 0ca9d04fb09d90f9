// The texts that quality is measured on come from public addresses, and are the bytes that were measured.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { isText, SOURCES, textOf } from '../../../lab/evaluate/texts.ts';
import { hasSharedData, sharedData } from '../engine/transformer/model-files.ts';

const root = join(import.meta.dirname, '../../..');
const unpacked = (file: string): Buffer =>
  execFileSync('xz', ['-dc', join(sharedData, `${file}.xz`)], { maxBuffer: 2 ** 28 });
const all = SOURCES.flatMap(({ texts }) => texts);
const named = (file: string) => all.find((text) => text.file === file)!;

let dir: string;
let server: Server;
let from: string;
let asked: string[] = [];

/** What each path ends in is answered by; all else is not there. */
const ANSWERS: Readonly<Record<string, (response: ServerResponse) => void>> = {
  'v3.11.7/Lib/statistics.py': (response) => response.end(unpacked('python-code/statistics.py')),
  'v3.11.7/Lib/http/client.py': (response) => response.end(unpacked('python-code/logging.py').subarray(0, 30_000)),
  'v3.11.7/Lib/threading.py': (response) => {
    const more = (): void => {
      while (!response.destroyed && response.write(Buffer.alloc(65_536)));
    };
    response.on('drain', more);
    more();
  },
  // As it was published: with a mark in front and lines of two characters.
  'corpus/kafka_schloss.txt': (response) =>
    response.end(`\uFEFF${unpacked('german-novels/kafka_schloss.txt').toString('utf8').replaceAll('\n', '\r\n')}`),
  'corpus/Doyle_Hound_1902.txt': (response) =>
    response.end(`\uFEFF\r\n${unpacked('english-novels/heldout/Doyle_Hound_1902.txt').toString('utf8')}\f\r\n  `),
  'corpus/Gaskell_Ruth_1855.txt': (response) => response.end(novels()[0]),
  'corpus/Ford_Soldier_1915.txt': (response) => response.end(novels()[1]),
  'corpus/Trollope_Warden_1855.txt': (response) => response.end(novels()[2]),
};
const novels = (): string[] => unpacked('english-novels/valid.txt').toString('utf8').split('\f\n');

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'texts-'));
  server = createServer((request, response) => {
    asked.push(request.url!);
    const answer = Object.entries(ANSWERS).find(([end]) => request.url!.endsWith(`/${end}`))?.[1];
    if (answer !== undefined) return answer(response);
    response.writeHead(404).end();
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  from = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server.close();
  rmSync(dir, { recursive: true, force: true });
});

async function fetchTexts(): Promise<{ code: number | null; said: string; complained: string }> {
  const child = spawn(process.execPath, ['--import', 'tsx', 'scripts/fetch-texts.ts', '--from', from, '--to', dir], {
    cwd: root,
  });
  let [said, complained] = ['', ''];
  child.stdout.on('data', (text) => (said += text));
  child.stderr.on('data', (text) => (complained += text));
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve));
  return { code, said, complained };
}

describe.skipIf(!hasSharedData)('public texts (needs ../shared/data)', () => {
  test('those that are fetched are those that were measured, and what is not is named', async () => {
    const { code, said, complained } = await fetchTexts();
    expect(code).toBe(2);
    const fetched = said.match(/^\S+(?= {2}fetched)/gm);
    expect(fetched).toEqual([
      'german-novels/kafka_schloss.txt',
      'english-novels/heldout/Doyle_Hound_1902.txt',
      'english-novels/valid.txt',
      'python-code/statistics.py',
    ]);
    for (const file of fetched!) expect(isText(named(file), readFileSync(join(dir, file)))).toBe(true);
    expect(complained.trim().split('\n')).toHaveLength(all.length - 4);
    expect(complained).toContain(
      'python-code/http_client.py: what python/cpython has is not python-code/http_client.py',
    );
    expect(complained).toMatch(/python-code\/threading.py: \S+ sends more than \d+ bytes \[network\]/);
    expect(complained).toMatch(/wikitext-2\/test.txt: \S+ answers 404 \[network\]/);
    expect(readdirSync(join(dir, 'python-code'))).toEqual(['statistics.py']);
  });

  test('what is there is not fetched again', async () => {
    asked = [];
    const { said } = await fetchTexts();
    expect(said.match(/ {2}here,/g)).toHaveLength(4);
    expect(asked.filter((url) => url.endsWith('statistics.py') || url.endsWith('kafka_schloss.txt'))).toEqual([]);
  });

  test('every text that is measured is in the list, with the digest that it has', () => {
    const lists = ['evaluation-windows', 'calibration-windows'].map((name) =>
      readFileSync(join(root, 'scripts', `${name}.json`), 'utf8'),
    );
    const files = new Set(lists.flatMap((text) => text.match(/[a-z0-9-]+\/[\w/-]+\.(?:txt|py)(?=")/g)!));
    expect([...files].filter((file) => !all.some((text) => text.file === file))).toEqual([]);
    for (const { file } of all.filter(({ file }) => existsSync(join(sharedData, `${file}.xz`))))
      expect(textOf(file).length).toBeGreaterThan(0);
  });
});

test('a text that nobody has fetched is named, with the command that brings it', () => {
  expect(() => textOf('english-novels/none.txt')).toThrow('scripts/texts.json has no english-novels/none.txt');
});
