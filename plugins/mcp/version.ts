/** Of the package; a test holds it to package.json, which is not there once a plugin has been bundled. */
export const version = '0.1.0'
