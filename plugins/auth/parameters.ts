/**
 * argon2id with 19,456 KiB, two passes, one lane: the second of the equal choices in OWASP's Password Storage Cheat
 * Sheet. `type: 2` is argon2id, written out so that who needs the numbers need not load the library.
 */
export const argon2id = { type: 2, memoryCost: 19_456, timeCost: 2, parallelism: 1 } as const

/** A PHC string with the same costs that no password matches: what an unknown account is held against. */
export const nobody = `$argon2id$v=19$m=${argon2id.memoryCost},t=${argon2id.timeCost},p=${argon2id.parallelism}$${'A'.repeat(22)}$${'A'.repeat(43)}`
