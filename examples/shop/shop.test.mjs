import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startTools } from 'heartwood/testing'

const products = [
  { sku: 'KB-01', name: 'Mechanical keyboard', price_cents: 8900, stock: 3 },
  { sku: 'MS-01', name: 'Wireless mouse', price_cents: 2500, stock: 10 }
]
const shop = { base: import.meta.url, entries: [{ plugin: './shop.ts', config: { products } }] }
const ada = { principal: 'user:ada' }

test('products are found by words of their names', async (t) => {
  const bench = await startTools(shop)
  t.after(() => bench.stop())
  const { response } = await bench.call('search_products', { query: 'KEYBOARD mech' })
  assert.deepEqual(response.data, { products: [{ sku: 'KB-01', name: 'Mechanical keyboard', price_cents: 8900 }] })
})

test('an order is placed once, however often it is asked for', async (t) => {
  const bench = await startTools(shop)
  t.after(() => bench.stop())
  const order = () => bench.call('create_order', { sku: 'KB-01', quantity: 2 }, { ...ada, requestId: 'first' })
  const { response } = await order()
  assert.equal(response.data.total_cents, 17_800)
  const again = await order()
  assert.equal(again.replayed, true)
  assert.deepEqual(again.response, response)

  const more = await bench.call('create_order', { sku: 'KB-01', quantity: 2 }, ada)
  assert.equal(more.response.error.code, 'OUT_OF_STOCK')
  assert.equal(more.response.error.message, "1 of 'KB-01' are left, not 2")
})

test('an order is cancelled by its buyer, and only once a person has confirmed it', async (t) => {
  const bench = await startTools(shop)
  t.after(() => bench.stop())
  const placed = await bench.call('create_order', { sku: 'MS-01' }, ada)
  const { order_id } = placed.response.data
  const cancel = (call) => bench.call('cancel_order', { order_id }, call)

  assert.equal((await cancel(ada)).response.error.code, 'CONFIRMATION_REQUIRED')
  const permissions = ['confirm:cancel_order']
  assert.equal((await cancel({ principal: 'user:eve', permissions })).response.error.code, 'ORDER_UNKNOWN')
  assert.equal((await cancel({ ...ada, permissions })).response.data.state, 'cancelled')
})
