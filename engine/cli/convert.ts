/** `palimpsest convert FOLDER FILE` makes one GGUF file of a Hugging Face folder. */
import { bytesText, jsonText, plural, printable } from '../../native/index.ts';
import { type Converted, convertModel } from '../transformer/convert/convert.ts';
import type { WrittenType } from '../transformer/convert/quantize.ts';
import { interruptible } from './interrupt.ts';
import { cacheDirOf, flag, type Settings, text } from './options.ts';
import { type ProgressKind, ProgressLine } from './progress.ts';

const MIB = 2 ** 20;

export async function convertCommand(folder: string, file: string, settings: Settings): Promise<void> {
  await interruptible(async (signal) => {
    const converted = await converting(folder, file, settings, signal);
    for (const remark of converted.remarks) process.stderr.write(`Note: ${printable(remark)}.\n`);
    process.stdout.write(`${flag(settings, 'json') ? jsonText(converted) : plain(converted)}\n`);
  });
}

async function converting(folder: string, file: string, settings: Settings, signal: AbortSignal): Promise<Converted> {
  const line = new ProgressLine((text(settings, 'progress') ?? 'bar') as ProgressKind);
  try {
    return await convertModel(folder, file, {
      type: text(settings, 'type') as WrittenType | undefined,
      cacheDir: cacheDirOf(settings),
      onProgress: (progress) => line.load(progress),
      onWritten: (bytes, of) => line.share('writing', Math.floor(bytes / MIB), Math.ceil(of / MIB), 'MiB'),
      signal,
    });
  } finally {
    line.erase();
  }
}

function plain({ path, bytes, types }: Converted): string {
  const counts = Object.entries(types);
  const tensors = counts.reduce((sum, [, count]) => sum + count, 0);
  const each = counts.map(([name, count]) => `${count} ${name}`).join(', ');
  return `${printable(path)}: ${bytesText(bytes)}, ${plural(tensors, 'tensor')} (${each})`;
}
