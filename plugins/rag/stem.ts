import type { Language } from './stop-words.ts'

/** Cuts a folded word to what it shares with its other forms; never to nothing. */
export type Stemmer = (word: string) => string

/**
 * English by the algorithm of M. F. Porter, "An algorithm for suffix stripping", 1980, with the two departures its
 * author published later (`bli`, `logi`); the other languages by light suffix lists, which retrieve as well as full
 * stemmers (J. Savoy, "Light stemming approaches for the French, Portuguese, German and Hungarian languages", 2006).
 */
export const stemmers: Readonly<Record<Language, Stemmer>> = {
  en: stemEnglish,
  de: stripping(
    3,
    'erinnen innen ern ens em en er es e bs:b ds:d fs:f gs:g hs:h ks:k ls:l ms:m ns:n rs:r ts:t',
    'est en er st',
    'ierung ungen ung heit keit lich isch ig ik end'
  ),
  fr: stripping(
    3,
    'issements issement ements:e ement:e ments ment aux:al eaux:eau eux s x',
    'atrices atrice ateurs ateur ations ation ition ution:u logie:log eus euse ance ence ite ivement ive if able ible ist iste eur',
    'issaient issait issons issez issent iraient irait aient erait eront erons erai eras era ait ant ees ee es er ez ir ent e',
    'i'
  ),
  es: stripping(
    3,
    'amente mente',
    'aciones aciones acion uciones:u ucion:u ces:z idades idad amientos amiento imientos imiento adoras adores adora ador',
    'ariamos eriamos arian erian irian aremos eremos iremos ando iendo yendo aron ieron aban aba adas ados idas idos ada ado ida ido amos emos imos aran eran iran ara era ira ar er ir es os as an en a e o s',
    'i'
  ),
  it: stripping(
    3,
    'mente',
    'azioni azione uzioni:u uzione:u ita ezza amenti amento imenti imento atori atore atrice',
    'avano evano ivano iamo ando endo ato ata ati ate ito ita iti ite are ere ire ano ono a e i o',
    'h i'
  ),
  pt: stripping(
    3,
    'amente mente',
    'acoes acao ucoes:u ucao:u idades idade amentos amento imentos imento adores adoras adora ador oes:ao ais:al eis:el',
    'avam ando endo indo aram eram iram ados adas idos idas ado ada ido ida amos emos imos ar er ir am em as os es a e o s',
    'i'
  ),
  nl: stripping(3, 'heden:heid ingen ing', 'eren ende ene en e s', 'heid lijk ig baar'),
  ru: stripping(
    3,
    'ившись ывшись вшись ивши ывши вши',
    'ся сь',
    'ейшими ейший ейшая ейшее ейшие ующими ующего ующему ующий ующая ующее ующие ующих ющий ющая ющее ющие ющих ящий ящая ящее ящие ящих ыми ими ого его ому ему ой ый ий ей ая яя ое ее ые ие ых их ую юю ым им ом ем',
    'овались овать ировать уется уются ывает ивает ывать ивать ила ыла ена ейте уйте ите или ыли ить ыть ено ует уют ены ать ять еть ала яла ело али яли ают яют ешь нно ает яет ете ишь ыл ил ат ят ит ет ут ют ла ло ли',
    'иями иях иям ием ами ями ией ах ях ев ов ие ье еи ии ей ой ий ам ям ем ом ию ью ия ья а е и й о у ы ь ю я',
    'ость ост нн:н и ь'
  ),
  ar: stemArabic,
  hi: stripping(
    2,
    'ाएंगी ाएंगे ाऊंगी ाऊंगा ाइयाँ ाइयों ाइयां ियाँ ियों ियां ाओं ाएं ुओं ुएं ताओं नाओं ाने ाना ाते ाती ाता तीं ोगे ोगी ेगा ेगी ेंगे ूंगा ना ने नी ता ते ती कर ाई ाए ों ें ीं ो े ू ु ी ि ा'
  )
}

type Rule = readonly [suffix: string, replacement: string]

/**
 * Steps one after the other, each taking the first of its suffixes that fits; longer ones stand before shorter ones.
 * @param least letters that stay
 * @param steps suffixes by spaces, `suffix:replacement` where something takes its place
 */
function stripping(least: number, ...steps: readonly string[]): Stemmer {
  const rules = steps.map((step) =>
    step
      .split(' ')
      .map((rule): Rule => {
        const [suffix = '', replacement = ''] = rule.split(':')
        return [suffix, replacement]
      })
      .sort(([a], [b]) => b.length - a.length)
  )
  return (word) => {
    let stem = word
    for (const step of rules) {
      for (const [suffix, replacement] of step) {
        if (stem.length - suffix.length >= least && stem.endsWith(suffix)) {
          stem = stem.slice(0, stem.length - suffix.length) + replacement
          break
        }
      }
    }
    return stem
  }
}

