// A whole server, its program given as data: no program.toml.
import { definePlugin, startKernel } from 'heartwood'

const hello = definePlugin({
  name: 'hello',
  inject: ['http'],
  apply(ctx) {
    ctx.contribute('http.routes', {
      method: 'GET',
      path: '/hello/{name}',
      operationId: 'hello',
      summary: 'Greets',
      replies: { 200: {} },
      handle: ({ params }) => ({ body: { text: `hello ${params.name}` } })
    })
  }
})

const program = await startKernel({
  program: {
    entries: [
      { plugin: 'store', config: { path: process.env.DATA ?? './data' } },
      { plugin: 'workers' },
      { plugin: 'http', config: { port: Number(process.env.PORT ?? 3000) } },
      { plugin: 'auth' },
      { plugin: 'tools' },
      { plugin: 'calculator', id: 'tools:calc', config: { anonymous: true } },
      { plugin: 'carmy', config: { server: 'from-code' } },
      { plugin: hello }
    ]
  }
})
const { host, port } = program.service('http').address
console.log(`http://${host}:${port}`)
process.once('SIGTERM', () => program.stop())
