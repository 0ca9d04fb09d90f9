#!/usr/bin/env node
/**
 * The command line and its exit codes: 0 for success, 1 for a fault of ours, 2 for one in the request, a file or the
 * machine, 3 for an empty list where that was asked for, 130 if interrupted.
 */
import { CommanderError } from 'commander';
import { reportFailure } from './failure.ts';
import { guardOutput } from './output.ts';
import { program } from './program.ts';

guardOutput();
try {
  await program().parseAsync();
} catch (error) {
  if (error instanceof CommanderError) process.exitCode = error.exitCode === 0 ? 0 : 2;
  else process.exitCode = reportFailure(error, process.argv.includes('--json'));
}
