/** Where the four models whose logits were computed independently lie, or null for one that is not on this machine. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { fetchedPath } from '../../engine/transformer/fetch.ts';

const root = join(import.meta.dirname, '..', '..');
/** Test data beside the repository. */
const data = join(root, '..', 'shared', 'data');

const present = (path: string): string | null => (existsSync(path) ? path : null);

export const GOLDEN_MODELS: Readonly<Record<string, string | null>> = {
  reference: join(root, 'models', 'reference'),
  'tinystories-656k': present(join(data, 'tinystories656k')),
  stories260k: present(join(data, 'stories260k', 'stories260K.bin')),
  smollm2: present(fetchedPath('smollm2-135m', join(root, '.cache'))),
};
