import { execFileSync } from 'node:child_process'
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  utimesSync,
  writeFileSync
} from 'node:fs'
import { dirname, join, relative } from 'node:path'
import t, { type Test } from 'tap'
import { createJsonLogger } from '../../kernel/log.ts'
import { type After, type FileWatcher, stampOf, type WatchOptions, watchFiles } from '../../kernel/watch.ts'

interface Watched {
  readonly base: string
  readonly watcher: FileWatcher
  readonly lines: readonly { readonly level: string; readonly message: string }[]
  /** The next files that are told, relative to the folder of the test, sorted. */
  readonly next: () => Promise<readonly string[]>
  /** How often something was told so far. */
  readonly told: () => number
  readonly path: (name: string) => string
  readonly write: (name: string, text: string) => void
  /** As most editors save: another file is put in the place of the old one. */
  readonly save: (name: string, text: string) => void
}

/** A watcher of the folder of this test that follows `files`, with a short window. */
function setUp(t: Test, files: readonly string[], options: Partial<WatchOptions> = {}): Watched {
  const base = t.testdir({})
  const rounds: (readonly string[])[] = []
  const waiting: ((files: readonly string[]) => void)[] = []
  let told = 0
  const lines: { level: string; message: string }[] = []
  const watcher = watchFiles({
    settleMs: 10,
    log: createJsonLogger({ write: (line) => lines.push(JSON.parse(line)) }),
    onChange: (changed) => {
      told += 1
      const names = [...changed].map((file) => relative(base, file)).sort()
      const next = waiting.shift()
      if (next === undefined) rounds.push(names)
      else next(names)
    },
    ...options
  })
  t.teardown(() => watcher.close())
  const path = (name: string) => join(base, name)
  const write = (name: string, text: string) => {
    mkdirSync(dirname(path(name)), { recursive: true })
    writeFileSync(path(name), text)
  }
  for (const file of files) if (!file.startsWith('missing/')) write(file, 'first')
  watcher.follow(files.map(path))
  return {
    base,
    watcher,
    lines,
    path,
    write,
    told: () => told,
    next: () => {
      const round = rounds.shift()
      return round === undefined ? new Promise((resolve) => waiting.push(resolve)) : Promise.resolve(round)
    },
    save: (name, text) => {
      write(`${name}.tmp-1`, text)
      renameSync(path(`${name}.tmp-1`), path(name))
    }
  }
}

/** A clock that goes on when the test says so. */
function createClock() {
  const pending: { delayMs: number; work: () => void }[] = []
  let onPending: (() => void) | undefined
  const after: After = (delayMs, work) => {
    const item = { delayMs, work }
    pending.push(item)
    onPending?.()
    return () => {
      const at = pending.indexOf(item)
      if (at >= 0) pending.splice(at, 1)
    }
  }
  return {
    after,
    pending,
    /** Resolves when something waits for `delayMs`. */
    async until(delayMs: number): Promise<void> {
      while (!pending.some((item) => item.delayMs === delayMs)) {
        await new Promise<void>((resolve) => {
          onPending = resolve
        })
      }
    },
    /** Runs what waits for `delayMs`. */
    run(delayMs: number): void {
      const at = pending.findIndex((item) => item.delayMs === delayMs)
      pending.splice(at, 1)[0]?.work()
    }
  }
}

t.test('each save is told, in place or by rename, several in a row', async (t) => {
  const { next, save, write } = setUp(t, ['a'])
  for (const text of ['1', '2', '3']) {
    save('a', text)
    t.strictSame(await next(), ['a'])
  }
  write('a', '9')
  t.strictSame(await next(), ['a'])
  save('a', '10')
  t.strictSame(await next(), ['a'])
})

t.test('what leaves the content as it is, or happens beside it, is not told', async (t) => {
  const { next, path, save, told, watcher, write } = setUp(t, ['a', 'b'])
  utimesSync(path('a'), 1, 1)
  save('a', 'first')
  write('a', 'other')
  write('a', 'first')
  unlinkSync(path('a'))
  write('a', 'first')
  write('.a.swp', 'x')
  write('a~', 'x')
  write('4913', 'x')
  unlinkSync(path('4913'))
  write('b', 'second')
  t.strictSame(await next(), ['b'])
  t.equal(told(), 1)
  await watcher.close()
})

t.test('what happens within the window is told together, and the last content counts', async (t) => {
  const clock = createClock()
  const { next, told, write, save } = setUp(t, ['a', 'b', 'sub/c'], { settleMs: 500, after: clock.after })
  write('a', '1')
  await clock.until(500)
  save('b', '2')
  write('sub/c', '3')
  write('a', '4')
  t.equal(clock.pending.length, 1, 'one window')
  await untilEvents()
  clock.run(500)
  t.strictSame(await next(), ['a', 'b', 'sub/c'])
  t.equal(told(), 1)
})

