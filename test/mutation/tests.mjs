/** @type {Record<string, string[]>} */
export const TESTS = {
  'witness/note.ts': ['unit/witness/note'],
  'witness/checkpoint.ts': ['unit/witness/checkpoints'],
  'memory/threshold-file.ts': ['unit/memory/threshold-file', 'unit/memory/signature', 'unit/memory/threshold-rules'],
};
