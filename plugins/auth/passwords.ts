/** What is tried first against any account: the most used passwords of at least eight characters, in lower case. */
export const commonPasswords: readonly string[] = `
00000000 11111111 22222222 33333333 44444444 55555555 66666666 77777777 88888888 99999999 12345678 123456789 1234567890
0123456789 12341234 123123123 1234554321 12121212 11223344 112233445566 147258369 159753456 741852963 789456123 87654321
987654321 9876543210 aaaaaaaa abcdefgh abcdefg1 abc12345 abcd1234 a1234567 a12345678 a123456789 12345678a 123456789a
1q2w3e4r 1q2w3e4r5t q1w2e3r4 q1w2e3r4t5 1qaz2wsx !qaz2wsx zaq12wsx qazwsxedc 123qweasd 1234qwer qwer1234 qwertyui
qwertyuiop qwerty12 qwerty123 qwerty1234 qwerty12345 qwertz123 azertyuiop azerty123 asdf1234 asdfasdf asdfghjk asdfghjkl
zxcvbnm1 password password1 password12 password123 password1234 password! passw0rd p@ssword p@ssw0rd pa55word passwort
passwort1 motdepasse contrasena contraseña senha123 parola123 parool123 wachtwoord iloveyou iloveyou1 loveyou1 sunshine
sunshine1 princess princess1 football football1 baseball baseball1 basketball superman superman1 spiderman batman123
starwars pokemon1 nintendo minecraft trustno1 whatever whatever1 welcome1 welcome123 letmein1 letmein123 hello123 hallo123
admin123 admin1234 administrator superuser guest123 user1234 default1 changeme changeme1 test1234 testtest testing123
secret123 computer internet facebook linkedin google123 samsung1 michelle jennifer jonathan samantha victoria benjamin
alexander elizabeth charlie1 monkey123 dragon123 master123 shadow123 mustang1 corvette mercedes liverpool barcelona
chelsea1 arsenal1 blink182
`
  .trim()
  .split(/\s+/)

/**
 * Whether a password is one of those nobody may choose, in any case.
 * @param normalPassword after NFKC
 */
export function createBlocklist(options: {
  readonly blocked_passwords: readonly string[]
  readonly block_common_passwords: boolean
}): (normalPassword: string) => boolean {
  const { blocked_passwords, block_common_passwords } = options
  const blocked = new Set(
    [...blocked_passwords, ...(block_common_passwords ? commonPasswords : [])].map((each) =>
      each.normalize('NFKC').toLowerCase()
    )
  )
  return (normalPassword) => blocked.has(normalPassword.toLowerCase())
}
