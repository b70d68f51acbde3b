/** Known to both sides of `login-storm`, so that it can make tokens the server has not seen. */
export const jwtSecret = 'the secret of a bench, long enough to sign'
/** Known to both sides of `metered`, so that it can make a tenant. */
export const adminSecret = 'the admin secret of a bench'
