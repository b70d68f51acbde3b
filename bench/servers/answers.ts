/** What the servers of `http-floor`, `auth` and `metered` answer: the forms of the product, made from the parsed body. */
export const answers: Readonly<Record<string, (body: Record<string, unknown>) => unknown>> = {
  '/agent/execute': (body) => ({
    execution_id: 'exec_01j9zq3v8k5m2n4p6r7s8t9v0w',
    status: 'completed',
    data: body['arguments'],
    _agent: { cacheable: false, next_actions: [] }
  }),
  '/bench/metered': (body) => ({
    response: body['message'],
    agent: 'none',
    usage: { input_tokens: 10, output_tokens: 5 }
  }),
  '/bench/note': (body) => ({ id: body['id'], text: 'what was written there', version: 1 })
}