t.test('a file that is gone is told, and told again when it is back', async (t) => {
  const { next, path, write } = setUp(t, ['a'])
  unlinkSync(path('a'))
  t.strictSame(await next(), ['a'])
  write('a', 'first')
  t.strictSame(await next(), ['a'], 'also with the content it had')
})

t.test('a file that does not exist yet is told when it comes, wherever the first missing folder is', async (t) => {
  const { next, path, write } = setUp(t, ['missing/one/two/a'])
  mkdirSync(path('missing'))
  mkdirSync(path('missing/one'))
  write('missing/one/two/a', '1')
  t.strictSame(await next(), ['missing/one/two/a'])
  write('missing/one/two/a', '2')
  t.strictSame(await next(), ['missing/one/two/a'])
})

t.test('a folder may be removed and come back, or make room for another', async (t) => {
  const { next, path, write, save } = setUp(t, ['a', 'sub/deep/b'])
  for (const round of ['1', '2']) {
    rmSync(path('sub'), { recursive: true })
    t.strictSame(await next(), ['sub/deep/b'], 'gone')
    write('sub/deep/b', round)
    t.strictSame(await next(), ['sub/deep/b'], 'back')
    save('sub/deep/b', `${round} saved`)
    t.strictSame(await next(), ['sub/deep/b'])
  }
  write('other/deep/b', 'other')
  renameSync(path('sub'), path('old'))
  renameSync(path('other'), path('sub'))
  t.strictSame(await next(), ['sub/deep/b'], 'another folder two levels up')
  write('old/deep/b', 'nobody looks at this any more')
  write('sub/deep/b', 'x')
  t.strictSame(await next(), ['sub/deep/b'])
  renameSync(path('sub/deep'), path('sub/shallow'))
  t.strictSame(await next(), ['sub/deep/b'])
})

t.test('a link is followed to its file, and to another one when it is changed', async (t) => {
  const { next, path, write, save, watcher } = setUp(t, [])
  write('there/one', '1')
  write('elsewhere/two', '2')
  symlinkSync('there/one', path('link'))
  symlinkSync('link', path('double'))
  watcher.follow([path('double')])

  save('there/one', '1b')
  t.strictSame(await next(), ['double'])
  unlinkSync(path('link'))
  symlinkSync('elsewhere/two', path('link'))
  t.strictSame(await next(), ['double'])
  write('elsewhere/two', '2b')
  t.strictSame(await next(), ['double'])
  save('elsewhere/two', '2c')
  t.strictSame(await next(), ['double'])
  unlinkSync(path('elsewhere/two'))
  t.strictSame(await next(), ['double'], 'a link to nothing')
  write('elsewhere/two', '2c')
  t.strictSame(await next(), ['double'])
})

t.test('a link to a folder on the way is followed too', async (t) => {
  const { next, path, write, watcher } = setUp(t, [])
  write('releases/1/program', 'one')
  write('releases/2/program', 'two')
  symlinkSync('releases/1', path('current'))
  watcher.follow([path('current/program')])

  symlinkSync('releases/2', path('current.new'))
  renameSync(path('current.new'), path('current'))
  t.strictSame(await next(), ['current/program'])
  write('releases/2/program', 'two and more')
  t.strictSame(await next(), ['current/program'])
})

t.test('what cannot be read is told once, and once more when it can', async (t) => {
  const { next, path, told, write } = setUp(t, ['a', 'b'])
  unlinkSync(path('a'))
  mkdirSync(path('a'))
  t.strictSame(await next(), ['a'], 'a folder')
  execFileSync('mkfifo', [path('b.new')])
  renameSync(path('b.new'), path('b'))
  t.strictSame(await next(), ['b'], 'a pipe, from which reading would never end')
  utimesSync(path('a'), 1, 1)
  rmSync(path('a'), { recursive: true })
  write('a', 'again')
  t.strictSame(await next(), ['a'])
  t.equal(told(), 3)
})

t.test('calls never overlap; what changes during one is told in the next', async (t) => {
  let running = 0
  let most = 0
  const ends: (() => void)[] = []
  const seen: string[][] = []
  const began: (() => void)[] = []
  const { base, watcher, write } = setUp(t, ['a', 'b'], {
    onChange: async (changed) => {
      running += 1
      most = Math.max(most, running)
      seen.push([...changed].map((file) => relative(base, file)).sort())
      began.shift()?.()
      await new Promise<void>((resolve) => ends.push(resolve))
      running -= 1
    }
  })
  const next = () => new Promise<void>((resolve) => began.push(resolve))
  const first = next()
  write('a', '1')
  await first
  const second = next()
  write('a', '2')
  write('b', '2')
  await untilEvents()
  t.strictSame(seen, [['a']], 'nothing while the first is under way')
  ends.shift()?.()
  await second
  t.strictSame(seen, [['a'], ['a', 'b']])
  t.equal(most, 1)
  const closing = watcher.close()
  ends.shift()?.()
  await closing
})

