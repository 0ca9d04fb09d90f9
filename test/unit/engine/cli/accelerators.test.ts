// Accelerators of machines that are folders: what their files say must be found, and nothing else. Of this machine the
// command must say what the system lists by another way.
import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { accelerators } from '../../../../engine/cli/accelerators.ts';
import { answered, lastLine } from './command.ts';

const roots: string[] = [];
afterEach(() => {
  for (const root of roots.splice(0)) rmSync(root, { recursive: true, force: true });
});

/** Files by path; a value that begins with -> is a link. */
function machine(files: Readonly<Record<string, string>>): string {
  const root = mkdtempSync(join(tmpdir(), 'palimpsest-machine-'));
  roots.push(root);
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    if (content.startsWith('->')) symlinkSync(content.slice(2), join(root, path));
    else writeFileSync(join(root, path), content);
  }
  return root;
}

const pci = (slot: string, { driver, ...files }: Readonly<Record<string, string>>): Record<string, string> => {
  const folder = `sys/bus/pci/devices/${slot}`;
  return {
    ...Object.fromEntries(Object.entries(files).map(([name, content]) => [`${folder}/${name}`, `${content}\n`])),
    ...(driver !== undefined && { [`${folder}/driver`]: `->../../../bus/pci/drivers/${driver}` }),
  };
};
const linux = (files: Readonly<Record<string, string>>) =>
  accelerators({ root: machine(files), platform: 'linux', arch: 'x64' });

describe('a machine with Linux', () => {
  it('has the cards on its bus, by the names that their drivers give them', () => {
    const slot = '0000:17:00.0';
    expect(
      linux({
        ...pci('0000:00:02.0', { class: '0x030000', vendor: '0x8086', device: '0x46a6', driver: 'i915' }),
        ...pci(slot, { class: '0x030200', vendor: '0x10de', device: '0x2335', driver: 'nvidia' }),
        ...pci('0000:65:00.0', { class: '0x038000', vendor: '0x1002', device: '0x74a1', product_name: 'MI300X' }),
        ...pci('0000:00:1f.3', { class: '0x040380', vendor: '0x8086', device: '0x51c8', driver: 'snd' }),
        [`proc/driver/nvidia/gpus/${slot}/information`]: 'Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\n',
        'dev/nvidia0': '',
      }),
    ).toEqual([
      { kind: 'gpu', name: 'Intel 0x46a6', place: '0000:00:02.0', driver: 'i915' },
      { kind: 'gpu', name: 'NVIDIA H200', place: slot, driver: 'nvidia' },
      { kind: 'gpu', name: 'MI300X', place: '0000:65:00.0', driver: null },
    ]);
  });

  it('has neural processors, on the bus and as a part of the chip', () => {
    const soc = 'sys/devices/platform/fdab0000.npu';
    expect(
      linux({
        ...pci('0000:00:0b.0', { class: '0x120000', vendor: '0x8086', device: '0x7d1d', driver: 'intel_vpu' }),
        ...pci('0000:c5:00.1', { class: '0x118000', vendor: '0x1022', device: '0x1502', driver: 'amdxdna' }),
        'sys/class/accel/accel0/device': '->../../../bus/pci/devices/0000:00:0b.0',
        'sys/class/accel/accel1/device': '->../../../devices/platform/fdab0000.npu',
        'sys/class/accel/accel2/device': '->../../../bus/pci/devices/0000:c5:00.1',
        [`${soc}/uevent`]: 'DRIVER=rocket\nOF_COMPATIBLE_0=rockchip,rk3588-rknn-core\n',
        'sys/bus/pci/devices/0000:c5:00.1/uevent': 'DRIVER=amdxdna\nPCI_ID=1022:1502\n',
      }),
    ).toEqual([
      { kind: 'npu', name: 'Intel 0x7d1d', place: '0000:00:0b.0', driver: 'intel_vpu' },
      { kind: 'npu', name: 'rockchip,rk3588-rknn-core', place: 'fdab0000.npu', driver: 'rocket' },
      { kind: 'npu', name: 'amdxdna', place: '0000:c5:00.1', driver: 'amdxdna' },
    ]);
  });

  it('has none where a display of an emulator is all, or nothing can be read', () => {
    const slot = '0000:00:01.0';
    const display = pci(slot, { class: '0x030000', vendor: '0x1234', device: '0x1111', uevent: 'PCI_ID=1234:1111' });
    const card = { 'sys/class/drm/card0/device': `->../../../bus/pci/devices/${slot}` };
    expect(linux({ ...display, ...card })).toEqual([]);
    expect(linux({})).toEqual([]);
    expect(accelerators({ root: join(tmpdir(), 'no-such-folder'), platform: 'linux' })).toEqual([]);
  });

  it('has what a container is given as device files alone', () => {
    const names = linux({ 'dev/nvidia0': '', 'dev/nvidia1': '', 'dev/nvidiactl': '', 'dev/null': '' });
    expect(names.map(({ place }) => place)).toEqual(['/dev/nvidia0', '/dev/nvidia1']);
    expect(linux({ 'dev/dxg': '' })).toMatchObject([{ kind: 'gpu', place: '/dev/dxg' }]);
  });
});

describe('other systems', () => {
  it('name the chip of a Mac, or the drivers of Windows', () => {
    const mac = accelerators({ platform: 'darwin', arch: 'arm64', processor: 'Apple M2 Pro' });
    expect(mac.map(({ kind, name }) => [kind, name])).toEqual([
      ['gpu', 'Apple M2 Pro GPU'],
      ['npu', 'Apple M2 Pro Neural Engine'],
    ]);
    expect(accelerators({ platform: 'darwin', arch: 'x64', processor: 'Intel(R) Core(TM) i7' })).toEqual([]);
    const root = machine({ 'Windows/System32/nvcuda.dll': '', 'Windows/System32/kernel32.dll': '' });
    expect(accelerators({ root, platform: 'win32' })).toMatchObject([{ kind: 'gpu', name: 'NVIDIA' }]);
  });
});

describe('this machine', () => {
  it('is told what it has, and that none of it is used', async () => {
    const [facts, plain] = [lastLine((await answered(['doctor', '--json'])).out), (await answered(['doctor'])).out];
    const found = facts['acceleratorsFound'] as { place: string }[];
    expect(facts['acceleratorEffective']).toBeNull();
    expect(plain).toMatch(/^accelerator .*(\n {12}.*)*everything is computed on the processor$/m);
    for (const { place } of found) expect(plain).toContain(place);
  });

  it.skipIf(process.platform !== 'linux')('has one where it has a device file of one (needs Linux)', () => {
    const files = readdirSync('/dev').filter((name) => /^(nvidia\d+|kfd|dxg|accel)$/.test(name));
    if (files.length > 0) expect(accelerators()).not.toEqual([]);
  });
});
