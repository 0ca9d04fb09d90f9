/**
 * palimpsest-lab/register: `node --import palimpsest-lab/register` has a program know the methods of the lab and
 * compute its formats, as in `--cache-type-k turbo3`. `palimpsest evaluate` needs no such word.
 */
import { registerMethods, serveYardsticks } from 'palimpsest/lab';
import { formatsModule, methods } from './index.ts';

serveYardsticks(formatsModule);
registerMethods(methods);
