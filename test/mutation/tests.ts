/** Which tests are asked whether a change of a file shows: few, because each of them runs for every change. */
export const TESTS: Readonly<Record<string, readonly string[]>> = {
  'witness/note.ts': ['unit/witness/note'],
  'witness/checkpoint.ts': ['unit/witness/checkpoints'],
  'witness/remove.ts': ['unit/witness/writer', 'unit/witness/segment'],
  'witness/recover.ts': ['unit/witness/writer'],
  'witness/segment.ts': ['unit/witness/damage', 'unit/witness/segment'],
  'witness/against.ts': ['unit/witness/damage', 'unit/witness/checkpoint'],
  'witness/proof.ts': ['unit/witness/damage', 'unit/witness/checkpoint', 'unit/witness/disclosure'],
  'witness/commitment.ts': ['unit/witness/disclosure'],
  'witness/encryption.ts': ['unit/witness/encryption', 'unit/witness/disclosure', 'unit/witness/log'],
  'witness/chain.ts': ['golden/log', 'unit/witness/damage'],
  'witness/tree.ts': ['unit/witness/segment', 'unit/witness/damage'],
  'witness/crc32c.ts': ['unit/witness/damage', 'golden/log'],
  'witness/body.ts': ['unit/witness/body'],
  'witness/entry.ts': ['unit/witness/damage', 'golden/log'],
  'witness/scan.ts': ['unit/witness/damage', 'unit/witness/segment', 'unit/witness/writer'],
  'witness/run.ts': ['unit/witness/run', 'unit/witness/damage', 'unit/witness/segment'],
  'witness/forms.ts': ['unit/native/entries'],
  'native/entries.ts': [
    'unit/native/entries',
    'unit/native/encrypted',
    'unit/native/spell',
    'unit/native/no-binary',
    'unit/witness/damage',
  ],
  'witness/pack.ts': ['unit/witness/pack'],
  'witness/walk.ts': ['unit/witness/damage', 'unit/witness/segment', 'unit/witness/shared'],
  'witness/verify.ts': [
    'unit/native/encrypted',
    'unit/witness/damage',
    'unit/witness/checkpoint',
    'unit/witness/segment',
    'unit/witness/senseless',
  ],
  'witness/batch.ts': ['unit/witness/damage', 'unit/witness/log', 'unit/witness/encryption'],
  'witness/batch-queue.ts': ['unit/witness/batch-queue', 'unit/witness/writer'],
  'witness/batch-files.ts': ['unit/witness/writer'],
  'witness/writer.ts': ['unit/witness/writer', 'unit/witness/faults', 'unit/witness/log'],
  'memory/threshold-file.ts': ['unit/memory/threshold-rules'],
  'memory/threshold-schema.ts': ['unit/memory/threshold-rules', 'unit/memory/threshold-file'],
};

/**
 * Together they take every branch of these files: those above, and what tries disks that refuse, many writers and
 * changes at random.
 */
export const ALL_TESTS = [
  ...new Set([
    ...Object.values(TESTS).flat(),
    ...[
      'unit/witness/faults',
      'unit/witness/full-disk',
      'unit/witness/anchor',
      'unit/memory/signature',
      'property/log',
      'property/tampers',
    ],
  ]),
];
