/**
 * What is read before a model is opened: the answers of the Hub that say where it is, as the library sees them, the
 * manifests of Ollama, and ONNX files of helpers.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { scanOnnx } from '../../engine/sidecar/onnx-scan.ts';
import { chooseFiles } from '../../engine/transformer/hub/choose.ts';
import { checkedAnswer } from '../../engine/transformer/hub/client.ts';
import { listRepository } from '../../engine/transformer/hub/listing.ts';
import { weightsOf } from '../../engine/transformer/hub/ollama.ts';
import { writeOnnxModel } from '../../engine/transformer/onnx-writer.ts';
import { BINARY, JSON_TEXT } from './mutate.ts';

/** What the interface of the Hub answers, as the library sees it, and what is chosen of it. */
async function readListing(dir: string): Promise<void> {
  const answer = async (url: unknown): Promise<Response> =>
    checkedAnswer(readFileSync(join(dir, String(url).includes('/tree/') ? 'tree.json' : 'info.json')), 'the answer');
  const name = { kind: 'hf', repo: 'org/repo', revision: 'main', file: null } as const;
  const { files } = await listRepository(
    { settings: { endpoint: 'https://hub' }, checkOnline: () => {}, answer },
    name,
  );
  chooseFiles('org/repo', [...files.keys()], null);
}

/** A graph that is mostly structure: what lies in weights is not looked at. */
const SIZE_OF = writeOnnxModel({
  name: 'size',
  nodes: [
    { op: 'ConstantOfShape', inputs: ['n'], outputs: ['zeros'] },
    { op: 'Size', inputs: ['zeros'], outputs: ['size'] },
  ],
  initializers: [],
  inputs: [{ name: 'n', type: 'int64', shape: [1] }],
  outputs: [{ name: 'size', type: 'int64', shape: [] }],
});

export const NAMED = {
  onnx: {
    files: async () => ({ 'a.onnx': Buffer.from(SIZE_OF) }),
    damage: { 'a.onnx': BINARY },
    read: (dir: string) => scanOnnx('a.onnx', readFileSync(join(dir, 'a.onnx'))),
  },
  ollama: {
    files: async () => ({
      manifest: Buffer.from(
        JSON.stringify({
          schemaVersion: 2,
          layers: [
            { mediaType: 'application/vnd.ollama.image.model', digest: `sha256:${'ab'.repeat(32)}`, size: 1000 },
            { mediaType: 'application/vnd.ollama.image.params', digest: `sha256:${'cd'.repeat(32)}`, size: 10 },
          ],
        }),
      ),
    }),
    damage: { manifest: JSON_TEXT },
    read: (dir: string) => weightsOf(readFileSync(join(dir, 'manifest')), 'manifest'),
  },
  hub: {
    files: async () => ({
      'info.json': Buffer.from(
        JSON.stringify({ _id: '1', id: 'org/repo', sha: 'ab'.repeat(20), lastModified: '2026-01-01' }),
      ),
      'tree.json': Buffer.from(
        JSON.stringify([
          { type: 'directory', path: 'folder', size: 0, oid: '0'.repeat(40) },
          { type: 'file', path: 'README.md', size: 5, oid: '12'.repeat(20) },
          {
            type: 'file',
            path: 'm-Q8_0.gguf',
            size: 1000,
            oid: '1'.repeat(40),
            lfs: { oid: 'ab'.repeat(32), size: 1000 },
          },
        ]),
      ),
    }),
    damage: { 'info.json': JSON_TEXT, 'tree.json': JSON_TEXT },
    read: (dir: string) => readListing(dir),
  },
};
