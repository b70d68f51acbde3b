import { resolve } from 'node:path'
import { type Backup, backUp, restore } from './backup.ts'

/** What the verbs of the command line do, and say: they work on a data folder, without a running program. */

/** @param folder the data folder, as given */
export async function runBackup(folder: string, to: string | undefined): Promise<string> {
  if (to === undefined) throw new TypeError('backup needs a folder to write to: --to DIR')
  const backup = await backUp(resolve(folder), resolve(to), Date.now())
  return `backed up ${folder} to ${to}: ${inWords(backup)}, read back\n`
}

export async function runRestore(from: string | undefined, folder: string, verify: boolean): Promise<string> {
  if (from === undefined) throw new TypeError('restore needs a backup: --from DIR')
  const backup = await restore(resolve(from), resolve(folder), { verify })
  const checked = verify ? 'every record read back' : 'checksums compared'
  return `restored ${from} to ${folder}: ${inWords(backup)}, made ${backup.made_at}, ${checked}\n`
}

function inWords({ records, files }: Backup): string {
  const bytes = files.reduce((sum, file) => sum + file.bytes, 0)
  return `${records} ${records === 1 ? 'record' : 'records'}, ${(bytes / 1_048_576).toFixed(1)} MiB`
}