t.test('an error of the caller is logged and changes nothing', async (t) => {
  const { promise, resolve } = withResolvers()
  let calls = 0
  const { lines, write, path } = setUp(t, ['a'], {
    onChange: () => {
      calls += 1
      if (calls === 2) resolve()
      throw new Error('not today')
    }
  })
  write('a', '1')
  while (calls === 0) await new Promise((resolve) => setImmediate(resolve))
  appendFileSync(path('a'), '2')
  await promise
  t.match(lines, [{ level: 'error', message: /changed files/, files: [path('a')], error: { message: 'not today' } }])
})

t.test('what the caller has written itself is not told; what others write over it is', async (t) => {
  const clock = createClock()
  const { next, path, told, watcher, write, save } = setUp(t, ['a', 'b'], { settleMs: 500, after: clock.after })
  save('a', 'mine')
  watcher.expect(path('a'), 'mine')
  write('b', 'theirs')
  await untilEvents()
  clock.run(500)
  t.strictSame(await next(), ['b'])

  save('a', 'mine again')
  save('a', 'theirs')
  watcher.expect(path('a'), 'mine again')
  await clock.until(500)
  clock.run(500)
  t.strictSame(await next(), ['a'])

  watcher.expect(path('a'), 'never written')
  await clock.until(500)
  clock.run(500)
  t.strictSame(await next(), ['a'], 'what is there is not what was expected')
  watcher.expect(path('unknown'), 'x')
  t.equal(told(), 3)
})

t.test('only what is followed is told; a file begins with the content the caller knows', async (t) => {
  const { next, path, told, watcher, write } = setUp(t, ['a', 'b'])
  write('c', 'new')
  watcher.follow([path('b'), path('c')], (file) => stampOf(file === path('c') ? 'old' : 'not asked'))
  t.strictSame(await next(), ['c'], 'it was written after it was read')
  write('a', '2')
  write('b', '2')
  t.strictSame(await next(), ['b'])
  watcher.follow([])
  write('b', '3')
  watcher.follow([path('a')])
  write('a', '3')
  t.strictSame(await next(), ['a'])
  t.equal(told(), 3)
})

t.test('where no more folders can be watched the files are looked at, with one warning', async (t) => {
  const clock = createClock()
  const { lines, next, path, save, told, watcher, write } = setUp(t, ['a', 'sub/b'], {
    settleMs: 50,
    pollMs: 700,
    after: clock.after,
    watchFolder: () => {
      throw Object.assign(new Error('no space left'), { code: 'ENOSPC' })
    }
  })
  t.match(lines, [{ level: 'warn', message: /cannot watch .* every 700 ms/, error: { message: 'no space left' } }])
  const turn = async () => {
    clock.run(700)
    await clock.until(50)
    clock.run(50)
  }
  save('a', '2')
  await turn()
  t.strictSame(await next(), ['a'])
  write('sub/b', '2')
  unlinkSync(path('a'))
  await turn()
  t.strictSame(await next(), ['a', 'sub/b'])
  t.equal(lines.length, 1)
  await watcher.close()
  t.equal(told(), 2)
  t.strictSame(clock.pending, [], 'no timer is left')
})

t.test('closing waits for the call that is under way, and leaves nothing behind', async (t) => {
  const began = withResolvers()
  const end = withResolvers()
  let calls = 0
  const before = watchedFolders()
  const { watcher, write, base } = setUp(t, ['a', 'sub/b'], {
    onChange: async () => {
      calls += 1
      began.resolve()
      await end.promise
    }
  })
  t.ok(watchedFolders() > before)
  write('a', '2')
  await began.promise
  write('a', '3')
  let closed = false
  const closing = watcher.close().then(() => {
    closed = true
  })
  await new Promise((resolve) => setImmediate(resolve))
  t.notOk(closed)
  end.resolve()
  await closing
  await watcher.close()
  watcher.follow([join(base, 'a')])
  await untilEvents() // A handle is closed in the next turn.
  t.equal(watchedFolders(), before)
  t.equal(calls, 1)
  t.ok(existsSync(base))
})

function watchedFolders(): number {
  return process.getActiveResourcesInfo().filter((name) => name === 'FSEventWrap').length
}

/** Resolves once what has happened to files so far has been reported: events of one folder come in their order. */
async function untilEvents(): Promise<void> {
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve))
}

function withResolvers(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve = () => {}
  const promise = new Promise<void>((done) => {
    resolve = done
  })
  return { promise, resolve }
}
