/** A question for the time or the date. */
export interface TimeQuestion {
  /** IANA name of the place that was named. */
  readonly timezone?: string
  /** A place that was named and that no time zone is called after. */
  readonly unknownPlace?: string
}

const question =
  /\b(?:what(?:['’]?s| is)? (?:the )?(?:current )?(?:time|date|day)|tell me the (?:time|date)|(?:current|today['’]?s) (?:time|date))(?: is it| it is| now| right now| today| please)*(?: in (?:the )?(?<place>[\p{L}][\p{L}\p{M} _/.'’-]*?))?(?: now| right now| today| please)*\s*(?:$|[?.!,;])/iu

/** The question for the time in `text`; `undefined` when there is none. */
export function findTimeQuestion(text: string): TimeQuestion | undefined {
  const found = question.exec(text)
  if (found === null) return undefined
  const place = found.groups?.['place']?.trim()
  if (place === undefined) return {}
  const timezone = findTimezone(place)
  return timezone === undefined ? { unknownPlace: place } : { timezone }
}

function findTimezone(place: string): string | undefined {
  const wanted = place.toLowerCase().replaceAll(' ', '_')
  if (wanted === 'utc' || wanted === 'gmt') return 'UTC'
  return Intl.supportedValuesOf('timeZone').find((zone) => {
    const name = zone.toLowerCase()
    return name === wanted || name.endsWith(`/${wanted}`)
  })
}
