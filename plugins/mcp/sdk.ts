/** Loaded when the first client comes: it takes a third of a second and 27 MB. */
export const loadSdk = () => import('@modelcontextprotocol/server')

export type Sdk = Awaited<ReturnType<typeof loadSdk>>
