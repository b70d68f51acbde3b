import { CodedError } from '../../kernel/index.ts'
import type { Audit } from '../audit/types.ts'
import type { Reader, Store, Transaction } from '../store/types.ts'
import type { Tenant } from '../tenants/types.ts'
import { type AgentConfig, checkConfig } from './definition.ts'
import {
  type Actor,
  agentsCollection,
  checkDescription,
  checkText,
  type NewAgent,
  type StoredAgent
} from './service.ts'

/** What the agents of new clients are made from. */
export interface AgentTemplate {
  readonly id: string
  /** In lower case. */
  readonly productType: string
  readonly name: string
  readonly displayName: string
  readonly description: string | null
  readonly config: AgentConfig
  /** Unix time in milliseconds. */
  readonly createdAtMs: number
}

/** Codes: `TENANT_AGENTS_INVALID`, `TENANT_AGENTS_EXIST`, `TENANT_AGENTS_TEMPLATES_FULL`, `TENANT_AGENTS_NO_TEMPLATE`. */
export interface Templates {
  /** By product type and name. @param productType left out: of all */
  list(productType?: string): Promise<readonly AgentTemplate[]>
  create(template: NewAgent & { readonly productType: string }, by: Actor): Promise<AgentTemplate>
  remove(id: string, by: Actor): Promise<void>
  /**
   * Gives a tenant that is being made an agent for each template of a product type.
   * @returns their names
   * @throws CodedError `TENANTS_PROVISION_REFUSED` when its tier has fewer
   */
  provision(tx: Transaction, tenant: Tenant, productType: string): Promise<readonly string[]>
}

/** By product type and name. */
const collection = 'tenant_agents.templates'
const durable = { durable: true } as const
const maxTemplates = 1_000

export function createTemplates(
  store: Store,
  audit: Audit | undefined,
  environment: { readonly isTool: (name: string) => boolean; readonly now: () => number; readonly newId: () => string }
): Templates {
  const { isTool, now, newId } = environment

  async function read(from: Reader, productType?: string): Promise<AgentTemplate[]> {
    const found: AgentTemplate[] = []
    const prefix = productType === undefined ? [] : [productType.toLowerCase()]
    for await (const [, { value }] of from.range<AgentTemplate>(collection, prefix)) found.push(value)
    return found
  }

  const resourceOf = ({ productType, name }: AgentTemplate) => ({
    type: 'agent_template',
    id: `${productType}/${name}`
  })

  return {
    list: async (productType) => ((productType?.length ?? 0) > maxTypeChars ? [] : read(store, productType)),

    async create({ productType, name, displayName, description = null, config }, by) {
      const template: AgentTemplate = {
        id: newId(),
        productType: checkText('product_type', productType).toLowerCase(),
        name: checkText('agent_name', name),
        displayName: checkText('display_name', displayName),
        description: checkDescription(description),
        config: checkConfig(config, isTool),
        createdAtMs: now()
      }
      await store.atomically(async (tx) => {
        const present = await read(tx)
        if (present.some((each) => each.productType === template.productType && each.name === name)) {
          const text = `Template '${name}' already exists for product type '${template.productType}'`
          throw new CodedError('TENANT_AGENTS_EXIST', text)
        }
        if (present.length >= maxTemplates) {
          const text = `There are ${maxTemplates} templates already: delete one first`
          throw new CodedError('TENANT_AGENTS_TEMPLATES_FULL', text)
        }
        tx.put(collection, [template.productType, name], template, 0)
        audit?.record(tx, { ...by, action: 'create_agent_template', resource: resourceOf(template) })
      }, durable)
      return template
    },

    remove: (id, by) =>
      store.atomically(async (tx) => {
        const template = (await read(tx)).find((each) => each.id === id)
        if (template === undefined) throw new CodedError('TENANT_AGENTS_NO_TEMPLATE', `Template '${id}' not found`)
        tx.remove(collection, [template.productType, template.name])
        audit?.record(tx, { ...by, action: 'delete_agent_template', resource: resourceOf(template) })
      }, durable),

    async provision(tx, { id, tier, limits }, productType) {
      const templates = await read(tx, productType)
      const most = limits.agents ?? maxTemplates
      if (templates.length > most) {
        const text = `Agent quota exceeded: '${productType}' comes with ${templates.length} agents, tier '${tier}' has ${most}`
        throw new CodedError('TENANTS_PROVISION_REFUSED', text)
      }
      const atMs = now()
      for (const { name, displayName, description, config } of templates) {
        const agent = { displayName, description, config, enabled: true, createdAtMs: atMs, updatedAtMs: atMs }
        tx.put<StoredAgent>(agentsCollection, [id, name], agent, 0)
      }
      return templates.map(({ name }) => name)
    }
  }
}

/** Longer than any that was taken. */
const maxTypeChars = 128
