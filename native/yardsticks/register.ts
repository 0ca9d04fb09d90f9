/**
 * Registers the yardsticks in a checkout, before anything else of the package is imported: `node --import tsx --import
 * ./native/yardsticks/register.ts …`, or as the first import of a module. Their binary is built by `npm run
 * build:native -- --yardsticks`. In an installed package palimpsest-lab brings them (lab/register.ts).
 */
import { serveYardsticks } from '../formats/registry.ts';

serveYardsticks();
