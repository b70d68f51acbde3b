import { CodedError, definePlugin, defineTool, schemaOf, type store, type tools } from 'heartwood'

interface Product {
  readonly sku: string
  readonly name: string
  readonly price_cents: number
  /** Pieces at the start. */
  readonly stock: number
}

interface Order {
  readonly sku: string
  readonly quantity: number
  readonly total_cents: number
  readonly state: 'placed' | 'cancelled'
}

const config = schemaOf<{ products: readonly Product[] }>({
  type: 'object',
  additionalProperties: false,
  required: ['products'],
  properties: {
    products: {
      type: 'array',
      items: {
        type: 'object',
        additionalProperties: false,
        required: ['sku', 'name', 'price_cents', 'stock'],
        properties: {
          sku: { type: 'string', pattern: '^[A-Z0-9-]{1,32}$' },
          name: { type: 'string' },
          price_cents: { type: 'integer', minimum: 0 },
          stock: { type: 'integer', minimum: 0 }
        }
      }
    }
  }
})

export default definePlugin({
  name: 'shop',
  inject: ['store', 'tools'],
  config,
  apply(ctx, { products }) {
    const shop = new Shop(ctx.services.store, products)
    ctx.contribute('tools', searchProducts(shop), createOrder(shop), cancelOrder(shop))
  }
})

/** Orders and what is left of each product, in the store. */
class Shop {
  readonly products: readonly Product[]
  readonly #store: store.Store

  constructor(store: store.Store, products: readonly Product[]) {
    this.#store = store
    this.products = products
  }

  /** One transaction: nobody gets a piece that is not there, and no piece is lost. */
  place(buyer: string, id: string, sku: string, quantity: number): Promise<Order> {
    const product = this.products.find((each) => each.sku === sku)
    if (product === undefined) throw refusal('PRODUCT_UNKNOWN', `there is no product '${sku}'`, 'not_found')
    return this.#store.atomically(
      async (tx) => {
        const sold = (await tx.get<number>('shop.sold', [sku]))?.value ?? 0
        const left = product.stock - sold
        if (quantity > left) throw refusal('OUT_OF_STOCK', `${left} of '${sku}' are left, not ${quantity}`, 'conflict')
        const order: Order = { sku, quantity, total_cents: quantity * product.price_cents, state: 'placed' }
        tx.put('shop.sold', [sku], sold + quantity)
        tx.put('shop.orders', [buyer, id], order)
        return order
      },
      { durable: true }
    )
  }

  cancel(buyer: string, id: string): Promise<Order> {
    return this.#store.atomically(
      async (tx) => {
        const order = (await tx.get<Order>('shop.orders', [buyer, id]))?.value
        if (order === undefined) throw refusal('ORDER_UNKNOWN', `there is no order '${id}'`, 'not_found')
        if (order.state === 'cancelled') return order
        const sold = (await tx.get<number>('shop.sold', [order.sku]))?.value ?? 0
        const cancelled: Order = { ...order, state: 'cancelled' }
        tx.put('shop.sold', [order.sku], sold - order.quantity)
        tx.put('shop.orders', [buyer, id], cancelled)
        return cancelled
      },
      { durable: true }
    )
  }

  async find(buyer: string, id: string): Promise<Order | undefined> {
    return (await this.#store.get<Order>('shop.orders', [buyer, id]))?.value
  }
}

/** The caller reads the code and the message. */
function refusal(code: string, message: string, category: tools.ErrorCategory): CodedError {
  return new CodedError(code, message, { detail: { category, recoverable: true } })
}

/** The same for every attempt at one call, so that a lost one can be found again. */
function orderIdOf({ executionId }: tools.ToolContext): string {
  return executionId.replace('exec_', 'order_')
}

function buyerOf({ principal }: tools.ToolContext): string {
  return principal ?? 'anonymous'
}

const order = {
  type: 'object',
  required: ['order_id', 'sku', 'quantity', 'total_cents', 'state'],
  properties: {
    order_id: { type: 'string' },
    sku: { type: 'string' },
    quantity: { type: 'integer' },
    total_cents: { type: 'integer' },
    state: { enum: ['placed', 'cancelled'] }
  }
} as const

function searchProducts(shop: Shop): tools.Tool {
  return defineTool({
    name: 'search_products',
    description: 'Finds products whose name holds all the words that are given.',
    input: {
      type: 'object',
      required: ['query'],
      additionalProperties: false,
      properties: { query: { type: 'string', maxLength: 200 } }
    },
    output: {
      type: 'object',
      required: ['products'],
      properties: {
        products: {
          type: 'array',
          items: {
            type: 'object',
            required: ['sku', 'name', 'price_cents'],
            properties: { sku: { type: 'string' }, name: { type: 'string' }, price_cents: { type: 'integer' } }
          }
        }
      }
    },
    effect: 'read',
    idempotent: true,
    parallelSafe: true,
    anonymous: true,
    run({ query }) {
      const words = query.toLowerCase().split(/\s+/)
      const found = shop.products.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)))
      return { products: found.map(({ sku, name, price_cents }) => ({ sku, name, price_cents })) }
    }
  })
}

function createOrder(shop: Shop): tools.Tool {
  return defineTool({
    name: 'create_order',
    description: 'Orders a product. Call it with a request_id: sent again, the same order is answered.',
    input: {
      type: 'object',
      required: ['sku'],
      additionalProperties: false,
      properties: { sku: { type: 'string' }, quantity: { type: 'integer', minimum: 1, maximum: 100 } }
    },
    output: order,
    effect: 'write',
    // The transaction keeps overlapping calls apart.
    parallelSafe: true,
    async run({ sku, quantity = 1 }, context) {
      const id = orderIdOf(context)
      return { order_id: id, ...(await shop.place(buyerOf(context), id, sku, quantity)) }
    },
    /** When the answer to an earlier call was lost: the order is there, or it never will be. */
    async verify(_input, context) {
      const id = orderIdOf(context)
      const found = await shop.find(buyerOf(context), id)
      return found === undefined ? { happened: false } : { happened: true, output: { order_id: id, ...found } }
    }
  })
}

function cancelOrder(shop: Shop): tools.Tool {
  return defineTool({
    name: 'cancel_order',
    description: 'Cancels an order for good. A person has to have confirmed it.',
    input: {
      type: 'object',
      required: ['order_id'],
      additionalProperties: false,
      properties: { order_id: { type: 'string', maxLength: 64 } }
    },
    output: order,
    effect: 'destructive',
    confirmation: 'required',
    parallelSafe: true,
    async run({ order_id }, context) {
      return { order_id, ...(await shop.cancel(buyerOf(context), order_id)) }
    }
  })
}
