/**
 * Test files that share a process with others, so that what they all import is loaded once: those of rooms, of which a
 * hundred take less than their imports.
 */
export const TOGETHER = ['test/unit/**/*.test.ts', 'test/golden/**/*.test.ts'];

/**
 * Files with a process of their own: all other folders, and those of these folders that look at their whole process,
 * change it, or share a folder of commands.
 */
export const APART = [
  'test/*.test.ts',
  'test/!(unit|golden)/**/*.test.ts',
  // The folder in which its commands run is that of test/unit/engine/cli/command.ts, and is removed at the end.
  'test/unit/engine/cli/*.test.ts',
  'test/unit/engine/serve/command.test.ts',
  'test/unit/engine/session/lookup.test.ts',
  'test/unit/engine/state/*.test.ts',
  'test/unit/engine/transformer/grammar/answers.test.ts',
  // They count threads, files or memory of their process, or end it.
  'test/unit/engine/session/cache.test.ts',
  'test/unit/engine/thread/*.test.ts',
  'test/unit/engine/transformer/onnx-writer.test.ts',
  'test/unit/native/threads.test.ts',
  'test/unit/native/worker-end.test.ts',
  'test/unit/policy/scan.test.ts',
  // They put something else in the place of a module, or stand in the folder where they are to write.
  'test/unit/engine/evaluate.test.ts',
  'test/unit/engine/trace/record.test.ts',
  'test/unit/memory/open-index.test.ts',
];