/** Article and conjunctions in front, endings behind (L. Larkey et al., "Light stemming for Arabic", 2007). */
function stemArabic(word: string): string {
  let stem = word
  const front = /^(?:وال|بال|كال|فال|لل|ال|و(?=.{3}))/.exec(stem)
  if (front !== null && stem.length - front[0].length >= 2) stem = stem.slice(front[0].length)
  for (let step = 0; step < 2; step++) {
    const end = /(?:ها|ان|ات|ون|ين|يه|ه|ي)$/.exec(stem)
    if (end === null || end.index < 3) break
    stem = stem.slice(0, end.index)
  }
  return stem
}

const consonant = '(?:[^aeiouy]|(?<=[aeiou])y|^y)'
const vowel = '(?:[aeiou]|(?<![aeiou])(?<!^)y)'
/** Number of vowel-consonant sequences: one or more, exactly one, two or more. */
const measured = new RegExp(`^${consonant}*${vowel}+${consonant}`)
const measuredOnce = new RegExp(`^${consonant}*${vowel}+${consonant}+${vowel}*$`)
const measuredTwice = new RegExp(`^${consonant}*${vowel}+${consonant}+${vowel}+${consonant}`)
const hasVowel = new RegExp(vowel)
const endsShort = new RegExp(`${consonant}[aeiouy](?![wxy])${consonant}$`)
const endsDouble = /([^aeiouylsz])\1$/

const longer: readonly Rule[] = rulesOf(
  'ational:ate ization:ize fulness:ful ousness:ous iveness:ive tional:tion biliti:ble entli:ent ousli:ous ation:ate alism:al aliti:al iviti:ive enci:ence anci:ance izer:ize alli:al ator:ate logi:log bli:ble eli:e'
)
const middle: readonly Rule[] = rulesOf('icate:ic ative: alize:al iciti:ic ical:ic ness: ful:')
const last: readonly Rule[] = rulesOf(
  'ement: ance: ence: able: ible: ment: ant: ent: ism: ate: iti: ous: ive: ize: ion: al: er: ic: ou:'
)

function rulesOf(text: string): readonly Rule[] {
  return text.split(' ').map((rule): Rule => rule.split(':') as [string, string])
}

function stemEnglish(word: string): string {
  if (word.length < 3) return word
  let w = word
  if (w.endsWith('s')) {
    if (w.endsWith('sses') || w.endsWith('ies')) w = w.slice(0, -2)
    else if (!w.endsWith('ss')) w = w.slice(0, -1)
  }
  if (w.endsWith('eed')) {
    if (measured.test(w.slice(0, -3))) w = w.slice(0, -1)
  } else {
    const stem = w.endsWith('ed') ? w.slice(0, -2) : w.endsWith('ing') ? w.slice(0, -3) : ''
    if (hasVowel.test(stem)) {
      w = stem
      if (w.endsWith('at') || w.endsWith('bl') || w.endsWith('iz')) w += 'e'
      else if (endsDouble.test(w)) w = w.slice(0, -1)
      else if (measuredOnce.test(w) && endsShort.test(w)) w += 'e'
    }
  }
  if (w.endsWith('y') && hasVowel.test(w.slice(0, -1))) w = `${w.slice(0, -1)}i`
  w = replaced(w, longer, measured)
  w = replaced(w, middle, measured)
  const rule = last.find(([suffix]) => w.endsWith(suffix))
  if (rule !== undefined) {
    const stem = w.slice(0, -rule[0].length)
    if (measuredTwice.test(stem) && (rule[0] !== 'ion' || stem.endsWith('s') || stem.endsWith('t'))) w = stem
  }
  if (w.endsWith('e')) {
    const stem = w.slice(0, -1)
    if (measuredTwice.test(stem) || (measured.test(stem) && !endsShort.test(stem))) w = stem
  }
  return w.endsWith('ll') && measuredTwice.test(w.slice(0, -1)) ? w.slice(0, -1) : w
}

function replaced(word: string, rules: readonly Rule[], when: RegExp): string {
  const rule = rules.find(([suffix]) => word.endsWith(suffix))
  if (rule === undefined) return word
  const stem = word.slice(0, word.length - rule[0].length)
  return when.test(stem) ? stem + rule[1] : word
}
