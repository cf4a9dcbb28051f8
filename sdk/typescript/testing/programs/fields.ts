// Prints which fields, routes and codes this package uses. They come from the tables that it uses itself, which the
// compiler compares with the types of the bodies.

import { HOLDER_CHANGED, KINDS, PATHS, READS, SENDS } from "../../src/wire.js";

const codes = [...Object.keys(KINDS), "HELD", "WAIT_TIMEOUT", HOLDER_CHANGED];
console.log(JSON.stringify({ sends: SENDS, reads: READS, paths: PATHS, codes }, null, 2));
