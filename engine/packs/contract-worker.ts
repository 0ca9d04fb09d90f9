/** The thread in which the contract of a module is tried, so that it can be ended. */
import { parentPort } from 'node:worker_threads';
import { ThreadServer } from '../../native/index.ts';
import { tryContract } from './contract-cases.ts';
import type { PackManifest } from './manifest.ts';

const table = {
  test: ({
    instrumented,
    manifest,
    seeds,
  }: {
    readonly instrumented: Uint8Array;
    readonly manifest: PackManifest;
    readonly seeds: readonly number[];
  }) => tryContract(instrumented, manifest, seeds),
};
export type ContractCalls = typeof table;

new ThreadServer(parentPort).serve(table);
