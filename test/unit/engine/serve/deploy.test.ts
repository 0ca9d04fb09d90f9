// The files of docs/deploy are sound, and name flags, variables, commands and metrics that there are.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { environmentName, SETTINGS, type SettingName } from '../../../../engine/cli/settings.ts';
import { type Served, withServer } from '../openai/served.ts';
import { parseExposition } from './exposition.ts';

const root = join(import.meta.dirname, '..', '..', '..', '..');
const fileIn = (name: string): string => readFileSync(join(root, 'docs', name), 'utf8');

let served: Served;
withServer((one) => {
  served = one;
});

test('the dashboard names metrics that a server has', async () => {
  const response = await fetch(`${served.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content: 'Wax?' }], max_tokens: 4 }),
  });
  expect(response.status).toBe(200);
  // Decisions are told once there was one.
  const session = await served.engine.openSession({ kvBudget: '30%', tokensExpected: 700 });
  await session.generate('It was a bright cold day. '.repeat(100), { maxTokens: 2 }).result;
  await session.close();
  const text = await (await fetch(`${served.url}/metrics`)).text();
  const known = parseExposition(text).map(({ name }) => name);
  const { panels } = JSON.parse(fileIn('deploy/dashboard.json')) as { panels: { targets: { expr: string }[] }[] };
  const named = panels.flatMap(({ targets }) => targets.flatMap(({ expr }) => expr.match(/palimpsest_\w+/g) ?? []));
  expect(named.length).toBeGreaterThan(panels.length);
  for (const name of named) expect(known, name).toContain(name.replace(/_bucket$/, ''));
});

interface Service {
  readonly image: string;
  readonly command?: readonly string[];
  readonly environment?: Readonly<Record<string, string>>;
  readonly healthcheck?: { readonly test: readonly string[] };
  readonly volumes?: readonly string[];
  readonly secrets?: readonly string[];
  readonly configs?: readonly { readonly source: string }[];
  readonly depends_on?: readonly string[] | Readonly<Record<string, unknown>>;
}
interface Compose {
  readonly services: Readonly<Record<string, Service>>;
  readonly volumes: Readonly<Record<string, unknown>>;
  readonly secrets: Readonly<Record<string, { readonly file: string }>>;
  readonly configs: Readonly<Record<string, { readonly content?: string; readonly file?: string }>>;
}
const compose = parse(fileIn('deploy/compose.yaml')) as Compose;

test('the compose file names what it has: volumes, secrets, configs, services, and images with a version', () => {
  const services = Object.entries(compose.services);
  expect(services.map(([name]) => name)).toEqual(['palimpsest', 'postgres', 'qdrant', 'prometheus', 'grafana']);
  for (const [name, service] of services) {
    expect(service.image, name).toMatch(/:v?\d+\.\d+/);
    expect(service.healthcheck?.test[0], name).toBe('CMD');
    for (const volume of service.volumes ?? []) expect(Object.keys(compose.volumes)).toContain(volume.split(':')[0]);
    for (const secret of service.secrets ?? []) expect(Object.keys(compose.secrets)).toContain(secret);
    for (const { source } of service.configs ?? []) expect(Object.keys(compose.configs)).toContain(source);
    const needed = service.depends_on ?? [];
    for (const other of Array.isArray(needed) ? needed : Object.keys(needed))
      expect(Object.keys(compose.services)).toContain(other);
  }
  // Files that are parts of it are YAML as well, or lie beside it.
  for (const { content, file } of Object.values(compose.configs))
    if (content === undefined) expect(fileIn(join('deploy', file!))).not.toBe('');
    else expect(parse(content)).toBeTypeOf('object');
  const { scrape_configs: jobs } = parse(compose.configs['prometheus']!.content!) as {
    scrape_configs: { static_configs: { targets: string[] }[]; authorization: { credentials_file: string } }[];
  };
  expect(jobs[0]!.static_configs[0]!.targets).toEqual(['palimpsest:9470']);
  const tokenFile = compose.services['palimpsest']!.command!.find((flag) => flag.startsWith('--token-file='));
  expect(tokenFile).toBe(`--token-file=${jobs[0]!.authorization.credentials_file}`);
});

test('manifests and the file of Prometheus are YAML', () => {
  const documents = parseAllDocuments(fileIn('deploy/kubernetes.yaml'));
  expect(documents.map((document) => document.errors)).toEqual([[], []]);
  expect(documents.map((document) => (document.toJS() as { kind: string }).kind)).toEqual(['Deployment', 'Service']);
  expect(parse(fileIn('deploy/prometheus.yml'))).toHaveProperty('scrape_configs');
});

test('variables are those that there are', () => {
  const known = [...(Object.keys(SETTINGS) as SettingName[]).map(environmentName), 'PALIMPSEST_CACHE'];
  for (const name of ['palimpsest.service', 'kubernetes.yaml', 'compose.yaml', 'Containerfile'])
    for (const variable of fileIn(`deploy/${name}`).match(/PALIMPSEST_[A-Z_]+/g) ?? [])
      expect(known, `${variable} of ${name}`).toContain(variable);
});

test('the image is made by the commands of README, with the versions of packages that this one takes', () => {
  const file = fileIn('deploy/Containerfile');
  const readme = readFileSync(join(root, 'README.md'), 'utf8');
  const commands = readme.match(/(?<=^ {4})npm (run prebuilds|pack) .*/gm)!;
  expect(commands).toHaveLength(2);
  for (const command of commands) expect(file).toContain(command.replace('../my-project', '/app'));
  expect(file).toContain('npm install ./palimpsest*.tgz');
  const { peerDependencies, version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    version: string;
    peerDependencies: Readonly<Record<string, string>>;
  };
  const installed = [...file.matchAll(/ ((?:@[\w-]+\/)?[\w-]+)@(\d[\d.]*)/g)];
  expect(installed.length).toBeGreaterThan(1);
  for (const [, name, exact] of installed) expect(peerDependencies[name!], name).toBe(exact);
  expect(compose.services['palimpsest']!.image).toBe(`palimpsest:${version}`);
});

test('the health check of the image passes while a server answers, and fails when it does not', async () => {
  const file = fileIn('deploy/Containerfile').replaceAll('\\\n', '');
  const words = JSON.parse(/^HEALTHCHECK .*? CMD (\[.*\])$/m.exec(file)![1]!) as string[];
  expect(compose.services['palimpsest']!.healthcheck!.test).toEqual(['CMD', ...words]);
  const exitOf = async (port: string): Promise<unknown> => {
    const [, ...args] = words.map((word) => word.replace('9470', port));
    return (await once(spawn(process.execPath, args, { stdio: 'ignore' }), 'exit'))[0];
  };
  expect([await exitOf(new URL(served.url).port), await exitOf('1')]).toEqual([0, 1]);
});

test('the unit, the manifests and the files for containers name flags that there are', () => {
  const options = fileIn('cli.md') + fileIn('options.md');
  for (const name of ['palimpsest.service', 'kubernetes.yaml']) {
    const flags = fileIn(`deploy/${name}`).match(/(?<=\s)--[a-z][a-z-]*/g) ?? [];
    expect(flags.length).toBeGreaterThan(2);
    for (const flag of flags) expect(options, `${flag} of ${name}`).toMatch(new RegExp(`${flag}\\b`));
  }
  const own = JSON.parse(/^CMD (\[.*\])$/m.exec(fileIn('deploy/Containerfile'))![1]!) as string[];
  for (const [command, ...flags] of [own, compose.services['palimpsest']!.command!]) {
    expect(command).toBe('serve');
    for (const flag of flags) expect(options, flag).toMatch(new RegExp(`${flag.split('=')[0]}\\b`));
  }
});
