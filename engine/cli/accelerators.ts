/**
 * Which graphics and neural processors a machine has, by what the system says of them in files: nothing is loaded and
 * no program is run. None of them is used; who has one should know that.
 */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { basename, join } from 'node:path';

export interface Accelerator {
  readonly kind: 'gpu' | 'npu';
  /** Who made it and what it is, as far as the system says. */
  readonly name: string;
  /** Where the system has it: the slot of its bus, or a file. */
  readonly place: string;
  /** null: none has taken it, or the system does not say. */
  readonly driver: string | null;
}

export interface Machine {
  /** The root of the file system; on Windows the default is that of the drive in use. */
  readonly root?: string;
  readonly platform?: NodeJS.Platform;
  readonly arch?: string;
  /** What the system calls the processor, which on macOS names the whole chip. */
  readonly processor?: string;
}

/** What this machine has; what cannot be read is not there. */
export function accelerators({
  platform = process.platform,
  arch = process.arch,
  root = '/',
  processor = '',
}: Machine = {}): Accelerator[] {
  switch (platform) {
    case 'darwin':
      return ofMac(arch, processor);
    case 'win32':
      return ofWindows(root);
    default:
      return ofLinux(root);
  }
}

/** Names of vendors by their numbers on PCI. */
const VENDORS: Readonly<Record<string, string>> = {
  '0x10de': 'NVIDIA',
  '0x1002': 'AMD',
  '0x1022': 'AMD',
  '0x8086': 'Intel',
  '0x1e60': 'Hailo',
  '0x1ac1': 'Google',
  '0x1da3': 'Habana',
  '0x1e52': 'Tenstorrent',
  '0x17cb': 'Qualcomm',
  '0x1d0f': 'Amazon',
};
/** Vendors whose devices of the class of displays compute nothing: those of emulators and of management boards. */
const DISPLAYS_ONLY: ReadonlySet<string> = new Set([
  '0x1234',
  '0x1013',
  '0x1b36',
  '0x1af4',
  '0x15ad',
  '0x1414',
  '0x80ee',
  '0x1a03',
  '0x102b',
]);
/** The first byte of a PCI class: displays, and processing accelerators. */
const PCI_KINDS: Readonly<Record<string, Accelerator['kind']>> = { '0x03': 'gpu', '0x12': 'npu' };
/** Texts of the system are short; whatever is longer is cut. */
const NAME_CHARACTERS_MAX = 80;

function ofLinux(root: string): Accelerator[] {
  const found = new Map<string, Accelerator>();
  for (const slot of names(root, 'sys/bus/pci/devices')) {
    const device = ofPci(join(root, 'sys/bus/pci/devices', slot), slot);
    if (device !== null) found.set(slot, device);
  }
  for (const slot of names(root, 'proc/driver/nvidia/gpus')) {
    const model = /^Model:\s*(.+)$/m.exec(text(root, 'proc/driver/nvidia/gpus', slot, 'information'))?.[1];
    const name = model === undefined ? 'NVIDIA' : cut(model);
    found.set(slot, { kind: 'gpu', name, place: slot, driver: 'nvidia' });
  }
  for (const [folder, card, kind] of [
    ['sys/class/drm', /^card\d+$/, 'gpu'],
    ['sys/class/accel', /^accel\d+$/, 'npu'],
  ] as const) {
    for (const name of names(root, folder).filter((one) => card.test(one)))
      ofClass(root, join(folder, name), kind, found);
  }
  // In a container there may be device files and nothing else.
  const dev = names(root, 'dev');
  if (![...found.values()].some(({ name }) => name.startsWith('NVIDIA'))) {
    for (const name of dev.filter((one) => /^nvidia\d+$/.test(one)))
      found.set(name, { kind: 'gpu', name: 'NVIDIA', place: `/dev/${name}`, driver: 'nvidia' });
  }
  if (dev.includes('dxg'))
    found.set('dxg', {
      kind: 'gpu',
      name: 'of the Windows that this Linux is in',
      place: '/dev/dxg',
      driver: 'dxgkrnl',
    });
  return [...found.values()];
}

/** What a PCI device is; null: no accelerator. */
function ofPci(folder: string, slot: string): Accelerator | null {
  const kind = PCI_KINDS[text(folder, 'class').slice(0, 4)];
  const vendor = text(folder, 'vendor');
  if (kind === undefined || (kind === 'gpu' && DISPLAYS_ONLY.has(vendor))) return null;
  const said = text(folder, 'product_name');
  const name = said === '' ? `${VENDORS[vendor] ?? `vendor ${vendor}`} ${text(folder, 'device')}` : said;
  return { kind, name: cut(name), place: slot, driver: link(folder, 'driver') };
}

/** A device that the system lists by what it does: one of PCI, or a part of a chip, which says what it goes with. */
function ofClass(root: string, path: string, kind: Accelerator['kind'], found: Map<string, Accelerator>): void {
  const place = link(root, path, 'device');
  if (place === null) return;
  const known = found.get(place);
  if (known !== undefined) {
    if (kind === 'npu') found.set(place, { ...known, kind });
    return;
  }
  const uevent = text(root, path, 'device/uevent');
  const value = (key: string): string | null => new RegExp(`^${key}=(.+)$`, 'm').exec(uevent)?.[1] ?? null;
  const isPci = value('PCI_ID') !== null;
  if (isPci && kind === 'gpu') return; // It was looked at above, and is a display.
  const driver = link(root, path, 'device/driver') ?? value('DRIVER');
  found.set(place, { kind, name: cut(value('OF_COMPATIBLE_0') ?? driver ?? place), place, driver });
}

/** Every chip of Apple has both; which GPU a Mac with an Intel processor has, only programs tell. */
function ofMac(arch: string, processor: string): Accelerator[] {
  if (arch !== 'arm64') return [];
  const chip = cut(processor === '' ? 'Apple' : processor);
  return [
    { kind: 'gpu', name: `${chip} GPU`, place: 'chip', driver: 'Metal' },
    { kind: 'npu', name: `${chip} Neural Engine`, place: 'chip', driver: 'Core ML' },
  ];
}

/** Libraries that the driver of a vendor puts beside those of the system. */
const WINDOWS_DRIVERS: readonly (readonly [file: string, kind: Accelerator['kind'], name: string])[] = [
  ['nvcuda.dll', 'gpu', 'NVIDIA'],
  ['amdxc64.dll', 'gpu', 'AMD'],
  ['ze_intel_gpu64.dll', 'gpu', 'Intel'],
  ['ze_intel_npu.dll', 'npu', 'Intel'],
];

function ofWindows(root: string): Accelerator[] {
  const folder = join('Windows', 'System32');
  const here = new Set(names(root, folder).map((name) => name.toLowerCase()));
  return WINDOWS_DRIVERS.filter(([file]) => here.has(file)).map(([driver, kind, name]) => ({
    kind,
    name,
    place: join(root, folder, driver),
    driver,
  }));
}

const cut = (name: string): string => name.trim().slice(0, NAME_CHARACTERS_MAX);

function names(root: string, folder: string): string[] {
  try {
    return readdirSync(join(root, folder)).sort();
  } catch {
    return [];
  }
}

function text(...path: string[]): string {
  try {
    return readFileSync(join(...path), 'utf8').trim();
  } catch {
    return '';
  }
}

/** What a symbolic link points to, without folders. */
function link(...path: string[]): string | null {
  try {
    return basename(readlinkSync(join(...path)));
  } catch {
    return null;
  }
}
