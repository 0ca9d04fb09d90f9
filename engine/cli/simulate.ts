/** `palimpsest simulate` runs caches over recorded runs, without the model. */
import { basename } from 'node:path';
import { loadThresholdFile } from '../../memory/index.ts';
import { type Column, columnsOf, jsonText, KvError, legend, percent, printable, table } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { findSimulated } from '../evaluate/find-caches.ts';
import { logDir } from '../state/folder.ts';
import { measuredInLog } from '../trace/logged.ts';
import { Trace } from '../trace/reader.ts';
import { Simulator } from '../trace/simulate.ts';
import type { Simulated } from '../trace/simulated.ts';
import { cachesOf } from './evaluate.ts';
import { interruptible } from './interrupt.ts';
import { flag, type Settings, stateDirOf, text, thresholdsPathOf } from './options.ts';

interface Row extends Simulated {
  readonly trace: string;
}

export async function simulate(settings: Settings): Promise<void> {
  const paths = settings['trace'] as string[] | undefined;
  if (paths === undefined || paths.length === 0)
    throw new KvError('bad-argument', 'no trace was given', {
      hint: '--trace FILE; record one with: palimpsest trace record',
    });
  const specs = await findSimulated(cachesOf(settings));
  const thresholdsPath = thresholdsPathOf(settings);
  const session = text(settings, 'session');
  const state = stateDirOf(settings);
  const rows: Row[] = [];
  await interruptible(async (signal) => {
    for (const path of paths) {
      const trace = Trace.open(path);
      try {
        const { model, shape } = trace.header;
        const thresholds =
          thresholdsPath === undefined
            ? defaultThresholds(shape.layers)
            : await loadThresholdFile(thresholdsPath, { modelDigest: model.digest, shape });
        const logged = session === undefined ? [] : [measuredInLog(logDir(state), session, trace)];
        const simulator = new Simulator(trace, thresholds, logged);
        for (const simulated of simulator.run(specs)) {
          rows.push({ ...simulated, trace: basename(path) });
          // Lets Ctrl-C be noticed.
          await new Promise((resolve) => setImmediate(resolve));
          if (signal.aborted) throw new KvError('aborted', 'aborted between two caches');
        }
      } finally {
        trace.close();
      }
    }
  });
  process.stdout.write(`${flag(settings, 'json') ? jsonText({ rows }) : simulatedTable(rows)}\n`);
}

const orDash = (value: number | null): string => (value === null ? '–' : value.toPrecision(3));

const COLUMNS: readonly Column<Row>[] = [
  { title: 'trace', align: 'left', least: 8, value: (row) => printable(row.trace) },
  { title: 'cache', align: 'left', least: 8, value: (row) => row.cache },
  {
    title: 'peak',
    value: (row) => percent(row.bytesPeak / row.bytesF16),
    means: 'most bytes, as a share of plain f16',
  },
  {
    title: 'end',
    value: (row) => percent(row.bytes.at(-1)! / row.bytesF16),
    means: 'bytes at the end of the run',
    optional: true,
  },
  {
    title: 'ε',
    value: (row) => row.epsilon.toPrecision(3),
    means: 'mean error of attention for later queries, as a share of the residual stream',
  },
  {
    title: 'ε KLD',
    value: (row) => row.errorKld.toPrecision(3),
    means: 'divergence by the error law from these errors',
  },
  {
    title: 'predicted',
    value: (row) => orDash(row.predictedKld),
    means: 'divergence that the policy predicted from its trials',
  },
  {
    title: 'measured',
    value: (row) => orDash(row.meanKld),
    means: 'divergence of a real run, where the trace or the session has one',
  },
  {
    title: 'dropped',
    value: (row) => percent(row.droppedMass),
    means: 'share of the attention of later queries that fell on tokens that were dropped',
  },
  { title: 'moves', value: (row) => String(row.decisions.length), means: 'moves decided', optional: true },
  { title: 'seconds', value: (row) => row.seconds.toFixed(1), means: 'that the simulation took', optional: true },
];

function simulatedTable(rows: readonly Row[]): string {
  const columns = columnsOf(process.stdout);
  return `${table(COLUMNS, rows, columns)}\n\n${legend(COLUMNS, columns)}`;
}
